"""Configuration of the documentation site, which `make docs` builds.

The pages are the Markdown files of this folder, which GitHub shows as well. Those of the library
come from docstrings. Neither building nor reading the site needs a network.
"""

import ast
import functools
import importlib
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from math_core import LatexToMathML
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)
DOCS = Path(__file__).parent
PAGES_ELSEWHERE = {"../README.md": "index.md", "../results/README.md": "results.md"}
sys.path[:0] = [str(DOCS.parent), str(DOCS)]  # this repository's package, and plain_math
pieces = importlib.import_module("plain_math").pieces

project = "rope-jax"
author = "The rope-jax authors"
html_show_copyright = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = "rope-jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # ```math, as on GitHub
myst_dmath_allow_space = False
myst_heading_anchors = 4
highlight_language = "text"  # of a block that names none: commands, formulas

add_module_names = False
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("builder-inited", find_constants)
    app.connect("source-read", read_page)
    app.connect("doctree-read", typeset)
    app.connect("env-check-consistency", check_names)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-process-docstring", process_docstring)


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the README on the first page, and make links to files outside of this folder work."""
    folder = DOCS
    if page == "index":
        folder = DOCS.parent
        source[0] = (folder / "README.md").read_text(encoding="utf-8") + source[0]
    elif page == "results":
        folder = DOCS.parent / "results"
        source[0] = (folder / "README.md").read_text(encoding="utf-8")

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        path = os.path.relpath(folder / target, DOCS)
        path = PAGES_ELSEWHERE.get(path, path)
        if path.startswith("..") and path.endswith(".md"):
            return f"{{download}}`{text} <{path}>`"
        return f"[{text}]({path}{anchor or ''})"

    source[0] = re.sub(r"\[([^]]*)\]\(([\w./-]+\.\w+)(#[\w-]+)?\)", link, source[0])


def typeset(app: Sphinx, doctree: nodes.document) -> None:
    """Typeset mathematics in plain text, link papers of arXiv, and keep numbers on one line."""
    verbatim = nodes.literal, nodes.FixedTextElement, nodes.title, nodes.math
    for text in list(doctree.findall(nodes.Text)):
        parents = [text.parent]
        while parents[-1] is not None:
            parents.append(parents[-1].parent)
        if any(isinstance(each, (*verbatim, addnodes.desc_signature)) for each in parents):
            continue
        cell = next((each for each in parents if isinstance(each, nodes.entry)), None)
        if cell is not None and re.fullmatch(r"[\d\s±+−%.,→[\]-]+", cell.astext()):
            text.parent.replace(text, nodes.Text(re.sub(r"(?<!],) ", "\xa0", text)))
            continue
        found = list[nodes.Node]()
        for part in re.split(r"(arXiv \d{4}\.\d{5})", text):
            if part.startswith("arXiv ") and not isinstance(text.parent, nodes.reference):
                address = f"https://arxiv.org/abs/{part.removeprefix('arXiv ')}"
                found.append(nodes.reference(part, part.replace(" ", "\xa0"), refuri=address))
                continue
            for shown, latex in pieces(part):
                mark = re.match("[.,;:)]*", shown)
                if found and isinstance(found[-1], nodes.math) and mark and mark[0]:
                    ends = found.pop(), nodes.Text(mark[0])  # no line begins with a full stop
                    found.append(nodes.inline("", "", *ends, classes=["nowrap"]))
                    shown = shown[mark.end() :]
                found.append(nodes.math(latex, latex) if latex else nodes.Text(shown))
        text.parent.replace(text, found)


def check_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn, which fails the build, of public names that the pages of the library lack."""
    shown = {name for name, _ in env.domains.python_domain.objects.items()}
    for module in public_modules():
        for name in module.__all__:
            if f"{module.__name__}.{name}" not in shown:
                logger.warning("%s.%s is not on its page", module.__name__, name)


