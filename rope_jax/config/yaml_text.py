"""YAML text to plain values and back, as OmegaConf reads it: 1e3 is a number, a date is text."""

import math
import re
from typing import Any

import yaml

_MAX_DEPTH = 50  # nested sections; PyYAML crashes at about ten thousand
_MAX_VALUES = 30_000  # takes half a second; OmegaConf allows 10,000, but counts them late
# OmegaConf's grammar takes milliseconds for each reference, ${key}, in a value.
_MAX_REFERENCES = 20
_MAX_WITH_REFERENCES = 1000
# PyYAML reads 1:30 in base 60, and takes seconds for 1:1:1:….
_LONG_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*:[0-9_:.]{999,}")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class NotYamlError(Exception):
    """Text that is not YAML. `where` is "line 3: ", or empty if the line is not known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.where = problem, "" if line is None else f"line {line}: "


def parse_yaml(text: str) -> Any:
    """Return the value of YAML text, with its interpolations unresolved.

    Raises NotYamlError.
    """
    from omegaconf import OmegaConf  # takes 0.15 s, which --help need not wait for
    from omegaconf.errors import GrammarParseError, KeyValidationError, OmegaConfBaseException

    try:
        _check_size(text)
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
        return parsed["value"]  # type: ignore[call-overload,index]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise NotYamlError(_problem(error), mark.line + 1 if mark else None) from None
    except RecursionError:
        raise NotYamlError("nested too deeply") from None
    except GrammarParseError:
        problem = "${ starts a reference to another key, ${key}; for the text ${ write \\${"
        raise NotYamlError(problem) from None
    except KeyValidationError:
        raise NotYamlError("a key that is not text") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise NotYamlError(first_line(error)) from None
    except (ValueError, LookupError, OverflowError) as error:  # a value with a tag, a long number
        problem = first_line(error).partition(";")[0]
        raise NotYamlError(f"a value cannot be read: {problem}") from None
    except AttributeError:  # PyYAML's reading of `!!timestamp x`
        raise NotYamlError("a value does not fit its tag") from None


def dump_yaml(content: Any) -> str:
    """Return plain values as YAML text that `parse_yaml` reads as the same values."""
    text = yaml.dump(
        escape_references(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True
    )
    return text if text.isascii() else "".join(map(_visible, text))


def flow_yaml(value: Any) -> str:
    """Return a plain value as one line of YAML, as for an override: {type: yarn, factor: 4.0}.

    `parse_yaml` reads it as the same value.
    """
    # inside a list: PyYAML ends the text of a value that stands by itself with a line "..."
    text = yaml.dump(
        [escape_references(value)],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=math.inf,
    )
    text = text.strip()[1:-1]
    return text if text.isascii() else "".join(map(_visible, text))


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem).rstrip(".")
    if "constructor for the tag" in problem:
        tag = problem.rpartition(" ")[2].strip("'").replace("tag:yaml.org,2002:", "!!")
        return f"the tag {tag} is not allowed; values must be plain"
    if "expansion exceeds" in problem:
        return "more than 10,000 values; is an alias, *name, repeated too often?"
    return problem


class _Dumper(yaml.SafeDumper):
    """Quotes text that OmegaConf would read as a number: PyYAML leaves 1e3 unquoted."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text[:1].isalpha() else "'"
    if not text.isprintable():  # only double quotes allow the escapes of `_visible`
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def _visible(character: str) -> str:
    """Escape what PyYAML writes as it is although a terminal may obey it, such as U+202E."""
    if character.isprintable() or character == "\n":
        return character
    return f"\\U{ord(character):08X}"


def escape_references(node: Any) -> Any:
    """Return plain values with every `${` escaped: unescaped, it starts a reference."""
    if isinstance(node, dict):
        return {key: escape_references(value) for key, value in node.items()}
    if isinstance(node, list):
        return [escape_references(value) for value in node]
    # OmegaConf reads two backslashes before `${` as one, and an odd one as its escape
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", node) if isinstance(node, str) else node


def _check_size(text: str) -> None:
    """NotYamlError for what would take long to read, or crash: see the limits above."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        values += isinstance(event, yaml.NodeEvent)
        line = event.start_mark.line + 1
        if depth > _MAX_DEPTH:
            raise NotYamlError("nested too deeply", line)
        if values > _MAX_VALUES:
            raise NotYamlError(f"more than {_MAX_VALUES:,} values", line)
        if not isinstance(event, yaml.ScalarEvent):
            continue
        if event.value.count("${") > _MAX_REFERENCES or (
            "${" in event.value and len(event.value) > _MAX_WITH_REFERENCES
        ):
            problem = f"a value with ${{ has more than {_MAX_REFERENCES} of them, or more than "
            raise NotYamlError(f"{problem}{_MAX_WITH_REFERENCES:,} characters", line)
        if not event.style and _LONG_NUMBER.fullmatch(event.value):
            raise NotYamlError("a number in base 60, 1:30, with hundreds of digits", line)
