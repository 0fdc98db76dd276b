"""A sweep as TensorBoard shows it."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from rope_jax.config.sweep import SweepConfig
from rope_jax.report.tensorboard import write_events
from tests.report.rows import row

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


def write(folder, table):
    images = {"curve": np.zeros((4, 6, 3), np.uint8)}
    write_events(folder, table, 7, images, SweepConfig(name="short"))

    return lambda name="": EventAccumulator(str(folder / name), {"scalars": 0}).Reload()


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


def test_all_scalings_are_on_one_chart(tmp_path):
    (event,) = write(tmp_path, ROWS)().Tensors("custom_scalars__config__")
    content = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = {c.title: {d.title: list(d.multiline.tag) for d in c.chart} for c in content.category}
    assert list(charts) == [
        *("perplexity", "nats per token", "bits per byte", "perplexity by training step")
    ]
    assert charts["perplexity"] == {
        name: [f"^perplexity/{name}$"]
        for name in (*("same_tokens", "same_tokens_at_step_5", "same_tokens_at_step_3", "sliding"),)
    }
