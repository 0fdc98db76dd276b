"""The page docs/api.md, made from the source of the public modules: see `api_page`.

Names, annotations and defaults are shown as they are written there, so nothing is imported.
"""

import ast
import functools
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Every name in the `__all__` of these is listed.
MODULES = (
    "rope_jax.rope",
    "rope_jax.rope.hf",
    "rope_jax.rope.forms",
    "rope_jax.evaluation",
    "rope_jax.positions.maps",
    "rope_jax.positions.encodings",
    "rope_jax.positions.mask",
    "rope_jax.positions.bands",
    "rope_jax.positions.interaction",
    "rope_jax.attention",
    "rope_jax.attention.blockwise",
    "rope_jax.blocks.base",
    "rope_jax.protocols",
    "rope_jax.config.strategy",
)
HEAD = """\
# The library

What can be imported from Python. `make generate` writes this page from the docstrings. The
package has type annotations (`py.typed`). An annotation such as `Float[Array, "B T N H"]` gives an
array's type and the names of its axes: B batch, T queries, S keys, N heads, K key-value heads, H
head dim, L layers; an axis marked # may have size 1.

[tutorial.md](tutorial.md) trains, sweeps and draws; [scalings.md](scalings.md),
[positions.md](positions.md) and [protocols.md](protocols.md) explain what the numbers mean.

"""
_LINE = 88  # of a signature; the page is read in a browser, beside a margin


class Definition(NamedTuple):
    """Where a public name is defined."""

    module: str
    node: ast.stmt


def api_page() -> str:
    """Return docs/api.md: for each public name its signature, docstring, fields and methods.

    SystemExit: a name has neither a docstring nor a comment above it.
    """
    contents = [f"* [`{module}`](#{_anchor(module)}): {_summary(module)}" for module in MODULES]
    sections = [_module_section(module) for module in MODULES]
    return HEAD + "\n".join(contents) + "\n\n" + "\n".join(sections)


def public_names(module: str) -> list[str]:
    """Return a module's `__all__`."""
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise SystemExit(f"{module} has no __all__")


def find(module: str, name: str) -> Definition:
    """Return where a name that can be imported from a module is defined.

    SystemExit: there is no such name.
    """
    for node in _statements(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith("rope_jax"):
                    return find(node.module, alias.name)
        elif name in _defined(node):
            return Definition(module, node)
    raise SystemExit(f"{module} has no {name}")


def _module_section(module: str) -> str:
    """Return the section of one module."""
    parts = [f"## {module}", *_text(_docstring(_tree(module)), ())]
    for name in public_names(module):
        parts += _entry(name, *find(module, name))
    return "\n\n".join(parts) + "\n"


def _entry(name: str, module: str, node: ast.stmt) -> Iterator[str]:
    """Yield the blocks of one name's entry."""
    yield f"### {name}"
    if isinstance(node, ast.FunctionDef):
        yield _code(_signature(name, node))
        yield from _text(_docstring(node), _parameters(node))
    elif isinstance(node, ast.ClassDef):
        fields = list(_fields(node))
        made = _method(node, "__init__")
        yield _code(_signature(name, made) if made else _fields_signature(name, fields))
        yield from _text(_docstring(node), [field.name for field in fields])
        explained = [field for field in fields if field.about]
        if explained:
            yield "\n".join(f"* `{field.name}`: {_escaped(field.about)}" for field in explained)
        if methods := list(_methods(node)):
            yield "Methods and properties:"
            yield "\n".join(methods)
    else:
        about = _constant(module, node)
        if not about:
            raise SystemExit(f"{module}: {name} has neither a docstring nor a comment above it")
        yield from _text(about, ())


class Field(NamedTuple):
    """A field of a class: how it is written in the signature, and what its docstring says."""

    name: str
    written: str
    about: str


def _fields(node: ast.ClassDef) -> Iterator[Field]:
    """Yield the public fields of a dataclass, a named tuple or a model."""
    for place, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, annotation = statement.target.id, ast.unparse(statement.annotation)
        if name.startswith("_") or annotation.startswith("ClassVar"):
            continue
        about, value = _literal_after(node.body, place), statement.value
        default = "" if value is None else f" = {ast.unparse(value)}"
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Field", "field"):
            default = f" = {ast.unparse(value.args[0])}" if value.args else ""
            given = {word.arg: word.value for word in value.keywords}
            if isinstance(given.get("description"), ast.Constant):
                about = ast.literal_eval(given["description"])
        yield Field(name, f"{name}: {annotation}{default}", about)


def _methods(node: ast.ClassDef) -> Iterator[str]:
    """Yield a line for each public method and property that has a docstring."""
    for method in node.body:
        if not isinstance(method, ast.FunctionDef) or method.name.startswith("_"):
            continue
        about = _docstring(method).partition("\n\n")[0].replace("\n", " ")
        if not about:
            continue
        is_property = any("property" in ast.unparse(d) for d in method.decorator_list)
        names = [name for name in _parameters(method) if name not in ("self", "cls")]
        called = method.name if is_property else f"{method.name}({', '.join(names)})"
        yield f"* `{called}`: {_escaped(about)}"


def _signature(name: str, node: ast.FunctionDef) -> str:
    """Return a function's signature, on several lines if it is long."""
    arguments, written = node.args, list[str]()
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    for place, argument in enumerate(positional):
        default = arguments.defaults[place - without_default] if place >= without_default else None
        written.append(_argument(argument, default))
    if arguments.vararg:
        written.append("*" + _argument(arguments.vararg, None))
    elif arguments.kwonlyargs:
        written.append("*")
    for argument, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        written.append(_argument(argument, given))
    if arguments.kwarg:
        written.append("**" + _argument(arguments.kwarg, None))
    written = [text for text in written if text not in ("self", "cls")]
    returns = "" if node.returns is None else f" -> {_annotation(node.returns)}"
    return _call(name, written, "" if node.name == "__init__" else returns)


def _fields_signature(name: str, fields: Sequence[Field]) -> str:
    return _call(name, [field.written for field in fields], "")


def _call(name: str, arguments: Sequence[str], returns: str) -> str:
    """Return a call with its arguments, each on its own line if one is not enough."""
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= _LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){returns}"])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    """Return a parameter with its annotation and default."""
    text = argument.arg
    if argument.annotation is not None:
        text += f": {_annotation(argument.annotation)}"
    if default is None:
        return text
    return f"{text}{' = ' if argument.annotation else '='}{ast.unparse(default)}"


def _annotation(node: ast.expr) -> str:
    """Return an annotation; one that is quoted because of an import, without its quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node)


