"""YAML text to plain values and back. 1e-4 is a number, as in YAML 1.2, and a date is text."""

import math
import re
from typing import Any, ClassVar

import yaml

_MAX_DEPTH = 50  # nested sections; PyYAML crashes at about ten thousand
_TEXT = "tag:yaml.org,2002:str"
_AS_TEXT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")


class NotYamlError(Exception):
    """Text that is not YAML. `where` is "line 3: ", or empty if the line is not known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.where = problem, "" if line is None else f"line {line}: "


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's loader, which would take the last of several equal keys, and 1e-4 for text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _AS_TEXT]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise NotYamlError(f"found duplicate key {key.value}", key.start_mark.line + 1)
            seen.add(str(key.value))
        super().flatten_mapping(node)
        # what << merges comes first and gives way to the mapping's own keys
        node.value = list({str(key.value): (key, value) for key, value in node.value}.values())


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str) -> Any:
    """Return the value of YAML text. Raises NotYamlError."""
    try:
        _check(text)
        return _unshared(yaml.load(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise NotYamlError(_problem(error), mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise NotYamlError(str(error).strip().splitlines()[0]) from None
    except RecursionError:  # an alias inside of what it repeats
        raise NotYamlError("nested too deeply") from None
    except AttributeError:  # PyYAML's reading of `!!timestamp x`
        raise NotYamlError("a value does not fit its tag") from None
    except (ValueError, LookupError, OverflowError) as error:  # as above, or thousands of digits
        problem = str(error).partition(";")[0]
        raise NotYamlError(f"a value cannot be read: {problem}") from None


def _check(text: str) -> None:
    """Raise NotYamlError for references, and for sections nested so deeply that PyYAML crashes."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1
        if depth > _MAX_DEPTH:
            raise NotYamlError("nested too deeply", line)
        if isinstance(event, yaml.ScalarEvent) and "${" in event.value:
            raise NotYamlError("references, ${key}, are not supported; write the value", line)


def _unshared(node: Any) -> Any:
    """Copy what aliases repeat, so that an override of one place leaves the others."""
    if isinstance(node, dict):
        return {key: _unshared(value) for key, value in node.items()}
    return [_unshared(value) for value in node] if isinstance(node, list) else node


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem).rstrip(".")
    if "constructor for the tag" in problem:
        tag = problem.rpartition(" ")[2].strip("'").replace("tag:yaml.org,2002:", "!!")
        return f"the tag {tag} is not allowed; values must be plain"
    return problem


def dump_yaml(content: Any) -> str:
    """Return plain values as YAML text that `parse_yaml` reads as the same values."""
    return _dump(content)


def flow_yaml(value: Any) -> str:
    """Return a plain value as one line of YAML, as for an override: {type: yarn, factor: 4.0}."""
    # inside a list: PyYAML ends the text of a value that stands by itself with a line "..."
    return _dump([value], default_flow_style=True, width=math.inf).strip()[1:-1]


def _dump(content: Any, **style: Any) -> str:
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **style)
    return text if text.isascii() else "".join(map(_visible, text))


class _Dumper(yaml.SafeDumper):
    """Quotes text that `parse_yaml` would read as a number: PyYAML leaves 1e3 unquoted."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text[:1].isalpha() else "'"
    if not text.isprintable():  # only double quotes allow the escapes of `_visible`
        style = '"'
    return dumper.represent_scalar(_TEXT, text, style=style)


_Dumper.add_representer(str, _represent)


def _visible(character: str) -> str:
    """Escape what PyYAML writes as it is although a terminal may obey it, such as U+202E."""
    if character.isprintable() or character == "\n":
        return character
    return f"\\U{ord(character):08X}"