def visit_math(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write mathematics as MathML, which browsers show without a script."""
    is_block = isinstance(node, nodes.math_block)
    mathml = LatexToMathML().convert_with_local_state(node.astext(), displaystyle=is_block)
    self.body.append(f'<div class="math">{mathml}</div>' if is_block else mathml)
    raise nodes.SkipNode


def skip_member(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool:
    """Leave out what has no docstring, and fields, which a class's signature and text show."""
    if what != "class" or skip:
        return skip
    is_code = inspect.isroutine(obj) or isinstance(obj, property | functools.cached_property)
    return not (is_code and inspect.getdoc(obj))


def process_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Show annotations and defaults as the source has them, since evaluated ones are long."""
    node = parsed(obj)
    if isinstance(node, ast.ClassDef):
        written = next((n for n in node.body if getattr(n, "name", "") == "__init__"), None)
        if written is None:
            arguments = [f"{key}: {kind}{default}" for key, kind, default, _ in fields(node)]
            return f"({', '.join(arguments)})", ""
        node = written
        node.returns = None
    if not isinstance(node, ast.FunctionDef):
        return None
    node.args.args = [given for given in node.args.args if given.arg not in ("self", "cls")]
    return f"({ast.unparse(node.args)})", ast.unparse(node.returns) if node.returns else ""


def process_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn a docstring into reStructuredText."""
    node = parsed(obj)
    if isinstance(node, ast.ClassDef):
        lines += ["", *(f"{key}: {about}" for key, _, _, about in fields(node) if about)]
    names = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)} if node else set()
    if isinstance(node, ast.ClassDef):
        names |= {key for key, *_ in fields(node)}
    lines[:] = as_rest(lines, names)


def parsed(obj: Any) -> ast.stmt | None:
    """Return the source of a class or function, quotes around annotations removed."""
    obj = inspect.unwrap(getattr(obj, "__func__", obj))
    if not (inspect.isclass(obj) or inspect.isfunction(obj)):
        return None
    tree = ast.parse(textwrap.dedent(inspect.getsource(obj)))
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            quoted = getattr(node, field, None)
            if isinstance(quoted, ast.Constant) and isinstance(quoted.value, str):
                setattr(node, field, ast.Name(quoted.value))
    return tree.body[0]


def fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, annotation, default and explanation of each public field of a class."""
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign):
            continue
        key, kind = ast.unparse(statement.target), ast.unparse(statement.annotation)
        if key.startswith("_") or kind.startswith("ClassVar"):
            continue
        about, value = "", statement.value
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            about = " ".join(following.value.value.split())
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Field", "field"):
            given = {word.arg: word.value for word in value.keywords}
            if isinstance(given.get("description"), ast.Constant):
                about = ast.literal_eval(given["description"])
            value = value.args[0] if value.args else None
        yield key, kind, f" = {ast.unparse(value)}" if value else "", about


def public_modules() -> list[ModuleType]:
    """Return the modules that library.md lists."""
    listed = (DOCS / "library.md").read_text("utf-8")
    names = re.findall(r"^   (rope_jax\S*)$", listed, re.MULTILINE)
    return [importlib.import_module(name) for name in names]


def find_constants(app: Sphinx) -> None:
    """Tell autodoc what is written about constants that a public module imports from others."""
    imported = public_modules()
    for module in imported:  # autodoc sees no name that is loaded on first use
        vars(module).update((name, getattr(module, name)) for name in module.__all__)
    analyzers = {
        name: ModuleAnalyzer.for_module(name)
        for name in sys.modules
        if name.startswith("rope_jax.")
    }
    written = {
        key: about
        for analyzer in analyzers.values()
        for (scope, key), about in analyzer.find_attr_docs().items()
        if not scope
    }
    for module in imported:
        for name in written.keys() & set(module.__all__):
            about = [*written[name], "", ":meta hide-value:", ""]
            analyzers[module.__name__].attr_docs["", name] = about


def as_rest(lines: list[str], names: set[str]) -> Iterator[str]:
    """Yield a docstring's lines in reStructuredText.

    A line that begins with one or several of `names`, or with the name of an error, and a colon is
    an item of a list. An indented paragraph is code.
    """
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        block, is_item = paragraph.splitlines(), False
        if all(line.startswith("    ") for line in block):
            yield from (".. code-block:: python", "   :force:", "", *block, "")
            continue
        for line in map(str.strip, block):
            item = re.match(r"(\w+(?:, \w+)*)(?:\(.*?\))?(?: -> [^:]*)?: +", line)
            if item and all(w in names or w.endswith("Error") for w in item[1].split(", ")):
                yield from () if is_item else ("",)
                is_item = True
                yield f"* ``{item[0].rstrip(': ')}``: {inline(line[item.end() :])}"
            else:
                yield "  " * is_item + inline(line)
        yield ""


def inline(text: str) -> str:
    """Return text with code between backticks, and nothing else, as markup."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*|\\]|_\b)", r"\\\1", part) for part in parts[::2]]
    return "``".join(parts)