def _parameters(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    several = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in several] + [
        argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument
    ]


def _text(docstring: str, names: Collection[str]) -> Iterator[str]:
    """Yield a docstring's paragraphs as Markdown.

    names: of parameters or fields. A line that begins with one or several of them, or with the
    name of an error, and a colon is an item of a list. An indented paragraph is code.
    """
    for paragraph in re.split(r"\n\s*\n", docstring.strip("\n")):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            yield _code("\n".join(line[4:] for line in lines))
            continue
        blocks: list[str] = []
        for line in lines:
            item = re.match(r"((\w+(?:, \w+)*)(?:\(.*?\))?(?: -> [^:]*)?): +(?=\S)", line)
            is_item = item is not None and all(
                word in names or word.endswith("Error") for word in item[2].split(", ")
            )
            if item is not None and is_item:
                blocks.append(f"* `{item[1]}`: {_escaped(line[item.end() :])}")
            elif blocks and not (blocks[-1].startswith("* ") and line.endswith(":")):
                blocks[-1] += " " + _escaped(line.strip())
            else:
                blocks.append(_escaped(line.strip()))
        for is_list, several in itertools.groupby(blocks, lambda block: block.startswith("* ")):
            yield ("\n" if is_list else "\n\n").join(several)


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is; what is between backticks already is."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _summary(module: str) -> str:
    """Return the first sentence of a module's docstring, without the full stop."""
    return _escaped(_docstring(_tree(module)).partition("\n")[0].partition(". ")[0].rstrip("."))


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _constant(module: str, node: ast.stmt) -> str:
    """Return the string after an assignment, or the comment above it."""
    for body in _bodies(_tree(module)):
        if node in body and (about := _literal_after(body, body.index(node))):
            return about
    lines = _source(module).splitlines()[: node.lineno - 1]
    comment = []
    while lines and lines[-1].lstrip().startswith("# "):
        comment.append(lines.pop().lstrip().removeprefix("# "))
    return "\n".join(reversed(comment))


def _literal_after(body: Sequence[ast.stmt], place: int) -> str:
    """Return the text of the string that follows a statement, "" if none does."""
    following = body[place + 1] if place + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return " ".join(str(following.value.value).split())
    return ""


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {ast.unparse(target) for target in node.targets}
    return {ast.unparse(node.target)} if isinstance(node, ast.AnnAssign) else set()


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    methods = (statement for statement in node.body if isinstance(statement, ast.FunctionDef))
    return next((method for method in methods if method.name == name), None)


def _bodies(tree: ast.Module) -> list[list[ast.stmt]]:
    """Return the module's statements and those under `if TYPE_CHECKING`."""
    return [tree.body, *(node.body for node in tree.body if isinstance(node, ast.If))]


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    for body in _bodies(tree):
        yield from body


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


@functools.cache
def _source(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")
