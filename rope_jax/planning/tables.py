"""The tables of a plan: quantities down, stages or lengths across."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from rope_jax.planning.compiled import CompiledProgram, Roofline

GIB, MIB = 2**30, 2**20
TIME_NOTES = (
    "† the compiler counts the body of a loop once, and no kernel",
    "‡ a roofline, not a measurement: FLOPs at the peak of the data sheet, bytes at the bandwidth "
    "of memory and of the links between devices; from complete overlap of the three to none",
)
"""What the marks in a `time_table` stand for."""


@dataclass(frozen=True)
class Timed:
    """A compiled program, and the least time that it takes.

    name:   its column.
    tokens: how many it reads on all devices.
    flops:  on each device, of the model.
    bytes:  what it takes on each device.
    """

    name: str
    tokens: int
    flops: float
    bytes: int
    program: CompiledProgram
    roofline: Roofline


def time_table(title: str, programs: Sequence[Timed], peak: float | int) -> Table:
    """Return a table with one column per program: its FLOPs, exchanges and least time.

    peak: of one device, in FLOP/s.
    """
    rows: dict[str, list[str]] = {
        "tokens": [f"{one.tokens:,}" for one in programs],
        "FLOPs": [f"{one.flops:.3g}" for one in programs],
        "FLOPs, compiler†": [
            "" if one.program.flops is None else f"{one.program.flops:.3g}" for one in programs
        ],
    }
    rows["memory"] = [_bytes(one.bytes) for one in programs]
    sent = [one.program.exchanges.by_kind() for one in programs]
    for kind in sorted({kind for kinds in sent for kind in kinds}):
        rows[kind] = [
            f"{kinds[kind][0]:,} × {_bytes(kinds[kind][1] / kinds[kind][0])}"
            if kind in kinds
            else ""
            for kinds in sent
        ]
    if any(sent):
        rows["sent in all"] = [
            ("at least " if one.program.exchanges.at_least else "")
            + _bytes(sum(size for _, size in kinds.values()))
            for one, kinds in zip(programs, sent, strict=True)
        ]
    rows |= {
        "compute time": [seconds(one.roofline.compute) for one in programs],
        "memory time": [seconds(one.roofline.memory) for one in programs],
        "network time": [seconds(one.roofline.network) for one in programs],
        "time in all‡": [
            f"{seconds(one.roofline.overlapping)} to {seconds(one.roofline.in_turn)}"
            for one in programs
        ],
        "tokens per second‡": [
            f"{one.tokens / one.roofline.in_turn:,.0f} to "
            f"{one.tokens / one.roofline.overlapping:,.0f}"
            for one in programs
        ],
        "utilization‡": [
            f"{one.flops / peak / one.roofline.in_turn:.0%} to "
            f"{one.flops / peak / one.roofline.overlapping:.0%}"
            for one in programs
        ],
        "compiled in": [seconds(one.program.seconds) for one in programs],
    }
    return quantities(title, [one.name for one in programs], rows)


def quantities(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Return a table with a row per quantity."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=Text(title),
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def unit_for(largest: float | int) -> tuple[str, int]:
    """Return the unit for amounts of memory up to `largest` bytes: its name, and its bytes."""
    return ("GiB", GIB) if largest >= GIB else ("MiB", MIB)


def seconds(time: float | int) -> str:
    """Return a time in seconds or milliseconds."""
    return f"{time:,.3g} s" if time >= 1 else f"{1000 * time:.3g} ms"


def _bytes(size: float | int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.3g} {name}"
    return f"{size:,.0f} B"
