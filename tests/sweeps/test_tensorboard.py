"""A sweep as TensorBoard shows it."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from rope_jax.evaluation.results import Row
from rope_jax.evaluation.statistics import Estimate, UsableLength
from rope_jax.evaluation.summary import CheckpointSummary, CurveSummary, SweepSummary
from rope_jax.sweeps.tensorboard import write_events


def row(name, length, nll, protocol="same_tokens", **fields):
    values = {field: None for field in Row._fields}
    values |= {"name": name, "scaling": "ntk", "protocol": protocol, "length": length}
    values |= {"last_position": length, "nll": nll, "ppl": math.exp(nll), "bpb": nll / math.log(2)}
    values |= {"run": "demo", "step": 7, "seed": 1, "split": "test", "bos": "document"}
    return Row(**(values | fields))


TABLE = [
    row("trained", 16, 1.0, scaling="none", auto=False),
    row("trained", 64, 2.0, scaling="none", auto=False),
    row("ntk-4", 16, 1.5, factor=4.0, auto=False),
    row("ntk-4", 64, 1.25, factor=4.0, auto=False),
    row("ntk-4", 64, 1.125, factor=4.0, auto=False, protocol="sliding"),
]
USABLE = UsableLength(length=None, is_last=False, is_known=True)
SUMMARY = SweepSummary(
    newest=CheckpointSummary(
        run="demo",
        step=7,
        window=16,
        nll_at_window=1.0,
        perplexity_at_window=math.e,
        bpb_at_window=None,
        tolerance=0.02,
        documents=24,
        unit_kind="documents",
        units=24,
        distance=64,
        compilations=1,
        curves={
            "ntk-4": CurveSummary(
                usable=USABLE,
                usable_at_most=USABLE,
                blow_up={16: Estimate(1.6, 1.5, 1.7), 64: Estimate(1.3, 1.2, 1.4)},
                gain_over_truncation={
                    16: Estimate(-0.5, -0.6, -0.4),
                    64: Estimate(-0.25, -0.3, -0.2),
                },
                difference_from_trained={},
            )
        },
    )
)


@pytest.fixture
def written(tmp_path):
    write_events(tmp_path, TABLE, SUMMARY, {"curve": np.zeros((4, 6, 3), np.uint8)}, "name: demo\n")

    def read(name=""):
        found = EventAccumulator(str(tmp_path / name), size_guidance={"scalars": 0})
        return found.Reload()

    return read


def test_a_scaling_is_a_run_whose_step_is_the_length(written):
    found = written("ntk-4")
    assert set(found.Tags()["scalars"]) == {
        *(f"{u}/{p}" for u in ("nll", "perplexity", "bits_per_byte") for p in
          ("same_tokens", "sliding")),
        *(f"summary/{name}" for name in
          ("usable_length", "blow_up_at_longest", "gain_over_truncation_at_longest")),
    }  # fmt: skip
    points = [(e.step, e.value) for e in found.Scalars("nll/same_tokens")]
    assert points == [(16, 1.5), (64, 1.25)]
    assert found.Scalars("bits_per_byte/sliding")[0].value == pytest.approx(1.125 / math.log(2))


def test_a_run_has_its_settings_and_their_outcome(written):
    found = written("ntk-4").PluginTagToContent(metadata.PLUGIN_NAME)
    content = found[metadata.SESSION_START_INFO_TAG]
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert start.hparams["scaling"].string_value == "ntk"
    assert start.hparams["factor"].string_value == "4"
    assert start.hparams["step"].number_value == 7
    content = found[metadata.EXPERIMENT_TAG]
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment
    names = {info.name.tag for info in experiment.metric_infos}
    assert names == {"summary/usable_length", "summary/blow_up_at_longest",
                     "summary/gain_over_truncation_at_longest"}  # fmt: skip
    scalars = written("ntk-4").Scalars("summary/blow_up_at_longest")
    assert scalars[0].value == pytest.approx(1.3)
    # without a summary there is no outcome
    assert "summary/usable_length" not in written("trained").Tags()["scalars"]


def test_all_scalings_are_on_one_chart(written):
    (event,) = written().Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = {
        category.title: {chart.title: list(chart.multiline.tag) for chart in category.chart}
        for category in layout.category
    }
    assert charts["perplexity"] == {
        "same_tokens": ["perplexity/same_tokens"],
        "sliding": ["perplexity/sliding"],
    }
    assert set(charts) == {"nats per token", "perplexity", "bits per byte"}
    assert written().Images("curve")
