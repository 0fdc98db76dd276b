"""From a YAML file and `key=value` overrides to one validated, frozen model, and back."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    KeyValidationError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from pydantic import BaseModel

from rope_jax.config.explain import Model, validate
from rope_jax.config.keys import shown
from rope_jax.errors import UserError

_LARGEST = 2**18  # bytes of a config; what is larger is something else, and slow to read
_DEEPEST = 50  # YAML's sections in one another; PyYAML dies of some ten thousand
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(schema: type[Model], path: Path | None, overrides: Sequence[str] = ()) -> Model:
    """Read `path` (None: start from nothing), apply overrides in order, validate.

    An override is `dotted.key=value`, its value read as YAML; a list's element goes by number
    (`stages.0.steps=10`). Setting a `type` drops the old type's other keys, but for those that
    were overridden one by one before it.
    """
    raw = {} if path is None else _read(path)
    origin = "overrides" if path is None else str(path)
    given: set[str] = set()
    for text in overrides:
        key, value = _parse_override(text)
        _apply(raw, key, value, given)
        given.add(key)
    return validate(schema, _resolved(raw, origin), origin)


def dump(config: BaseModel) -> str:
    """The resolved config as YAML; feeding it back gives the same config."""
    content = _escaped(config.model_dump(mode="json"))
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Quotes text that OmegaConf would take for a number: PyYAML reads 1e3 as text."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text[:1].isalpha() else "'"
    ),
)


def _escaped(node: Any) -> Any:
    """`${` is OmegaConf's interpolation; text that holds one must say that it is text."""
    if isinstance(node, dict):
        return {key: _escaped(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_escaped(value) for value in node]
    return node.replace("${", "\\${") if isinstance(node, str) else node


def _read(path: Path) -> dict[Any, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a YAML file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({why})") from None
    if len(content) > _LARGEST:
        raise UserError(f"{path}: is larger than {_LARGEST:,} bytes; a config is a page of YAML")
    try:
        loaded = _parse(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        where = f"byte {error.start}"
        raise UserError(f"{path}: is not UTF-8 ({where}); give YAML, saved as UTF-8") from None
    except _NotYamlError as error:
        raise UserError(f"{path}: {error.where}not valid YAML ({error.problem})") from None
    if loaded is not None and not isinstance(loaded, dict):
        raise UserError(f"{path}: should hold `key: value` lines")
    return loaded or {}


class _NotYamlError(Exception):
    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.where = problem, "" if line is None else f"line {line}: "


def _parse(text: str) -> Any:
    """What YAML text says, interpolations not yet resolved."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise _NotYamlError("nested too deeply", event.start_mark.line + 1)
        # OmegaConf's reading of YAML: 1e3 is a number, a date is text, a key stands once
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
        return parsed["value"]  # type: ignore[call-overload,index]
    except yaml.MarkedYAMLError as error:
        problem = str(error.problem).rstrip(".")
        if "constructor for the tag" in problem:
            tag = problem.rpartition(" ")[2].strip("'").replace("tag:yaml.org,2002:", "!!")
            problem = f"the tag {tag} is not one of plain values"
        if "expansion exceeds" in problem:
            problem = "more than 10,000 values; is an alias, *name, repeated too often?"
        mark = error.problem_mark
        raise _NotYamlError(problem, mark.line + 1 if mark else None) from None
    except RecursionError:
        raise _NotYamlError("nested too deeply") from None
    except GrammarParseError:
        problem = "${ begins the value of another key, ${key}; as text it is written \\${"
        raise _NotYamlError(problem) from None
    except KeyValidationError:
        raise _NotYamlError("a key that is not text") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise _NotYamlError(_first_line(error)) from None
    except (ValueError, LookupError) as error:  # of a value with a tag, or of a very long number
        problem = _first_line(error).partition(";")[0]
        raise _NotYamlError(f"a value cannot be read: {problem}") from None


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key or key.startswith("-"):
        raise UserError(f"{text}: not an override; write key=value (see --help)")
    if "" in key.split("."):
        raise UserError(f"{text}: a part of the key is empty; write key=value or section.key=value")
    try:
        return key, _parse(value)
    except _NotYamlError as error:
        raise UserError(
            f"{key}: its value {shown(value)} is not valid YAML ({error.problem})"
        ) from None


def _apply(raw: dict[Any, Any], key: str, value: Any, given: set[str]) -> None:
    """Set one key of a raw config; sections on the way to it are made."""
    node: Any = raw
    parts = key.split(".")
    for place, name in enumerate(parts):
        above = ".".join(parts[:place])
        part: str | int = name
        if isinstance(node, list):
            numbers = [str(number) for number in range(len(node))]
            if name not in numbers:
                there = f"numbered {numbers[0]} to {numbers[-1]}" if len(node) > 1 else "number 0"
                there = f"the elements are {there}" if len(node) > 1 else f"the element is {there}"
                there = there if numbers else "it has no elements"
                raise UserError(f"{key}: {above} has no element {name}; {there}")
            part = int(name)
        elif not isinstance(node, dict):
            raise UserError(f"{key}: {above} is {shown(node)}, which has no keys of its own")
        if place + 1 < len(parts):
            below = node[part] if isinstance(part, int) else node.get(part)
            if below is None:
                below = node[part] = {}
            node = below
        elif part == "type" and node.get("type") != value:
            kept = {k: v for k, v in node.items() if f"{above}.{k!s}" in given}
            node.clear()
            node |= {**kept, "type": value}
        else:
            node[part] = value


def _resolved(raw: dict[Any, Any], origin: str) -> Any:
    """`raw` with the value of each interpolation in its place."""
    try:
        return OmegaConf.to_container(OmegaConf.create(raw), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = re.sub(r"\[(\w+)\]", r".\1", str(error.full_key or ""))
        message = re.sub(r"^\w+ raised while resolving interpolation: ", "", _first_line(error))
        message = message.strip('"')
        if isinstance(error, MissingMandatoryValue):
            message = "is ???, which stands for a value still to be given"
        raise UserError(f"{origin}: {key}{': ' * bool(key)}{message}") from None
    except RecursionError:
        raise UserError(f"{origin}: nested too deeply") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
