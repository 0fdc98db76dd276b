"""numbers.png: what is drawn for few heads, for many, and for many layers."""

import numpy as np
import pytest

from rope_jax.config.training import TrainingConfig
from rope_jax.fitting.results import draw_numbers
from tests.fitting.conftest import MODEL
from tests.fitting.test_parameters import OF_MAPS, STARTS, made, random_free, training_config


def panels(figure):
    return {axis.get_title().replace("\n", " "): axis for axis in figure.axes if axis.get_visible()}


def test_every_kind_of_number_has_a_panel():
    parameters = made(STARTS["rerope"], learn=OF_MAPS, far_bands="octaves")
    free = random_free(parameters)
    found = panels(draw_numbers(parameters, free))
    bands = [f"keys from {border} tokens" for border in (9, 18, 36)]
    kinds = ("θ'/θ, {}", "phase φ minus its start, {}", "amplitude a, {}")
    assert set(found) == {
        "λ = θ/θ'",
        *(kind.format(band) for kind in kinds for band in bands),
        "bias, nats",
        "m",
        "query scale, by position",
    }
    assert found["bias, nats"].get_xlabel() == "distance, tokens"
    assert found["query scale, by position"].get_xlabel() == "position of the query"
    assert found["m"].get_xlabel() == "wavelength 2π/θ, tokens"
    assert len(found[f"amplitude a, {bands[0]}"].lines) == 2  # a layer each
    factors = np.median(np.exp(free["frequencies"][0]), axis=0)
    np.testing.assert_allclose(found["λ = θ/θ'"].lines[0].get_ydata(), factors, rtol=1e-5)


@pytest.mark.parametrize(("layers", "labels"), [(2, [0, 1]), (12, [0, 2, 4, 6, 8, 10])])
def test_of_many_heads_the_median_and_the_range_are_drawn(layers, labels):
    raw = training_config().model_dump()
    raw["model"] = MODEL | {"num_hidden_layers": layers, "num_attention_heads": 8, "head_dim": 4}
    parameters = made(STARTS["rerope"], TrainingConfig.model_validate(raw), learn=["far_amplitude"])
    free = random_free(parameters)
    (axis,) = panels(draw_numbers(parameters, free)).values()
    values = np.exp(np.asarray(free["far_amplitude"], np.float64))[0]
    drawn = [line for line in axis.lines if len(line.get_xdata())]
    wavelength = 2 * np.pi / training_config().geometry.inv_freq()
    np.testing.assert_allclose(drawn[0].get_xdata(), wavelength)
    for line, heads in zip(drawn, values, strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.median(heads, axis=0), rtol=1e-5)
    low, high = (axis.collections[0].get_paths()[0].vertices[:, 1].min(), values[0].max())
    assert low == pytest.approx(values[0].min(), rel=1e-5)
    assert axis.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(high, rel=1e-5)
    shown = [text.get_text() for text in axis.figure.legends[0].get_texts()]
    assert shown == [f"layer {layer}" for layer in labels]
