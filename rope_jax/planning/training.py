"""What a training run takes: parameters, tokens, FLOPs, and memory on this machine's devices."""

import functools
import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rope_jax.attention import check_backend
from rope_jax.config.training import Config
from rope_jax.console import print_overview, print_warning
from rope_jax.devices.hardware import device_line
from rope_jax.devices.memory import device_bytes, is_host_memory
from rope_jax.devices.mesh import Placement
from rope_jax.devices.peak import peak_flops
from rope_jax.model.cost import flops_per_token, parameter_count
from rope_jax.training.limits import check_size, compile_stages, compiled_bytes, estimated_bytes
from rope_jax.training.program import Program

_GIB, _MIB = 2**30, 2**20


def plan_training(config: Config, vocab_size: int, console: Console) -> None:
    """Print what a training run takes; the stages are compiled for it, and nothing is trained.

    vocab_size: the tokenizer's. No text is read.

    UserError: the run does not fit on this machine; the message names the key to change.
    """
    check_backend(config.model)
    placement = Placement(config.mesh)
    placement.check_stages(config.stages)
    longest = max(stage.length for stage in config.stages)
    parameters = parameter_count(config.model, vocab_size, longest)
    tokens = [stage.steps * stage.batch_size * stage.seq_len for stage in config.stages]
    flops = sum(
        count * flops_per_token(config.model, vocab_size, stage.seq_len)
        for count, stage in zip(tokens, config.stages, strict=True)
    )
    peak, source = peak_flops()
    print_overview(
        console,
        f"plan of {config.name}",
        {
            "model": f"{parameters:,} parameters, a vocabulary of {vocab_size:,}",
            "training": f"{sum(tokens):,} tokens in {sum(s.steps for s in config.stages):,} steps, "
            f"{sum(tokens) / parameters:.3g} per parameter",
            "compute": f"{flops:.3g} FLOPs: at least {_duration(flops / peak)} at the peak of "
            f"{peak / 1e9:,.0f} GFLOP/s ({source})",
            "devices": device_line(config.model.dtype),
        },
    )
    check_size(config, vocab_size, placement)
    program = Program(config, vocab_size, placement)
    numbers, validates = range(len(config.stages)), config.data.validation_fraction > 0
    warn = functools.partial(print_warning, console)
    with console.status("compiling"):
        compile_stages(program, numbers, validates=validates, warn=warn)
    estimates = [estimated_bytes(config, n, vocab_size, placement) for n in numbers]
    compiled = [compiled_bytes(program, n, validates=validates) for n in numbers]
    console.print(_memory_table(config, estimates, compiled))
    copies = ", with the copies that saving makes" if is_host_memory() else ""
    console.print(f"estimate: on paper, at least this; compiled: by the compiler{copies}")


def _memory_table(config: Config, estimates: Sequence[int], compiled: Sequence[int]) -> Table:
    """Return a table with one row per stage: its windows, and its memory on each device."""
    available = device_bytes()
    unit, size = ("GiB", _GIB) if max(compiled) >= _GIB else ("MiB", _MIB)
    there_are = f"; there are {available / size:,.1f}" if math.isfinite(available) else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=Text(f"memory per device, in {unit}{there_are}"),
        title_justify="left",
        title_style="bold",
    )
    for heading in ("stage", "steps", "windows", "tokens each", "estimate", "compiled"):
        table.add_column(heading, justify="right")
    for number, stage in enumerate(config.stages):
        table.add_row(
            str(number),
            f"{stage.steps:,}",
            f"{stage.batch_size:,}",
            f"{stage.seq_len:,}",
            f"{estimates[number] / size:,.2f}",
            f"{compiled[number] / size:,.2f}",
        )
    return table


def _duration(seconds: float) -> str:
    """Return a time in the unit that makes it readable."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} seconds"
