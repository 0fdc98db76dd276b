"""What a sweep prints before it measures: checkpoints, texts, scalings, memory and warnings."""

from rope_jax.config.entries import SweepEntry
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration, print_overview, print_wrapped
from rope_jax.devices.hardware import nominal_flops, peak_flops, reached_flops
from rope_jax.errors import UserError, errors_in
from rope_jax.model.memory import parameter_count
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
        title += f", window {training.trained(stage).window:,}" * bool(scalings)
        scalings[title] = _describe_scalings(training, config, longest, stage)
    trained, imported = training.trained_at(steps[-1]), training.imported is not None
    memory = loaded.memory.describe(sweep.readable[-1])
    tasks = ", ".join(  # with the samples at each length, ablated ones included
        f"{task.label} ({task.samples * (len(task.places) + task.has_answers):,} samples)"
        for task in config.tasks
    )
    which = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
    print_overview(
        console,
        f"sweep {config.name} of {training.name}",
        {
            "checkpoint": f"{session.run.path}, {which}; window {trained.window:,} tokens, "
            f"scaling {trained.scaling.type}",
            "model": f"{parameter_count(loaded.model):,} parameters",
            "devices": f"{session.describe_devices()}; {memory}",
            "tokenizer": session.describe_tokenizer(),
            config.split: [
                f"{len(split):,} document{'s' * (len(split) != 1)}, {len(split.tokens):,} tokens",
                *(loaded.corpus.notes if config.data is not None else ()),
            ],
            "lengths": ", ".join(f"{length:,}" for length in sweep.lengths),
            "protocols": ", ".join(config.protocols),
            **({"tasks": tasks} if config.tasks else {}),
            **scalings,
        },
    )
    _warn_of_texts(loaded, planned)
    first, autos = training.geometry.train_length, [e for e in config.scalings if e.factor_is_auto]
    is_scaled = trained.scaling.type != "none"
    if is_scaled and first < trained.window and autos:
        session.warn(
            "scalings: auto is length / window, and the window is "
            f"{trained.window / first:g} times L = {first:,}: "
            f"{', '.join(entry.label for entry in autos)} change nothing up to the window; give "
            "factors of length / L"
        )
    if imported or is_scaled:
        own = "without scaling"
        if is_scaled:
            factor = trained.scaling.extension_factor
            own = f"with its own {trained.scaling.type}{f', factor {factor:g}' if factor else ''}"
            own += f" of L {first:,}, which every other entry replaces"
        who = "as published" if imported else "as it was trained"
        print_wrapped(console, f"trained: the model {who}, {own}", "dim")
    if planned.chosen:
        _warn_of_choice(loaded, planned)


def _warn_of_texts(loaded: EvalModel, planned: PlannedSweep) -> None:
    session, config, split = loaded.session, planned.sweep.config, planned.split
    files = len({id_.rpartition("#")[0] or id_ for id_ in split.ids})
    data = config.data or session.config.data
    if getattr(data, "split_bytes", None) and files < len(split):
        session.warn(
            f"data.split_bytes: the {len(split):,} documents are parts of {files:,} "
            f"file{'s' * (files != 1)}; intervals take parts for independent texts, so they are "
            "too narrow where those of a file are alike"
        )
    names: dict[bytes, list[str]] = {}
    newest = list(planned.plans.values())[-1]
    for index in newest.indices:
        names.setdefault(split.document(index).tobytes(), []).append(split.ids[index])
    if equal := [alike for alike in names.values() if len(alike) > 1]:
        more = sum(map(len, equal)) - len(equal) - 1
        session.warn(
            f"data: {equal[0][1]} has exactly the same text as {equal[0][0]}"
            f"{f' (and {more:,} more repeat others)' * (more > 0)}, but each counts in the "
            "intervals, which are too narrow; keep one of each text"
        )
    if config.data is not None:
        session.warn(
            f"data: whether {session.run.path} was trained on these texts cannot be checked; if "
            "it was, perplexities come out too low"
        )


def _warn_of_choice(loaded: EvalModel, planned: PlannedSweep) -> None:
    """Say what was chosen in place of defaults that take too long or need longer texts."""
    values = {key: list(x) if isinstance(x, tuple) else x for key, x in planned.chosen.items()}
    given = " ".join(f"{key}={str(x).replace(' ', '')}" for key, x in values.items())
    why = "need longer texts"
    if planned.flops_of_defaults > LONGEST_DEFAULT * nominal_flops():
        seconds = planned.flops_of_defaults / reached_flops(peak_flops()[0])
        why = f"would take {describe_duration(seconds)}"
    loaded.session.warn(
        f"{', '.join(values)}: the defaults {why}; {given} instead, and what you give is kept"
    )


def _describe_scalings(
    training: TrainingConfig, config: SweepConfig, longest: int, stage: int
) -> list[str]:
    """Describe each entry at the longest length; UserError if one cannot be used there."""
    position = training.model.position
    if not position.is_rotary:
        return [f"{entry.label}: position {position.type}" for entry in config.scalings]
    lines: list[str] = []
    for entry in config.scalings:
        with errors_in(f"scalings: {entry.label}: ", UserError):
            lines += describe_entry(training, entry, longest, stage)
    return lines


def describe_entry(
    training: TrainingConfig, entry: SweepEntry, length: int, stage: int
) -> list[str]:
    """Describe the scaling and the map with which an entry reads windows of a length."""
    window, trained, trained_map = training.trained(stage)
    scaling = entry.at(length, window, trained)
    map_ = entry.map_at(length, window, trained_map)
    lines = describe_scaling(training.rotary_layers, scaling, length, entry.label)
    if map_ is not None:
        lines[-1] += f"; map {map_.type}: {map_.settings_text}"
        if entry.map is not None and entry.map.is_auto:
            lines[-1] += " (auto)"
    return lines
