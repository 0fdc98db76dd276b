"""Bad input is reported in one line: tests/bad_input.yaml, and fuzz tests of the loader."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eval_ppl
import train
from rope_jax.commands.main import main as installed_main
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError

ROOT = Path(__file__).parents[1]
CASES = yaml.safe_load((ROOT / "tests/bad_input.yaml").read_text(encoding="utf-8"))
COMMANDS = {
    "train.py": train.main,
    "eval_ppl.py": eval_ppl.main,
    "rope-jax": installed_main,
}
RUN = """\
name: new
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2,
        attention: xla}
stages: [{steps: 200, seq_len: 16, batch_size: 2}]
"""
FILES = {
    "run.yaml": RUN,
    "text.yaml": RUN + "data: {type: text, files: [texts/*], cache_dir: cache}\n",
    "jsonl.yaml": RUN + "data: {type: jsonl, files: [a.jsonl], cache_dir: cache}\n",
    "parquet.yaml": RUN + "data: {type: parquet, files: [a.parquet], cache_dir: cache}\n",
    "hub.yaml": RUN + "data: {type: hub, id: nobody/nothing, cache_dir: cache}\n",
    "runs/tiny/config.yaml": RUN.replace("new", "tiny"),
}


def content(text) -> bytes:
    """Return the bytes of a file or command line, which a case gives in several forms."""
    if isinstance(text, list):
        text = "".join(part * times for part, times in text)
    return text if isinstance(text, bytes) else text.encode()


def name_of(case) -> str:
    shown = case["run"] if isinstance(case["run"], str) else case["about"]
    return " ".join([shown, case.get("about", ""), *map(repr, case.get("files", {}).values())])[:90]


def everything_in(folder):
    """Return all paths in a folder, except corpora cached completely, which the next run reads."""
    corpora = {path.parent for path in folder.rglob("corpus.json")}
    kept = [*corpora, *(path.parent for path in corpora)]
    return {p for p in folder.rglob("*") if p not in kept and p.parent not in corpora}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a working directory with the files of every case."""
    folder = tmp_path / "here"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # the first import of matplotlib writes a list of fonts, which is slow to make
    monkeypatch.setenv("MPLCONFIGDIR", str(ROOT / ".pytest_cache" / "matplotlib"))
    # messages quote this amount of memory
    monkeypatch.setattr("rope_jax.training.memory.least_available", lambda *_: 16 * 2**30)
    # it makes a folder in the user's cache, whatever the input
    monkeypatch.setattr("rope_jax.user_cache.keep_compiled_programs", lambda: None)
    return folder


@pytest.fixture
def refused(folder, monkeypatch, call):
    """Return a function that calls a command, checks its error line and returns it."""

    def refused(*words: str) -> str:
        before = everything_in(folder.parent)
        monkeypatch.setattr(
            "rope_jax.training.loop.Trainer.run", lambda *_: pytest.fail("training began")
        )
        status, _, said = call(COMMANDS[words[0]], *words)
        assert status == 2
        name = " ".join(words[:2]) if words[0] == "rope-jax" else words[0]
        assert said.startswith(f"{name}: ")
        assert said.endswith("\n")
        assert said[:-1].isprintable()  # so it is one line
        assert len(said) < 1100
        assert everything_in(folder.parent) == before
        return said.removeprefix(f"{name}: ")[:-1].replace(str(folder), ".")

    return refused


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_case_gives_its_message(folder, refused, case):
    for name, text in case.get("files", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content(text))
    said = refused(*shlex.split(content(case["run"]).decode()))
    assert re.fullmatch(re.escape(case["says"]).replace("…", ".*"), said), said


def test_a_name_cannot_act_on_the_terminal(folder, refused):
    said = refused("train.py", "\x1b]0;title\x07\n\r\u202e\udcff.yaml")
    assert said == r"\x1b]0;title\x07\n\r\u202e\udcff.yaml: no such file"


# Whatever the input, the loader returns a config or raises a UserError.

SCHEMAS = {
    TrainingConfig: ROOT / "configs/demo.yaml",
    SweepConfig: ROOT / "configs/sweeps/demo.yaml",
}
WORDS = ["pi", "yarn", "trained", "auto", "text", "type", "factor", "a/b", "1e3", "~"]


def keys_in(node, above=""):
    """Yield the dotted key of every value in a raw config."""
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
        yield f"{above}{key}"
        if isinstance(inner, dict | list):
            yield from keys_in(inner, f"{above}{key}.")


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63, 1e308, 5e-324]),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
keys = st.one_of(st.sampled_from(WORDS), st.text(max_size=4), st.integers(-1, 3))
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(keys, v, max_size=3), max_leaves=6
)
given_keys = sorted(
    {key for path in SCHEMAS.values() for key in keys_in(yaml.safe_load(path.read_bytes()))}
)
overrides = st.builds(
    "{}={}".format,
    st.sampled_from(given_keys),
    values.map(lambda value: yaml.safe_dump(value, width=9999)),
)


@settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "40")),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(schema=st.sampled_from([*SCHEMAS]), changes=st.lists(overrides, max_size=3))
def test_any_override_loads_or_is_a_user_error(tmp_path_factory, schema, changes):
    try:
        config = load(schema, SCHEMAS[schema], changes)
    except UserError:
        return
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_text(dump(config), encoding="utf-8")
    assert load(schema, path) == config
