"""What --help says about the keys of a config: an overview, and all about one section or key."""

import difflib
import re
import textwrap
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from rope_jax.config.keys import Key, list_keys, union_name
from rope_jax.errors import UserError
from rope_jax.invocation import command_line

_SAME_KEYS = re.compile(r"; same keys as ([\w.]+)")
# Width of name, type and default in the overview; longer ones move the description.
_SIGNATURE = 32
_INDENT = "  "


def key_overview(schema: type[BaseModel], program: str, width: int) -> list[str]:
    """Return the keys by section, one line each, with their types, defaults and descriptions.

    A union has one line, and a list of its types where it occurs first; the keys of the types are
    listed by `key_section`. A description that does not fit is cut, which "…" shows.

    program: the command, as it was called. width: of the lines, in columns.
    """
    keys = list(list_keys(schema))
    unions = _outermost_unions(keys)
    lines, section, shown_types = list[str](), "", set[str]()
    for key in keys:
        union = next((name for name in unions if key.name.startswith(f"{name}.")), None)
        if union is not None and union_name(key.name) != union:
            continue
        name = key.name if union is None else union
        is_heading = key.type in ("section", "list") or union is not None
        top = _top(name, is_heading)
        about = _SAME_KEYS.sub("", key.description)
        if union is not None:
            default = f" = {key.default}" if key.default else ""
            about = f"by type{default}{_INDENT}{about}"
        if name == top:
            lines.append(_cut(f"{name}: {about}", width))
        else:
            if top != section:
                lines.append(top)
            short = name.removeprefix(f"{top}.") if top else name
            line = f"{short}: {about}" if is_heading else _row(short, key)
            lines.append(_cut(_INDENT + line, width))
        section = top
        if same := _same_as(key):
            lines.append(f"{_INDENT * 3}types and keys: those of {same[1]}")
        elif union is not None and key.type not in shown_types:
            shown_types.add(key.type)
            lines += _wrapped(f"types: {key.type.replace('|', ', ')}", width, _INDENT * 3)
    example = f", for example {program} --help {unions[0]}" if unions else ""
    more = [f"All about a key or a section, and the keys of each type: --help KEY{example}"]
    if any("yarn" in key.type.split("|") for key in keys):
        more.append(f"What scalings do to each pair: {command_line('show')}")
    return [*lines, "", *(line for text in more for line in _wrapped(text, width, ""))]


def key_section(schema: type[BaseModel], section: str, width: int) -> list[str]:
    """Return all about the keys of a section, or about one key; in a union, by type as well.

    section: dotted, such as "rope.scaling" or "stages.0"; an index may be a number or N.

    UserError: there is no such key.
    """
    keys = list(list_keys(schema))
    asked = ".".join("N" if part.isdecimal() else part for part in section.split("."))
    found = _resolved(asked, keys)
    chosen = _below(found, keys)
    if not chosen and _below(f"{found}.N", keys):
        found, chosen = f"{found}.N", _below(f"{found}.N", keys)
    if not chosen:
        raise UserError(f"--help {section}: there is no such key; {_advice(asked, keys)}")
    lines = []
    if found != asked:
        lines += [*_wrapped(f"{asked} has the keys of {found}:", width, ""), ""]
    for key in chosen:
        if _is_union(key):
            lines += _union(key, keys, width)
        else:
            lines += _details(key, width)
    for other in dict.fromkeys(same[1] for key in chosen if (same := _same_as(key))):
        if not other.startswith(f"{found}.") and other != found:
            lines += ["", *_wrapped(f"The keys of {other}: --help {other}", width, "")]
    return lines


def _top(name: str, is_heading: bool) -> str:
    """Return the section of a key: the first part of its name, and N if it is a list.

    "" for a key of no section. is_heading: whether the key may itself be a section.
    """
    first, *rest = name.split(".")
    if not rest:
        return name if is_heading else ""
    return f"{first}.N" if rest[0] == "N" else first


def _is_union(key: Key) -> bool:
    return union_name(key.name) != key.name


