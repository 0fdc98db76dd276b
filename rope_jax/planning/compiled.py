"""What a compiler says of a program, and how fast a device can run it at best."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rope_jax.devices.targets import Target
from rope_jax.errors import UserError
from rope_jax.planning.hlo import Exchanges, exchanges

# How the compiler for TPUs says what a program that is too large needs.
_NEEDED = re.compile(r"(?:Used |temporaries \()([\d.]+)([KMGT])")
# The same of the small memories beside its cores, which only a kernel can exceed.
_ON_CHIP = re.compile(r"memory space (?!hbm)\w+\. Used \S+ of \S+ \w+")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class CompiledProgram:
    """A program's figures by its compiler, on each device; bytes.

    flops:   the body of a loop counts once; None: this compiler does not say.
    seconds: what compiling took.
    """

    arguments: int
    results: int
    temporary: int
    flops: float | None
    seconds: float
    exchanges: Exchanges


def describe(compiled: Any, seconds: float, devices: int) -> CompiledProgram:
    """Return the figures of a compiled program. devices: how many run it."""
    memory = compiled.memory_analysis()
    return CompiledProgram(
        arguments=memory.argument_size_in_bytes if memory else 0,
        results=memory.output_size_in_bytes if memory else 0,
        temporary=memory.temp_size_in_bytes if memory else 0,
        flops=(compiled.cost_analysis() or {}).get("flops"),
        seconds=seconds,
        exchanges=exchanges(compiled.as_text(), devices),
    )


def needed_bytes(error: Exception) -> int | None:
    """Return what a program that is too large needs, as its compiler says; None: it does not."""
    found = _NEEDED.search(str(error))
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def check_on_chip(error: Exception, attention: str) -> None:
    """UserError if an error says that a kernel does not fit into a TPU's own small memories."""
    if found := _ON_CHIP.search(str(error)):
        raise UserError(
            f"model.attention: the compiler refuses the kernel of {attention} for windows of this "
            f"length ({found[0]}); use blockwise, or let more devices share a window"
        ) from error


@dataclass(frozen=True)
class Roofline:
    """The least time, in seconds, that a device takes for each part of a program.

    compute: its FLOPs at the peak of the data sheet.
    memory:  arguments and results once, and temporary arrays written and read once.
    network: what it sends, at the speed of the links that lead to the devices of the group.

    An estimate, not a measurement: no kernel reaches the peak, and how much the three overlap is
    not known.
    """

    compute: float
    memory: float
    network: float

    @property
    def overlapping(self) -> float:
        """The time if all three overlap completely."""
        return max(self.compute, self.memory, self.network)

    @property
    def in_turn(self) -> float:
        """The time if nothing overlaps."""
        return self.compute + self.memory + self.network


def roofline(
    program: CompiledProgram, flops: float | int, target: Target, devices: Sequence[Any]
) -> Roofline:
    """Estimate the time of a program on a target.

    flops:   what each device computes, with what is computed again.
    devices: in the order of the program's mesh.
    """
    chip = target.chip
    traffic = program.arguments + program.results + 2 * program.temporary
    sending = sum(
        one.times * one.bytes / target.bandwidth([devices[place] for place in one.group])
        for one in program.exchanges.each
    )
    return Roofline(flops / chip.flops, traffic / chip.bandwidth, sending)
