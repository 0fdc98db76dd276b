"""From a YAML file and `key=value` overrides to one validated, frozen model, and back."""

import difflib
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rope_jax.errors import UserError

Model = TypeVar("Model", bound=BaseModel)


def load(schema: type[Model], path: Path | None, overrides: Sequence[str] = ()) -> Model:
    """Read `path` (None: start from nothing), apply overrides in order, validate.

    An override is `dotted.key=value`, its value read as YAML; a list's element goes by number
    (`stages.0.steps=10`). Setting a `type` drops the old type's other keys, but for those that
    were overridden one by one before it.
    """
    merged = OmegaConf.create({}) if path is None else _read(path)
    given: set[str] = set()
    for text in overrides:
        key, value = _parse_override(text)
        _apply(merged, key, value, given)
        given.add(key)
    try:
        raw = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{path or 'overrides'}: {_first_line(error)}") from None
    return validate(schema, raw, str(path) if path else "overrides")


def validate(schema: type[Model], raw: Any, origin: str) -> Model:
    """`raw` as a `schema`; a UserError names the first wrong key and the nearest valid choice."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        # An unknown key is often the cause of another's absence: say it first. And of a union's
        # complaints, "not at least 1" tells a person more than "not the word auto".
        errors.sort(key=lambda e: (e["type"] != "extra_forbidden", _beside_the_point(e)))
        first = _path(schema, raw, errors[0])
        # a union's members each complain at one key, and its parents of what is missing then
        others = {tuple(_path(schema, raw, e)) for e in errors[1:]}
        others -= {tuple(first[:n]) for n in range(len(first) + 1)}
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"{origin}: {_explain(schema, raw, errors[0])}{more}") from None


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


def fields(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(dotted key, type, default, description) of every key, unions' choices one after another."""
    for name, field in schema.model_fields.items():
        key = prefix + name
        models = _models_in(field.annotation)
        if not models:
            default = "required" if field.is_required() else _shown(field.get_default())
            yield key, _type_name(field.annotation), default, field.description or ""
            continue
        if _is_list(field.annotation):
            key += ".N"
        if len(models) == 1:
            if field.description:
                yield key, "list" if key.endswith(".N") else "section", "", field.description
            yield from fields(models[0], key + ".")
            continue
        choices = {model.model_fields["type"].default: model for model in models}
        default_model = field.get_default(call_default_factory=False)
        default = getattr(default_model, "type", "" if field.default_factory else "required")
        if field.default is None:
            default = "null"
        about = field.description or "one of these, by its type:"
        yield key + ".type", "|".join(choices), default, about
        rows: dict[str, dict[str, tuple[str, str, str]]] = {}
        for choice, model in choices.items():
            for row in fields(model, key + "."):
                if row[0] != key + ".type":
                    rows.setdefault(row[0], {})[choice] = row[1:]
        for name, by_choice in rows.items():
            yield name, *_one_line(by_choice, len(choices))


def _one_line(by_choice: dict[str, tuple[str, str, str]], choices: int) -> tuple[str, str, str]:
    """A field that several types of a section share, listed once: (type, default, description)."""
    kind, default, about = list(by_choice.values())[-1]
    other = [f"{choice} {row[1]}" for choice, row in by_choice.items() if row[1] != default]
    only = "" if len(by_choice) == choices else f" [{', '.join(by_choice)}]"
    return kind, "; ".join([default, *other]), about + only


