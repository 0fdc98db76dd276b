"""Sweeps of models whose layers differ, and of scalings that scale queries.

Shapes: L layers, B batch, T length, d rotary dimension.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.errors import UserError
from rope_jax.evaluation import sweep
from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, parse_scaling

GEOMETRY = RotaryGeometry(8, 100.0, 16)
LENGTHS = [8, 16, 64]
DOCUMENTS = [np.random.default_rng(size).integers(0, 90, size) for size in (70, 150, 90)]
WEIGHTS = np.float32([1.0, 10.0, 100.0])


def nll_fn(params, tokens, rotary):
    """Return Σ over layers of w_l · (Σ_i θ_i · m) · query scale, whatever the text."""
    frequencies, scale = rotary.frequencies, rotary.query_scale
    by_layer = frequencies.inv_freq.sum(-1) * frequencies.attention_factor  # [L|1, B|1]
    by_layer = by_layer[..., None] * scale
    by_layer = jnp.broadcast_to(by_layer, (3, *by_layer.shape[1:]))
    nll = (by_layer * params[:, None, None]).sum(0)
    return jnp.broadcast_to(nll, (tokens.shape[0], tokens.shape[1] - 1))


def run(scalings, geometry, **settings):
    result = sweep(
        nll_fn,
        scalings,
        LENGTHS,
        DOCUMENTS,
        params=WEIGHTS,
        geometry=geometry,
        bos="none",
        resamples=20,
        **settings,
    )
    return result, {(m.entry, m.length): float(m.sums.mean()) for m in result.measurements}


def total(geometry, scaling, seq_len):
    made = parse_scaling(scaling).frequencies(geometry, seq_len)
    return float(made.inv_freq.sum() * made.attention_factor)


def test_an_entry_is_for_the_layers_without_a_scaling_of_their_own():
    own = {"type": "pi", "factor": 3.0}
    pattern = (
        LayerOverride(),
        LayerOverride(base=7.0),
        LayerOverride(scaling=parse_scaling(own)),
    )
    entries = ["trained", {"type": "dynamic_ntk"}, {"type": "drope", "factor": "auto", "c": 0.5}]
    result, found = run(entries, RotaryLayers(GEOMETRY, 3, pattern))
    assert result.compilations == 3
    other = RotaryGeometry(8, 7.0, 16)
    for length in LENGTHS:
        for label, scaling in (("trained", {"type": "none"}), ("dynamic_ntk", entries[1])):
            wanted = total(GEOMETRY, scaling, length) + 10 * total(other, scaling, length)
            wanted += 100 * total(GEOMETRY, own, length)
            assert found[label, length] == pytest.approx(wanted, rel=1e-5)
        assert found["drope-auto", length] == pytest.approx(
            100 * total(GEOMETRY, own, length), rel=1e-5
        )


def test_one_entry_by_layer_gives_all_entries_its_shape():
    rows = [[0.1] * 4, [0.2] * 4, [0.3] * 4]
    explicit = {"type": "explicit", "inv_freq": rows, "name": "fitted"}
    result, found = run(
        ["trained", explicit, {"type": "pi", "factor": 2}], RotaryLayers(GEOMETRY, 3)
    )
    assert result.compilations == 3  # one per length, whatever differs by layer
    assert found["fitted", 64] == pytest.approx(0.4 + 8 + 120, rel=1e-5)
    plain = total(GEOMETRY, {"type": "none"}, 64)
    assert found["pi-2", 64] == pytest.approx(111 * plain / 2, rel=1e-5)
    with pytest.raises(UserError, match=r"^scalings: fitted: inv_freq: 3 entries for 2 layers$"):
        run(["trained", explicit], RotaryLayers(GEOMETRY, 2))


def test_where_every_layer_has_its_own_an_entry_does_nothing():
    own = (LayerOverride(scaling=parse_scaling({"type": "pi", "factor": 2.0})),)
    with pytest.raises(UserError, match=r"^scalings: ntk-4 changes nothing: every layer of this"):
        run(["trained", {"type": "ntk", "factor": 4}], RotaryLayers(GEOMETRY, 3, own))
    assert run(["trained"], RotaryLayers(GEOMETRY, 3, own))[0].measurements


def test_what_works_on_whole_heads_is_refused_on_a_part():
    layers = RotaryLayers(GEOMETRY, 3, head_dim=16)
    for entry in ({"type": "p_rope", "p": 0.5}, {"type": "drope", "factor": 2, "c": 0.5}):
        with pytest.raises(
            UserError, match=r"works on whole heads; rotary_dim 8 is not head_dim 16"
        ):
            run(["trained", entry], layers)


def test_queries_are_scaled_by_position_without_another_compilation():
    logn = {"type": "none", "query_scale": {"type": "logn"}, "name": "logn"}
    result, found = run(["trained", logn], RotaryLayers(GEOMETRY, 3))
    assert result.compilations == 3
    plain = total(GEOMETRY, {"type": "none"}, 1)
    for length in LENGTHS:
        # the last 4 targets of every window are scored
        positions = np.arange(length - 4, length)
        scale = np.maximum(1, np.log(positions + 1) / np.log(16)).mean()
        assert found["trained", length] == pytest.approx(111 * plain, rel=1e-5)
        assert found["logn", length] == pytest.approx(111 * plain * scale, rel=1e-5)
