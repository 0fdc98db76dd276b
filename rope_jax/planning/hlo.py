"""The collectives of a compiled program: how many run, and what each device sends.

Read from the program's text, because XLA's own cost analysis counts the body of a loop once.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][a-z0-9\-]*)\((.*)$")
_CALLED = re.compile(r"\b(?:body|calls|to_apply|\w*computations?)=(?:\{([^}]*)\}|%?([\w.\-]+))")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_START = 'custom_call_target="AsyncCollectiveStart"'
_CONSTANT = re.compile(r"= s\d+\[\]\S* constant\((\d+)\)")
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclass(frozen=True)
class Exchange:
    """An exchange between the devices of a group.

    kind:  the instruction's name, such as "all-gather".
    bytes: what each device sends each time, if the group is a ring.
    group: the places of one group's devices in the program's list of devices.
    times: how often it runs.
    """

    kind: str
    bytes: float
    group: tuple[int, ...]
    times: int


@dataclass(frozen=True)
class Exchanges:
    """The collectives of a program.

    at_least: whether some are in a loop of unknown length, whose body is counted once.
    """

    each: tuple[Exchange, ...]
    at_least: bool

    def by_kind(self) -> Mapping[str, tuple[int, float]]:
        """Return how many of each kind run, and the bytes that a device sends for them."""
        found: dict[str, tuple[int, float]] = {}
        for one in self.each:
            times, sent = found.get(one.kind, (0, 0.0))
            found[one.kind] = times + one.times, sent + one.times * one.bytes
        return dict(sorted(found.items()))


def exchanges(text: str, devices: int) -> Exchanges:
    """Find the collectives of a compiled program.

    text: `compiled.as_text()`, the optimized HLO of one device.
    devices: how many run the program.
    """
    computations, entry = _computations(text)
    found: list[Exchange] = []
    at_least = False

    def visit(name: str, times: int, known: bool) -> None:
        nonlocal at_least
        for line in computations[name]:
            match = _INSTRUCTION.match(line)
            if match is None:
                continue
            made, opcode, rest = match.groups()
            kind = opcode.removesuffix("-start")
            if kind in _KINDS:
                one = _exchange(kind, opcode, made, rest, devices, times)
                # A TPU's asynchronous one is in its start, its end, and what runs meanwhile.
                is_repeated = "chain_id=" in rest and _START not in "".join(computations[name])
                if len(one.group) > 1 and not is_repeated:
                    at_least |= not known
                    found.append(one)
            elif opcode == "while":
                trips = _trips(rest, computations)
                for called in _called(rest):
                    visit(called, times * (trips or 1), known and trips is not None)
            elif not opcode.endswith(("-done", "-update")):
                for called in _called(rest):
                    visit(called, times, known)

    visit(entry, 1, True)
    return Exchanges(tuple(found), at_least)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation that are not trivial, and the name of the first."""
    found: dict[str, list[str]] = {}
    name, entry = "", ""
    for line in text.splitlines():
        if not line.startswith((" ", "}")):
            match = _COMPUTATION.match(line)
            if match is not None:
                name = match[1]
                found[name] = []
                entry = name if line.startswith("ENTRY") else entry
        elif name:
            found[name].append(line)
    return found, entry


def _called(rest: str) -> Iterator[str]:
    for several, one in _CALLED.findall(rest):
        for name in (several or one).split(","):
            yield name.strip().lstrip("%")


def _trips(rest: str, computations: Mapping[str, list[str]]) -> int | None:
    """Return how often a loop runs; None: unknown.

    The compiler for TPUs does not say, but a loop of fixed length counts from 0 to a constant.
    """
    if (known := _TRIPS.search(rest)) is not None:
        return int(known[1])
    condition = _CONDITION.search(rest)
    lines = computations.get(condition[1], []) if condition else []
    constants = {int(found) for line in lines for found in _CONSTANT.findall(line)}
    counts_up = any("direction=LT" in line for line in lines)
    return constants.pop() if counts_up and len(constants) == 1 else None


def _exchange(kind: str, opcode: str, made: str, rest: str, devices: int, times: int) -> Exchange:
    group = _group(rest, devices)
    if kind == "collective-permute":  # between pairs, whose distance is not known
        group = tuple(range(devices))
    count, size = len(group), _bytes(made)
    if opcode.endswith("-start"):  # its type has the operands too, except for a sum
        results = {
            "all-gather": count / (count + 1),
            "reduce-scatter": 1 / (count + 1),
            "all-reduce": 1,
        }
        size *= results.get(kind, 1 / 2)
    others = (count - 1) / count
    sent = {
        "all-gather": size * others,
        "all-reduce": 2 * size * others,
        "reduce-scatter": size * (count - 1),
        "collective-permute": size,
    }.get(kind, size * others)
    return Exchange(kind, sent, group, times)


def _group(rest: str, devices: int) -> tuple[int, ...]:
    """Return the devices of the first group of a collective, in any of the ways to write groups."""
    if mesh := re.search(r"replica_groups=@?\w*\[([^\]]*)\] ?\{([^}]*)\}", rest):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        over = set(re.findall(r"'(\w+)'", mesh[2]))
        if all(f"'{name}':" not in mesh[2] for name in over):
            places = np.arange(devices).reshape([int(size) for size in axes.values()])
            first = tuple(slice(None) if name in over else 0 for name in axes)
            return tuple(places[first].reshape(-1).tolist())
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        made, sizes, order = (
            [int(n) for n in part.split(",")] if part else [] for part in iota.groups()
        )
        places = np.arange(math.prod(sizes)).reshape(sizes)
        places = places.transpose(order) if order else places
        return tuple(places.reshape(made)[0].reshape(-1).tolist())
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
        return tuple(int(n) for n in listed[1].split(","))
    return tuple(range(devices))


def _bytes(made: str) -> float:
    """Return the bytes of all arrays in a type."""
    bits = (
        math.prod(int(n) for n in axes.split(",") if n) * _bits(dtype)
        for dtype, axes in _SHAPE.findall(made)
    )
    return sum(bits) / 8


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 8  # pred
