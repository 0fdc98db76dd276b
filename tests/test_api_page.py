"""docs/api.md: what is listed there can be imported, and what the pages import is listed there."""

import importlib
import re
from pathlib import Path

import pytest

from scripts.api_page import MODULES, _text, api_page, find, public_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IMPORT = re.compile(r"^ *from (rope_jax[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_listed_can_be_imported(module):
    imported = importlib.import_module(module)
    names = public_names(module)
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(imported, name)
        assert find(module, name).node is not None
    assert set(names) <= set(dir(imported))


def test_what_the_pages_import_exists_and_is_listed():
    listed = {find(module, name) for module in MODULES for name in public_names(module)}
    seen = 0
    for page in PAGES:
        for module, names in IMPORT.findall(page.read_text(encoding="utf-8")):
            for name in re.findall(r"\w+", names.partition("#")[0]):
                assert hasattr(importlib.import_module(module), name), f"{page.name}: {name}"
                assert find(module, name) in listed, f"{page.name} imports {module}.{name}"
                seen += 1
    assert seen > 20


def test_an_entry_has_its_signature_docstring_and_fields():
    page = api_page()
    entry = page.partition("### RotaryGeometry\n")[2].partition("\n### ")[0]
    assert entry.startswith(
        "\n```python\nRotaryGeometry(rotary_dim: int, base: float = 10000.0, "
        "train_length: int = 4096)\n```\n\nThe unscaled rotary embedding"
    )
    assert "* `base`: b in θ_i = b^(−2i/d); Hugging Face's `rope_theta`.\n* `train_len" in entry
    assert "* `inv_freq(base)`: Return θ_i" in entry
    # decorated functions, keyword-only parameters and quoted annotations
    assert "SweepResult:\n" not in page
    entry = page.partition("### sweep\n")[2].partition("\n## ")[0]
    assert "    documents: Sequence[NDArray[np.integer]],\n    *,\n    params: Any,\n" in entry
    assert entry.count("\n* `") > 15


def test_a_docstring_becomes_markdown():
    docstring = (
        "Return a*b, in *radians*, of `x*y`.\n"
        "\n"
        "x: a number that\n"
        "    goes on. y: another.\n"
        "names(x) -> text: what it is\n"
        "called.\n"
        "\n"
        "    x = 1\n"
        "    y = 2\n"
        "\n"
        "ValueError: no x\n"
        "was given: at all.\n"
    )
    assert list(_text(docstring, ("x", "names"))) == [
        r"Return a\*b, in \*radians\*, of `x*y`.",
        "* `x`: a number that goes on. y: another.\n* `names(x) -> text`: what it is called.",
        "```python\nx = 1\ny = 2\n```",
        "* `ValueError`: no x was given: at all.",
    ]
