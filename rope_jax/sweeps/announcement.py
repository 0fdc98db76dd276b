"""What a sweep prints before it measures: checkpoints, texts, scalings, memory and warnings."""

import math

from rope_jax.config.entries import SweepEntry
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration, print_overview, print_wrapped
from rope_jax.devices.hardware import nominal_flops, peak_flops, reached_flops
from rope_jax.devices.window_memory import parameter_count
from rope_jax.report.scalings import describe_scaling
from rope_jax.sweeps.model import EvalModel
from rope_jax.sweeps.resolve import LONGEST_DEFAULT, PlannedSweep


def announce(loaded: EvalModel, planned: PlannedSweep) -> None:
    """Print what is about to be swept."""
    session, training, sweep = loaded.session, loaded.training, planned.sweep
    console, config, split = session.console, sweep.config, planned.split
    longest, steps = sweep.lengths[-1], list(planned.plans)
    if beyond := sweep.lengths[len(sweep.readable) :]:
        lengths = ", ".join(f"{length:,}" for length in beyond)
        ends = f"{training.model.position.type} ends at {training.encoding.longest:,} tokens"
        print_wrapped(console, f"no curve at {lengths}: position {ends}")
    scalings: dict[str, list[str]] = {}
    # the stages of the checkpoints only: a run in progress has not reached its last one
    for stage in dict.fromkeys(map(training.stage_at, steps)):
        title = f"scalings at {longest:,} tokens"
        if scalings:
            title += f", window {training.trained(stage).window:,}"
        scalings[title] = [
            line
            for entry in config.scalings
            for line in describe_entry(training, entry, longest, stage)
        ]
    trained = training.trained_at(steps[-1])
    facts = {
        "checkpoint": f"{session.run.path}, step{_s(len(steps))} {', '.join(map(str, steps))}; "
        f"window {trained.window:,} tokens, scaling {trained.scaling.type}",
        "model": f"{parameter_count(loaded.model):,} parameters",
        "devices": f"{session.describe_devices()}; {loaded.memory.describe(sweep.readable[-1])}",
        "tokenizer": session.describe_tokenizer(),
        config.split: [
            f"{len(split):,} document{_s(len(split))}, {len(split.tokens):,} tokens",
            *(loaded.corpus.notes if config.data is not None else ()),
        ],
        "lengths": ", ".join(f"{length:,}" for length in sweep.lengths),
        "protocols": ", ".join(config.protocols),
    }
    if config.tasks:
        facts["tasks"] = ", ".join(  # with the samples at each length, ablated ones included
            f"{task.label} ({task.samples * (len(task.places) + task.has_answers):,} samples)"
            for task in config.tasks
        )
    print_overview(console, f"sweep {config.name} of {training.name}", facts | scalings)
    _warn_of_texts(loaded, planned)
    _explain_trained(loaded, planned)
    if not planned.chosen:
        return
    values = {key: list(x) if isinstance(x, tuple) else x for key, x in planned.chosen.items()}
    given = " ".join(f"{key}={str(x).replace(' ', '')}" for key, x in values.items())
    why = "need longer texts"
    if planned.flops_of_defaults > LONGEST_DEFAULT * nominal_flops():
        seconds = planned.flops_of_defaults / reached_flops(peak_flops()[0])
        why = f"would take {describe_duration(seconds)}"
    session.warn(
        f"{', '.join(values)}: the defaults {why}; {given} instead, and what you give is kept"
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _explain_trained(loaded: EvalModel, planned: PlannedSweep) -> None:
    """Say what the entry `trained` is, and what the others do with its scaling."""
    session, training = loaded.session, loaded.training
    trained = training.trained_at(max(planned.plans))
    origin = "as it was trained" if training.imported is None else "as published"
    if (scaling := trained.scaling).type != "none":
        factor = f" by {scaling.extension_factor:g}" if scaling.extension_factor else ""
        text = (
            f"with {scaling.type}{factor} of L {trained.train_length:,}; over-trained: acts on its "
            f"frequencies and the window of {trained.window:,}; other entries replace them"
        )
        print_wrapped(session.console, f"trained: the model {origin}, {text}", "dim")
        reach = scaling.longest_extension * trained.train_length
        if training.imported is not None and trained.window < reach < math.inf:
            session.warn(
                f"trained: {scaling.type} is for {reach:,.0f} tokens, beyond the window of "
                f"{trained.window:,}; if the model was trained at that length, import it with "
                f"window={reach:.0f}"
            )
    elif training.imported is not None:
        print_wrapped(session.console, f"trained: the model {origin}, without scaling", "dim")


def _warn_of_texts(loaded: EvalModel, planned: PlannedSweep) -> None:
    session, config, split = loaded.session, planned.sweep.config, planned.split
    files = len({id_.rpartition("#")[0] or id_ for id_ in split.ids})
    data = config.data or session.config.data
    if getattr(data, "split_bytes", None) and files < len(split):
        session.warn(
            f"data.split_bytes: the {len(split):,} documents are parts of {files:,} "
            f"file{_s(files)}; intervals take parts for independent texts, so they are "
            "too narrow where those of a file are alike"
        )
    names: dict[bytes, list[str]] = {}
    newest = list(planned.plans.values())[-1]
    for index in newest.indices:
        names.setdefault(split.document(index).tobytes(), []).append(split.ids[index])
    if equal := [alike for alike in names.values() if len(alike) > 1]:
        repeats = f"{equal[0][1]} has exactly the same text as {equal[0][0]}"
        if more := sum(map(len, equal)) - len(equal) - 1:
            repeats += f" (and {more:,} more repeat others)"
        session.warn(
            f"data: {repeats}, but each counts in the intervals, which are too narrow; keep one of "
            "each text"
        )
    if config.data is not None:
        session.warn(
            f"data: whether {session.run.path} was trained on these texts cannot be checked; if "
            "it was, perplexities come out too low"
        )


def describe_entry(
    training: TrainingConfig, entry: SweepEntry, length: int, stage: int
) -> list[str]:
    """Describe the scaling and the map with which an entry reads windows of a length."""
    if not training.model.position.is_rotary:
        return [f"{entry.label}: position {training.model.position.type}"]
    trained = training.trained(stage)
    scaling, map_ = entry.at(length, trained), entry.map_at(length, trained)
    lines = describe_scaling(training.rotary_layers, scaling, length, entry.label)
    if map_ is not None:
        lines[-1] += f"; map {map_.type}: {map_.settings_text}"
        if entry.map is not None and entry.map.is_auto:
            lines[-1] += " (auto)"
    return lines
