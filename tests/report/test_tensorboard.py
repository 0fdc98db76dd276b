"""A sweep as TensorBoard shows it."""

import dataclasses
import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.report.tensorboard import write_events
from rope_jax.results.files import SweepTables
from rope_jax.results.statistics import Estimate, UsableLength
from rope_jax.results.tasks import EffectiveLength, TaskSummary
from rope_jax.tasks import TASKS
from tests.report.rows import checkpoint, curve, row

NLLS = {  # by step, scaling and length
    7: {"trained": {16: 1.0, 64: 2.0}, "ntk-4": {16: 1.5, 64: 1.25}},
    3: {"trained": {16: 3.0}, "ntk-4": {16: 3.5}},
    5: {"trained": {16: 2.0}, "ntk-4": {16: 2.5}},
}
ROWS = [
    row(name, n, nll, step=step, seed=1, bpb=nll / math.log(2))
    for step, curves in NLLS.items()
    for name, by_length in curves.items()
    for n, nll in by_length.items()
]
SLIDING = row("ntk-4", 64, 1.125, step=7, seed=1, bpb=1.125 / math.log(2))
ROWS.insert(4, SLIDING._replace(protocol="sliding"))
TABLE = ROWS[:5]
NTK = curve(
    UsableLength(length=None, is_last=False, is_known=True),
    blow_up={16: Estimate(1.6, 1.5, 1.7), 64: Estimate(1.3, 1.2, 1.4)},
    above_truncation={16: Estimate(0.5, 0.4, 0.6), 64: Estimate(0.25, 0.2, 0.3)},
)
NEWEST = checkpoint(step=7, curves={"ntk-4": NTK})
TRAINING = TrainingConfig.model_validate(
    {
        "name": "demo",
        "rope": {"base": 500_000},
        "optim": {"warmup_steps": 1},
        "stages": [{"steps": 7, "seq_len": 16, "batch_size": 2}],
    }
)


def write(folder, table, newest=NEWEST, **config):
    images = {"curve": np.zeros((4, 6, 3), np.uint8)}
    settings = SweepConfig.model_validate({"name": "short"} | config)
    write_events(folder, SweepTables(table, [], [newest]), images, settings, TRAINING)

    return lambda name="": EventAccumulator(str(folder / name), {"scalars": 0}).Reload()


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A sweep of three checkpoints."""
    return write(tmp_path_factory.mktemp("several"), ROWS)


def points(found, tag):
    return {event.step: event.value for event in found.Scalars(tag)}


def test_a_scaling_is_a_run_whose_step_is_the_length(tmp_path):
    """Earlier checkpoints are tags and not runs."""
    several = write(tmp_path, ROWS)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"trained", "ntk-4"}
    assert not any(path.is_dir() for path in (tmp_path / "ntk-4").iterdir())
    found = several("ntk-4")
    assert points(found, "unit_nats_per_token/same_tokens") == {16: 1.5, 64: 1.25}
    assert points(found, "unit_bits_per_byte/sliding") == pytest.approx({64: 1.125 / math.log(2)})
    for tag, nlls in {
        "perplexity/same_tokens": {16: 1.5, 64: 1.25},
        "perplexity/same_tokens_at_step_3": {16: 3.5},
        "perplexity/same_tokens_at_step_5": {16: 2.5},
        "perplexity_by_step/same_tokens/16": {3: 3.5, 5: 2.5, 7: 1.5},
    }.items():
        assert points(found, tag) == pytest.approx({n: math.exp(x) for n, x in nlls.items()})
    (image,) = several().Images("summary/curve")
    assert image.step == 7


def test_hyperparameters_tell_the_curves_apart_with_whole_numbers(several):
    found = several("ntk-4").PluginTagToContent(metadata.PLUGIN_NAME)
    content = found[metadata.EXPERIMENT_TAG]
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment
    content = found[metadata.SESSION_START_INFO_TAG]
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    values = {name: value.string_value for name, value in settings.items()}
    assert values == {
        **{"label": "ntk-4", "base": "500000", "window": "16", "sweep": "short", "seed": "1"},
        **{"run": "demo", "step": "7", "scaling": "ntk", "factor": "4", "map": ""},
    }
    assert [info.name.tag for info in experiment.metric_infos] == METRICS
    assert points(several("ntk-4"), "summary/blow_up_at_longest") == pytest.approx({0: 1.3})
    # without a summary there is no outcome
    assert "summary/usable_length" not in several("trained").Tags()["scalars"]


# The same for every sweep, because TensorBoard takes its columns from one run for all of them.
METRICS = [
    *(f"summary/{name}" for name in
      ("usable_length", "blow_up_at_longest", "above_truncation_at_longest")),
    *(f"summary/effective_length_{task}" for task in TASKS),
]  # fmt: skip


def test_of_two_tasks_of_a_type_the_shortest_effective_length_is_the_outcome(tmp_path):
    def effective(length):
        return {"trained": TaskSummary({}, EffectiveLength(length, length, length, False), 0.85)}

    tasks = {"far": effective(64), "near": effective(16), "needle": effective(None)}
    asked = dataclasses.replace(NEWEST, tasks=tasks, curves={})
    named = [{"task": "passkey", "name": name} for name in ("far", "near")]
    found = write(tmp_path, TABLE[:2], asked, tasks=[*named, {"task": "needle"}])
    lengths = {"passkey": 16, "needle": 0}
    for task, length in lengths.items():
        assert points(found("trained"), f"summary/effective_length_{task}") == {0: length}