def _read(path: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a YAML file") from None
    except OSError as error:
        if error.errno is None:  # OmegaConf's own, for a file that holds one bare value
            raise UserError(f"{path}: should hold `key: value` lines") from None
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise UserError(f"{path}: {where}not valid YAML ({error.problem})") from None
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: not valid YAML ({_first_line(error)})") from None
    if not isinstance(loaded, DictConfig):
        raise UserError(f"{path}: should hold `key: value` lines")
    return loaded


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, _ = text.partition("=")
    if not equals or not key or key.startswith("-"):
        raise UserError(f"{text}: not an override; write key=value (see --help)")
    try:
        value = OmegaConf.from_dotlist([f"value={text[len(key) + 1 :]}"])
        return key, OmegaConf.to_container(value)["value"]  # type: ignore[call-overload,index]
    except (yaml.YAMLError, OmegaConfBaseException):
        raise UserError(f"{key}: its value {text[len(key) + 1 :]!r} is not valid YAML") from None


def _apply(merged: DictConfig, key: str, value: Any, given: set[str]) -> None:
    parent, _, leaf = key.rpartition(".")
    try:
        if parent and leaf == "type":
            current = OmegaConf.select(merged, parent)
            if isinstance(current, DictConfig) and current.get("type") != value:
                kept = {str(k): v for k, v in current.items() if f"{parent}.{k!s}" in given}
                OmegaConf.update(merged, parent, {**kept, "type": value}, merge=False)
                return
        OmegaConf.update(merged, key, value, merge=False, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{key}: cannot be set ({_first_line(error)})") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _explain(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> str:
    path = _path(schema, raw, error)
    key = ".".join(str(part) for part in path)
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key{_nearest(schema, path, raw)}"
    if error["type"] == "missing":
        return f"{key}: is required and was not given"
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        if error["type"] == "union_tag_not_found":
            return f"{key}.type: is required where other keys of {key} are given"
        tags = [tag.strip(" '") for tag in str(error["ctx"]["expected_tags"]).split(",")]
        given = error["ctx"]["tag"]
        close = difflib.get_close_matches(str(given), tags, n=1)
        near = f"; did you mean {close[0]}?" if close else ""
        return f"{key}.type: {given!r} is not one of {', '.join(tags)}{near}"
    if error["type"] == "model_type":
        return f"{key}: should hold keys of its own, not {_shown(error['input'])}"
    message = error["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:].replace("valid tuple", "list")
    if error["type"] == "value_error":  # a check of ours, which names the values itself
        return f"{key}: {message}" if key else message
    return f"{key}: {message}, not {_shown(error['input'])}"


def _path(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> list[str | int]:
    """pydantic's path to an error, without the names of the union members it passed through."""
    path: list[str | int] = []
    node, loc = raw, error["loc"]
    names_a_key = error["type"] in ("missing", "extra_forbidden")
    for place, part in enumerate(loc):
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if _is_seq(node) else ()
        if part in keys:
            node = node[part]
        elif place + 1 < len(loc) or not (names_a_key or _is_field(schema, part)):
            continue
        path.append(part)
    return path


def _is_seq(node: Any) -> bool:
    return isinstance(node, list | tuple)


def _is_field(schema: type[BaseModel], part: str | int) -> bool:
    return any(row[0].rpartition(".")[2] == part for row in fields(schema))


def _beside_the_point(error: ErrorDetails) -> bool:
    return error["type"] == "literal_error" and not isinstance(error["input"], str)


def _nearest(schema: type[BaseModel], path: Sequence[str | int], raw: Any) -> str:
    """The valid keys beside an unknown one, nearest first."""
    *parents, wrong = path
    models: list[type[BaseModel]] = [schema]
    node = raw
    for part in parents:
        node = node[part]
        if isinstance(part, int):
            continue
        found = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [model for annotation in found for model in _models_in(annotation)]
        kind = node.get("type") if isinstance(node, dict) else None
        models = [m for m in models if kind is None or _type_of(m) in (None, kind)] or models
    if parents and isinstance(parents[-1], int) and isinstance(node, dict) and "type" in node:
        models = [m for m in models if _type_of(m) == node["type"]] or models
    names = dict.fromkeys(name for model in models for name in model.model_fields)
    choices = [name for name in names if name != wrong]
    close = difflib.get_close_matches(str(wrong), choices, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {'.'.join([*map(str, parents), close[0]])}?"
    numbered = ".".join("N" if isinstance(part, int) else part for part in path)
    elsewhere = [row[0] for row in fields(schema) if row[0].rpartition(".")[2] == str(wrong)]
    if elsewhere and numbered not in elsewhere:  # else it belongs to another type of this section
        return f"; did you mean {elsewhere[0]}?"
    return f"; there are {', '.join(choices)}"


def _type_of(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("type")
    return field.default if field else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The config models that an annotation may hold, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (list, tuple)


def _type_name(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_type_name(inner) for inner in get_args(annotation))
    if _is_list(annotation):
        return f"list of {_type_name(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return "mapping of lists"
    if args := get_args(annotation):  # Literal
        return "|".join(str(value) for value in args)
    return annotation.__name__


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    text = (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
    )
    return text if len(text) <= 60 else text[:57] + "..."
