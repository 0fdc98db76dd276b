"""From a YAML file and `key=value` overrides to one validated, frozen model, and back."""

import difflib
import functools
import re
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    KeyValidationError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rope_jax.errors import UserError

Model = TypeVar("Model", bound=BaseModel)

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


def validate(schema: type[Model], raw: Any, origin: str) -> Model:
    """`raw` as a `schema`; a UserError names the first wrong key and the nearest valid choice."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        # An unknown key is often the cause of another's absence: say it first.
        errors.sort(key=lambda e: e["type"] not in ("extra_forbidden", "invalid_key"))
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


def fields(schema: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """(dotted key, type, default, description) of every key.

    The keys of a union's choices are merged, and listed where such a union first stands.
    """
    return _fields(schema, "", {})


def _fields(
    schema: type[BaseModel], prefix: str, listed: dict[frozenset[str], str]
) -> Iterator[tuple[str, str, str, str]]:
    """listed: the key at which a union of these types has been listed."""
    for name, field in schema.model_fields.items():
        key = prefix + name
        models = _models_in(field.annotation)
        if not models:
            default = "required" if field.is_required() else _default(field.get_default())
            yield key, _type_name(field.annotation), default, field.description or ""
            continue
        if _is_list(field.annotation):
            key += ".N"
        if len(models) == 1:
            if field.description:
                yield key, "list" if key.endswith(".N") else "section", "", field.description
            yield from _fields(models[0], key + ".", listed)
            continue
        choices = {model.model_fields["type"].default: model for model in models}
        default_model = field.get_default(call_default_factory=False)
        default = getattr(default_model, "type", "" if field.default_factory else "required")
        if field.default is None:
            default = "null"
        about = field.description or "one of these, by its type:"
        place = next((listed[types] for types in listed if types >= choices.keys()), None)
        if place is not None:
            yield key + ".type", "|".join(choices), default, f"{about}; keys as of {place}"
            continue
        yield key + ".type", "|".join(choices), default, about
        listed[frozenset(choices)] = key
        rows: dict[str, dict[str, tuple[str, str, str]]] = {}
        inside: dict[frozenset[str], str] = {}
        for choice, model in choices.items():
            below = dict(listed)  # for each choice anew: they share the rows that are merged
            for row in _fields(model, key + ".", below):
                if row[0] != key + ".type":
                    rows.setdefault(row[0], {})[choice] = row[1:]
            inside |= below
        listed |= inside
        for name, by_choice in rows.items():
            yield name, *_one_line(by_choice, len(choices))


def _one_line(by_choice: dict[str, tuple[str, str, str]], choices: int) -> tuple[str, str, str]:
    """A field that several types of a section share, listed once: (type, default, description)."""
    only = "" if len(by_choice) == choices else f" [{', '.join(by_choice)}]"
    kind, default, about = (
        _merged({choice: row[column] for choice, row in by_choice.items()}) for column in range(3)
    )
    return kind, default, about + only


def _merged(by_choice: dict[str, str]) -> str:
    """What most choices have, then what others have instead."""
    sharing: dict[str, list[str]] = {}
    for choice, text in by_choice.items():
        sharing.setdefault(text, []).append(choice)
    most = max(sharing, key=lambda text: len(sharing[text]))
    others = [f"{', '.join(c)}: {text}" for text, c in sharing.items() if text != most]
    return "; ".join([most, *others])


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
            f"{key}: its value {_shown(value)} is not valid YAML ({error.problem})"
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
            raise UserError(f"{key}: {above} is {_shown(node)}, which has no keys of its own")
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


_SHOULD = {
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "dict_type": "should be a list or a mapping",
    "too_short": "should have at least one element",
    # the one pattern there is: a folder's name
    "string_pattern_mismatch": "should be of letters, digits and ._=+-, a letter or digit first",
    "model_type": "should hold keys of its own",
    "model_attributes_type": "should hold keys of its own",
}


def _explain(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> str:
    kind, given = error["type"], error["input"]
    path = _path(schema, raw, error)
    key = ".".join(str(part) or "''" for part in path)
    if kind == "extra_forbidden":
        return f"{key}: unknown key{_nearest(schema, path, raw)}"
    if kind == "invalid_key":
        path = _path(schema, raw, error | {"loc": error["loc"][:-1]})  # type: ignore[arg-type]
        return f"{'.'.join([*map(str, path), _shown(given)])}: is not text; every key is"
    if error["loc"][-1:] == ("[key]",):  # of a mapping whose keys are listed
        names = re.findall(r"'(\w+)'", str(error["ctx"]["expected"]))
        close = difflib.get_close_matches(str(given), names, n=1)
        near = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        return f"{key}: unknown key; {near}"
    if kind == "missing":
        return f"{key}: is required and was not given"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = _types_at(schema, path, raw)
        if kind == "union_tag_not_found":
            return f"{key}.type: is required; it is one of {', '.join(tags)}"
        tag = given["type"]
        close = _close_types(tag, tags) if isinstance(tag, str) else []
        near = f"; did you mean {' or '.join(close)}?" if close else ""
        return f"{key}.type: {_shown(tag)} is not one of {', '.join(tags)}{near}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = _SHOULD.get(kind, message[:1].lower() + message[1:])
    if kind == "value_error":  # a check of ours, which names the values itself
        keys = {name for model in _models_at(schema, path, raw) for name in model.model_fields}
        begins = re.match(r"(\w+)(\.\w+)*(, \w+)*: ", message)
        between = "." if begins and begins[1] in keys else ": "
        return f"{key}{between}{message}" if key else message
    return f"{key}: {message}, not {_shown(given)}{_hint(schema, path, raw, error)}"


def _hint(schema: type[BaseModel], path: list[str | int], raw: Any, error: ErrorDetails) -> str:
    """How a value of the wrong kind was probably meant."""
    kind, given, key = error["type"], error["input"], ".".join(map(str, path))
    if kind == "string_type" and isinstance(given, int | float):
        return f"""; in quotes it is text: "{key}='...'" on a command line, '...' in a file"""
    if kind in ("int_type", "float_type") and isinstance(given, str) and _is_number(given):
        return "; without quotes it is a number"
    if kind == "float_type" and isinstance(given, int) and not isinstance(given, bool):
        return ", which is too large for one"
    if kind in ("tuple_type", "list_type") and isinstance(given, str):
        return f"; a list of one is [{_cut(given)}]"
    if kind == "tuple_type" and isinstance(given, dict) and "".join(map(str, given)).isdecimal():
        return f"; to change one element by number, give the whole list first, {key}=[...]"
    if kind == "model_attributes_type" and isinstance(given, str):
        close = difflib.get_close_matches(given, _types_at(schema, path, raw), n=1)
        return f"; did you mean {key}.type={close[0]}?" if close else ""
    return ""


def _close_types(tag: str, tags: Sequence[str]) -> list[str]:
    """The types that a wrong one is the beginning of, or else the one it is most like."""
    begun = [known for known in tags if tag and known.startswith(tag)]
    return begun or difflib.get_close_matches(tag, tags, n=1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _path(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> list[str | int]:
    """pydantic's path to an error, without the names of the union members it passed through."""
    path: list[str | int] = []
    node, loc = raw, error["loc"]
    names_a_key = error["type"] in ("missing", "extra_forbidden")
    for place, part in enumerate(loc):
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if _is_seq(node) else ()
        if part in keys:
            node = node[part]
        elif isinstance(part, int) or part in _names(schema):
            node = None  # of a value that `raw` does not hold: it was read from a file
        elif place + 1 < len(loc) or not names_a_key:
            continue
        path.append(part)
    return path