def _same_as(key: Key) -> re.Match[str] | None:
    return _SAME_KEYS.search(key.description) if _is_union(key) else None


def _outermost_unions(keys: Sequence[Key]) -> list[str]:
    """Return the sections that are unions, without those inside of others."""
    unions: list[str] = []
    for key in keys:
        name = union_name(key.name)
        if _is_union(key) and not any(name.startswith(f"{outer}.") for outer in unions):
            unions.append(name)
    return unions


def _below(section: str, keys: Sequence[Key]) -> list[Key]:
    return [key for key in keys if key.name == section or key.name.startswith(f"{section}.")]


def _resolved(section: str, keys: Sequence[Key]) -> str:
    """Return where a key is listed: a union that occurs again refers to its first place."""
    for key in keys:
        union, same = union_name(key.name), _same_as(key)
        if same is not None and section.startswith(f"{union}.") and section != key.name:
            return _resolved(same[1] + section.removeprefix(union), keys)
    return section


def _row(name: str, key: Key) -> str:
    """Return the line of a key in the overview, such as "seed: int = 0   seed of …"."""
    about, start = key.description, f"{name}: {key.type}"
    if "|" in key.type and ";" not in key.type:
        choices = key.type.replace("|", ", ")
        about, start = choices if choices.startswith("list") else f"one of {choices}", name
    if key.default == "required":
        start += ", required"
    elif key.default != "null" or not key.type.endswith(" or null"):
        start += f" = {key.default}"
    return f"{start:{_SIGNATURE}}{_INDENT}{about}"


def _cut(text: str, width: int) -> str:
    """Return text that fits, cut between two words."""
    if len(text) <= width:
        return text
    return text[: text.rfind(" ", 0, width - 1)].rstrip(" ;,:") + " …"


def _wrapped(text: str, width: int, indent: str, hanging: int = 2) -> list[str]:
    """Wrap text between words only. hanging: columns by which the later lines are indented more.

    Text without any indent has no hanging indent either.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + " " * hanging * (indent != ""),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _details(key: Key, width: int) -> list[str]:
    """Return all about a key: its type and default, and below them the description."""
    if key.type in ("section", "list"):
        return [*_wrapped(f"{key.name}: {key.description}", width, "")]
    head = f"{key.name}: {key.type}"
    if key.default:
        head += f" = {key.default}" if key.default != "required" else ", required"
    return [*_wrapped(head, width, ""), *_wrapped(key.description, width, _INDENT * 2)]


def _union(key: Key, keys: Sequence[Key], width: int) -> list[str]:
    """Return the types of a union, each with its own keys, and the keys that all of them have."""
    name = union_name(key.name)
    default = f"; default: {key.default}" if key.default else ""
    lines = _wrapped(f"{name}: {key.description}{default}", width, "")
    own = list(_direct_keys(name, keys))
    if _same_as(key) or not own:
        types = re.sub(r"\|", ", ", key.type)
        return [*lines, *_wrapped(f"types: {types}", width, _INDENT)]
    every = [_short(other, name) for other in own if not other.types]
    longest = max(map(len, key.type.split("|")))
    for type_ in key.type.split("|"):
        its = [_short(other, name) for other in own if type_ in other.types]
        row = f"{type_:{longest}}  {', '.join(its) or '–'}"
        lines += _wrapped(row, width, _INDENT, hanging=longest + 2)
    if every:
        lines += _wrapped(f"every type: {', '.join(every)}", width, _INDENT)
    return lines


def _direct_keys(union: str, keys: Sequence[Key]) -> Iterator[Key]:
    """Yield the keys of a union's types, with one key for each union or section inside."""
    for key in _below(union, keys):
        inside = _short(key, union)
        if union_name(key.name) != union and "." not in inside:
            yield key


def _short(key: Key, union: str) -> str:
    return union_name(key.name).removeprefix(f"{union}.")


def _advice(name: str, keys: Sequence[Key]) -> str:
    names = {".".join(key.name.split(".")[: depth + 1]) for key in keys for depth in range(3)}
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    tops = dict.fromkeys(key.name.partition(".")[0] for key in keys)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(tops)}"
