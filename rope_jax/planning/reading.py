"""The programs that a sweep compiles for its longest length, on the devices it is planned for."""

import time

import jax
import numpy as np
from numpy.typing import NDArray

from rope_jax.config.sweep import SweepConfig
from rope_jax.config.tasks import LongPPL
from rope_jax.config.training import Config
from rope_jax.devices.memory import device_bytes, in_gib, out_of_memory, program_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.devices.targets import Target
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import of_all, scores_of_last
from rope_jax.evaluation.plan import Job, Plan, sweep_lengths
from rope_jax.evaluation.reader import Reader, structure_of
from rope_jax.model.cost import window_flops
from rope_jax.model.decoder import LanguageModel, Params
from rope_jax.planning.compiled import check_on_chip, describe, needed_bytes, roofline
from rope_jax.planning.tables import Timed
from rope_jax.tasks import Words


def plan_readings(
    training: Config,
    config: SweepConfig,
    model: LanguageModel,
    placement: Placement,
    like: Params,
    target: Target,
    length: int,
) -> list[Timed]:
    """Compile one program for each kind of reading of the longest length.

    A batch has one window for each device, or for each group of devices that share windows.

    placement: for windows of this length. like: the parameters' shapes, dtypes and shardings.

    UserError: a program does not fit.
    """
    of_last = scores_of_last(model, placement)
    rows, devices = placement.row_shards, list(placement.mesh.devices.flat)
    reader = Reader(
        of_all(of_last),
        of_last,
        like,
        rows_at=lambda _: rows,
        row_multiple=lambda _: rows,
        programs={},
    )
    found = []
    for jobs in _by_kind(training, config, length):
        last = max(job.last for job in jobs)
        rotary = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (leaf.shape[0], rows, *leaf.shape[2:])),
            jobs[0].batch.rotary,
        )
        began = time.perf_counter()
        try:
            compiled = reader.compile(rows, length, last, rotary)
        except Exception as error:
            if not out_of_memory(error):
                raise
            check_on_chip(error, training.model.attention)
            raise _refusal(training, placement, rows, length, needed_bytes(error)) from error
        program = describe(compiled, time.perf_counter() - began, len(devices))
        used = program_bytes(compiled, device=placement.device)
        if used > device_bytes(placement.device):
            raise _refusal(training, placement, rows, length, used)
        tokens = rows * length
        of_window = window_flops(training.model, model.vocab_size, length, length)
        flops = rows * of_window / len(devices)
        what = "all targets" if last == length else f"last {last:,}"
        map_ = jobs[0].map
        found.append(
            Timed(
                f"{map_.type}, {what}" if map_ else what,
                tokens,
                flops,
                used,
                program,
                roofline(program, flops, target, devices),
            )
        )
    return found


def _by_kind(training: Config, config: SweepConfig, length: int) -> list[list[Job]]:
    """Return the sweep's jobs at the longest length, by the program that they need."""
    window = training.stages[-1].seq_len
    longest = sweep_lengths(config, window)[-1]  # the model may be unable to read it
    # a mask of key tokens is of other documents than these zeros, and is read as same_tokens is
    tasks = tuple(task for task in config.tasks if not isinstance(task, LongPPL))
    plan = Plan(
        layers=training.rotary_layers,
        trained=training.stage_scaling(len(training.stages) - 1),
        window=window,
        documents=[np.zeros(longest + 1, np.int32)],
        bos_id=None,
        config=config.model_copy(update={"bos": "none", "tasks": tasks}),
        trained_map=training.stage_map(len(training.stages) - 1),
        longest=training.encoding.longest,
        words=Words(_by_bytes, 256, bos_id=None, has_words=True),
    )
    found: dict[str, list[Job]] = {}
    for job in plan.jobs():
        if job.batch.length == length:
            found.setdefault(structure_of(job.batch.rotary), []).append(job)
    return list(found.values())


def _by_bytes(text: str) -> NDArray[np.uint8]:
    """Return as many tokens as a text has bytes: only their number matters here, and it is high."""
    return np.frombuffer(text.encode(), np.uint8)


def _refusal(
    training: Config, placement: Placement, rows: int, length: int, used: int | None
) -> UserError:
    """Return the error for a program that takes `used` bytes on each device; None: too many."""
    takes = "more than there is" if used is None else f"{in_gib(used)} GiB per device"
    advice = "leave out the longest length, or take more devices, which then share windows"
    if training.model.backend.quadratic_memory:
        advice = f"attention=blockwise may take less; or {advice}"
    return UserError(
        f"lengths: {rows:,} × {length:,} tokens at a time take {takes}, and there are "
        f"{in_gib(device_bytes(placement.device))}; {advice}"
    )