def _is_seq(node: Any) -> bool:
    return isinstance(node, list | tuple)


@functools.cache
def _names(schema: type[BaseModel]) -> frozenset[str]:
    """The last part of every key."""
    return frozenset(key.rpartition(".")[2] for key, *_ in fields(schema))


def _models_at(schema: type[BaseModel], path: Sequence[str | int], raw: Any) -> list[Any]:
    """The config models that may stand at a place, whatever its type."""
    models, node = [schema], raw
    for part in path:
        kind = node.get("type") if isinstance(node, dict) else None
        node = node[part]
        if isinstance(part, int):
            continue
        models = _of_type(models, kind)
        found = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [model for annotation in found for model in _models_in(annotation)]
    return models


def _types_at(schema: type[BaseModel], path: Sequence[str | int], raw: Any) -> list[str]:
    return [kind for kind in map(_type_of, _models_at(schema, path, raw)) if kind]


def _of_type(models: list[type[BaseModel]], kind: Any) -> list[type[BaseModel]]:
    return [m for m in models if kind is None or _type_of(m) in (None, kind)] or models


def _nearest(schema: type[BaseModel], path: Sequence[str | int], raw: Any) -> str:
    """The valid keys beside an unknown one, nearest first."""
    *parents, wrong = path
    node = raw
    for part in parents:
        node = node[part]
    every = _models_at(schema, parents, raw)
    here = {
        name: f for m in _of_type(every, node.get("type")) for name, f in m.model_fields.items()
    }
    for name, field in here.items():
        if any(wrong in model.model_fields for model in _models_in(field.annotation)):
            below = f"{name}.N" if _is_list(field.annotation) else name
            return f"; did you mean {'.'.join([*map(str, parents), below, str(wrong)])}?"
    owners = [str(_type_of(model)) for model in every if wrong in model.model_fields]
    if owners:
        return f"; it goes with {'.'.join(map(str, parents))}.type {' or '.join(owners)}"
    close = difflib.get_close_matches(str(wrong), here, n=1)
    if close:
        return f"; did you mean {'.'.join([*map(str, parents), close[0]])}?"
    elsewhere = [key for key, *_ in fields(schema) if key.rpartition(".")[2] == str(wrong)]
    if elsewhere:
        place = ["N" if isinstance(part, int) else part for part in parents]
        around = [key for key in elsewhere if key.split(".")[:-1] == place[: key.count(".")]]
        return f"; did you mean {max(around, key=len, default=elsewhere[0])}?"
    return f"; there are {', '.join(here)}"


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
    """A value as a reader of YAML knows it, and not at length."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        return _cut(repr(value))
    except ValueError:  # Python writes no number of more than 4300 digits
        return "a number of thousands of digits"


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else _shown(value)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
