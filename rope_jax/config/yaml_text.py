"""YAML text to plain values and back, as OmegaConf reads it: 1e3 is a number, a date is text."""

from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, KeyValidationError, OmegaConfBaseException

_MAX_DEPTH = 50  # nested sections; PyYAML crashes at some ten thousand
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
    try:
        _check_depth(text)
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
    except (ValueError, LookupError) as error:  # a value with a tag, or a very long number
        problem = first_line(error).partition(";")[0]
        raise NotYamlError(f"a value cannot be read: {problem}") from None


def dump_yaml(content: Any) -> str:
    """Return plain values as YAML text that `parse_yaml` reads as the same values."""
    return yaml.dump(_escaped(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise NotYamlError("nested too deeply", event.start_mark.line + 1)


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem).rstrip(".")
    if "constructor for the tag" in problem:
        tag = problem.rpartition(" ")[2].strip("'").replace("tag:yaml.org,2002:", "!!")
        return f"the tag {tag} is not allowed; values must be plain"
    if "expansion exceeds" in problem:
        return "more than 10,000 values; is an alias, *name, repeated too often?"
    return problem


class _Dumper(yaml.SafeDumper):
    """Quotes text that OmegaConf would take for a number: PyYAML reads 1e3 as text."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text[:1].isalpha() else "'"
    ),
)


def _escaped(node: Any) -> Any:
    """Return the values with every `${` escaped, which otherwise starts an interpolation."""
    if isinstance(node, dict):
        return {key: _escaped(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_escaped(value) for value in node]
    return node.replace("${", "\\${") if isinstance(node, str) else node
