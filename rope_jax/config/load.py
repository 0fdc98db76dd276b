"""YAML files and `key=value` overrides to validated, frozen models, and back; files by name.

text → plain values (`parse_yaml`) → with overrides (`read_raw`) → a model (`validate`).
1e-4 is a number, as in YAML 1.2, and a date is text.
"""

import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel

from rope_jax.config.messages import Model, show_value, validated
from rope_jax.config.schema import TAG_KEYS
from rope_jax.errors import UserError, errors_in, file_errors

_PACKAGE = Path(__file__).parents[1]
_SUFFIX = ".yaml"


def load(schema: type[Model], path: Path | None, overrides: Sequence[str] = ()) -> Model:
    """Read `path` (None: start from nothing), apply the overrides, validate. Raises UserError."""
    return validate(schema, *read_raw(path, overrides))


def validate(schema: type[Model], raw: object, origin: str) -> Model:
    """Validate `raw`; a UserError names its origin, the first wrong key and what would be right."""
    with errors_in(f"{origin}: ", UserError):
        return validated(schema, raw)


def read_raw(path: Path | None, overrides: Sequence[str] = ()) -> tuple[dict[Any, Any], str]:
    """Return what `load` validates, and its origin, as errors name it. Raises UserError."""
    raw = {} if path is None else _read_yaml(path)
    given: set[str] = set()
    for override in overrides:
        _apply(raw, override, given)
    return raw, "overrides" if path is None else str(path)


def config_path(argument: str, kind: str = "") -> Path:
    """Return the file that an argument stands for.

    A file of that path comes first, then a config of the package: `demo` is its configs/demo.yaml,
    and so is the path configs/demo.yaml outside of the repository. kind: the folder of configs/
    for a command, such as "sweeps". UserError: no such name.
    """
    path, folder = Path(argument), config_folder()
    if path.is_file():
        return path
    if path.parts[:1] == (folder.name,) and (folder.parent / path).is_file():
        return folder.parent / path
    names = config_names(kind)
    if argument in names:
        return folder / kind / (argument + _SUFFIX)
    if path.exists() or path.suffix in (_SUFFIX, ".yml"):
        return path
    close = difflib.get_close_matches(argument, names, n=3, cutoff=0.5)
    there = f"there are {', '.join(name for name in names if '/' not in name)}"
    advice = f"did you mean {' or '.join(close)}?" if close else there
    raise UserError(f"{argument}: no such file, and no config has that name; {advice}")


def config_names(kind: str = "") -> list[str]:
    """Return the names of the package's configs of a kind, sorted; see `config_path`."""
    folder = config_folder() / kind
    files = (path.relative_to(folder).with_suffix("") for path in folder.rglob(f"*{_SUFFIX}"))
    others = ("sweeps/", "fits/", "grids/")  # of other commands than training
    names = sorted(name.as_posix() for name in files)
    return [name for name in names if kind or not name.startswith(others)]


def sweep_of(path: Path) -> str | None:
    """Return the name of the sweep that goes with a training config of the package, if any."""
    folder = config_folder()
    has_sweep = path.absolute().parent == folder and (folder / "sweeps" / path.name).is_file()
    return path.stem if has_sweep else None


def config_folder() -> Path:
    """Return the folder configs/: inside of an installed package, beside that of a repository."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def _read_yaml(path: Path) -> dict[Any, Any]:
    with file_errors(path):
        try:
            text = path.read_text("utf-8-sig")
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except UnicodeDecodeError as error:
            reason = f"is not UTF-8 (byte {error.start}); save it as UTF-8"
            raise UserError(f"{path}: {reason}") from None
    raw = parse_yaml(text, f"{path}:")
    if raw is not None and not isinstance(raw, dict):
        raise UserError(f"{path}: should contain `key: value` lines")
    return raw or {}


def _apply(raw: dict[Any, Any], override: str, given: set[str]) -> None:
    """Set the key of a `dotted.key=value` override, and create the sections above it.

    The value is read as YAML; a list's element is named by its number (`stages.0.steps=10`).
    Another `type` drops the section's other keys, except those `given` by earlier overrides.
    """
    key, equals, written = override.partition("=")
    if not equals or not key:
        raise UserError(f"{override}: not an override; write key=value (see --help)")
    value = parse_yaml(written, f"{key}: the value {show_value(written)} is")
    *sections, last = key.split(".")
    node: Any = raw
    for depth, name in enumerate(sections):
        part = _part(node, name, key, sections[:depth])
        if isinstance(node, dict) and node.get(part) is None:
            node[part] = {}
        node = node[part]
    part = _part(node, last, key, sections)
    if part in TAG_KEYS and node.get(part) != value:
        for name in [*node]:
            if ".".join([*sections, str(name)]) not in given:
                del node[name]
    node[part] = value
    given.add(key)


def _part(node: object, name: str, key: str, sections: list[str]) -> str | int:
    """Return one part of a dotted key as an index of `node`, which is at `sections`."""
    above = ".".join(sections)
    if isinstance(node, list):
        if name not in map(str, range(len(node))):
            raise UserError(f"{key}: {above} has no element {name}; it has {len(node)}, from 0")
        return int(name)
    if not isinstance(node, dict):
        raise UserError(f"{key}: {above} is {show_value(node)}, which has no keys")
    return name


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, which would take the last of several equal keys, and 1e-4 for text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {
        first: [
            (tag, regex) for tag, regex in resolvers if not tag.endswith((":timestamp", ":value"))
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [str(key.value) for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if keys[number] in keys[:number]:
                raise yaml.MarkedYAMLError(
                    problem=f"found duplicate key {keys[number]}", problem_mark=key.start_mark
                )
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, begin: str) -> Any:
    """Return the value of YAML text. UserError, with this beginning: it is not YAML."""
    mark = None
    try:
        return _unshared(yaml.load(text, _Loader))
    except yaml.MarkedYAMLError as error:
        problem, mark = str(error.problem).rstrip("."), error.problem_mark
    except yaml.YAMLError as error:
        problem = str(error).strip().splitlines()[0]
    # of PyYAML's constructors
    except (AttributeError, ValueError, LookupError, OverflowError, RecursionError):
        problem = "a value does not fit its tag, has thousands of digits, or is nested too deeply"
    line = f", line {mark.line + 1}" if mark else ""
    raise UserError(f"{begin} not valid YAML ({problem}{line})")


def _unshared(node: object) -> object:
    """Copy what aliases repeat, so that an override of one place leaves the others."""
    if isinstance(node, dict):
        return {key: _unshared(value) for key, value in node.items()}
    return [_unshared(value) for value in node] if isinstance(node, list) else node


def dump(config: BaseModel) -> str:
    """Return the resolved config as YAML, which loads as the same config."""
    return dump_yaml(config.model_dump(mode="json"))


def dump_yaml(content: object, **style: Any) -> str:
    """Return plain values as YAML text that `parse_yaml` reads as the same values."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **style)


def flow_yaml(value: object) -> str:
    """Return a plain value as one line of YAML, as for an override: {type: yarn, factor: 4.0}."""
    # inside a list: PyYAML ends the text of a value that stands by itself with a line "..."
    return dump_yaml([value], default_flow_style=True, width=math.inf).strip()[1:-1]


class _Dumper(yaml.SafeDumper):
    """Quotes text that `parse_yaml` would read as a number: PyYAML leaves 1e3 unquoted."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = text[:1].isalpha() and text.isprintable()
    style = None if is_plain else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)
