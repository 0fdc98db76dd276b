"""Factors on queries by position, against their formulas in float64."""

import math

import jax
import numpy as np
import pytest

from rope_jax.rope import QUERY_SCALES, RotaryGeometry, parse_scaling

GEOMETRY = RotaryGeometry(64, 1e4, 512)
# type: settings, the formula written again for one position
FORMULAS = {
    "logn": ({}, lambda p: max(1.0, math.log(p + 1) / math.log(512))),
    "power": (
        {"s": 1.2, "p": 1.5},
        lambda p: max(1.0, 1.2 * (math.log(p + 1) / math.log(512)) ** 1.5),
    ),
    "llama4": (
        {"attn_scale": 0.2, "floor_scale": 1000},
        lambda p: 1 + 0.2 * math.log(math.floor((p + 1) / 1000) + 1),
    ),
    "constant": ({"s": 1.6}, lambda p: 1.6),
    "ministral": ({"beta": 0.3}, lambda p: 1 + 0.3 * math.log(1 + math.floor(p / 512))),
}
EVERY = pytest.mark.parametrize("name", FORMULAS)


def scaled_by(name, **settings):
    return parse_scaling({"type": "none", "query_scale": {"type": name} | settings})


def test_every_query_scale_has_a_formula_here():
    assert set(FORMULAS) == set(QUERY_SCALES)


@EVERY
def test_query_scales_match_their_formulas(name):
    settings, formula = FORMULAS[name]
    edges = [0, 1, 510, 511, 512, 513, 998, 999, 1000, 1023, 1024, 10**7, 2**31 - 2, 2**31 - 1]
    negative = [-1, -(2**31), *[0] * 12]  # scaled like position 0
    positions = np.array([edges, negative, [7 * p % 100_003 for p in edges]], np.int32)
    wanted = np.vectorize(formula)(np.maximum(positions.astype(np.int64), 0))
    made = scaled_by(name, **settings)
    on_host = made.query_scale_at(GEOMETRY, positions)
    traced = jax.jit(lambda p: made.query_scale_at(GEOMETRY, p))(positions)
    for found in (on_host, traced):
        assert found.dtype == np.float32
        assert found.shape == positions.shape
        np.testing.assert_allclose(found, wanted, rtol=3e-7)
    # every setting changes something
    for field in set(QUERY_SCALES[name].model_fields) - {"type"}:
        changed = scaled_by(name, **settings | {field: 3000 if field == "floor_scale" else 0.7})
        assert not np.array_equal(changed.query_scale_at(GEOMETRY, positions), on_host), field
    for a, b in zip(made.frequencies(GEOMETRY), parse_scaling("none").frequencies(GEOMETRY),
                    strict=True):  # fmt: skip
        np.testing.assert_array_equal(a, b)
    assert not made.length_dependent  # keys stay as they are


@pytest.mark.parametrize("p", [1e-30, 16.0])
@pytest.mark.parametrize("train_length", [2, 2**31 - 1])
def test_power_is_finite_from_the_first_position_to_the_last(p, train_length):
    # ln 1 = 0 at position 0: 0^p, not exp(p·ln 0)
    geometry = RotaryGeometry(64, 1e4, train_length)
    made = scaled_by("power", s=999_999.0, p=p)
    positions = np.array([0, 1, 2**31 - 1], np.int32)
    last = math.log(2**31) / math.log(train_length)
    wanted = [1, max(1, 999_999 * (math.log(2) / math.log(train_length)) ** p), 999_999 * last**p]
    for found in (
        made.query_scale_at(geometry, positions),
        jax.jit(lambda n: made.query_scale_at(geometry, n))(positions),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_positions_and_geometries_that_do_not_fit_are_refused():
    made = scaled_by("logn")
    for positions in ([0, 2**31], (2**31,), np.array([2**31])):
        with pytest.raises(ValueError, match=r"^positions: reach 2147483648; the limit is 2\^31 −"):
            made.query_scale_at(GEOMETRY, positions)
    with pytest.raises(ValueError, match=r"^positions: are float64, not integers"):
        made.query_scale_at(GEOMETRY, [0.5])
    with pytest.raises(ValueError, match=r"^train_length: logn needs at least 2 \(it divides by"):
        made.query_scale_at(RotaryGeometry(64, 1e4, 1), np.arange(3))
    ones = parse_scaling({"type": "pi", "factor": 2.0}).query_scale_at(GEOMETRY, np.arange(5)[None])
    np.testing.assert_array_equal(ones, np.ones((1, 5), np.float32))
