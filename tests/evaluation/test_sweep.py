"""The sweep: what it measures, against numpy, and what it is compared with."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.sweep import SweepConfig
from rope_jax.evaluation.plan import sweep_lengths
from rope_jax.protocols import PROTOCOLS
from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.rope.strategies import PIScaling, YaRNScaling
from tests.evaluation.toy_model import (
    DOCUMENTS,
    GEOMETRY,
    LENGTHS,
    LOGN,
    figures,
    gib,
    nll_fn,
    of_last,
    reference,
    run,
    windows_of,
)

TOKEN_BYTES = np.arange(1, 101) % 7 + 1


def expected_sums(protocol, length, bos, **rotation):
    """Return Σ NLL, Σ weight and Σ bytes by document."""
    document, tokens, scored = windows_of(protocol, length, bos=bos)
    weight = scored.sum(1)
    nll = np.where(scored, reference(tokens, **rotation), 0).sum(1)
    size = np.where(scored, TOKEN_BYTES[tokens[:, 1:]], 0).sum(1)
    by_window = (nll, weight, size)
    if protocol == "yarn_compat":
        by_window = tuple(x / weight for x in by_window)
    return [np.bincount(document, x) for x in by_window]


@pytest.mark.parametrize(
    ("bos", "settings"),
    [
        ("document", {}),
        ("every_window", {"nll_of_last": of_last(nll_fn), "protocols": ["same_tokens"]}),
        ("none", {"memory_gib": 1.0}),  # batches of several entries, each row with its own
    ],
)
def test_every_measurement_is_what_numpy_computes(bos, settings):
    trained = YaRNScaling(factor=2)
    plain = GEOMETRY.base ** (-np.arange(0, 8, 2) / 8)
    base = {"over": "base"}
    entries = ["trained", "none", {"type": "pi", "factor": "auto"}, LOGN]
    entries += [{"type": "ntk", "factor": 4} | base, {"type": "dynamic_ntk"} | base]
    own, m = trained.scaled(GEOMETRY)
    dynamic = parse_scaling({"type": "dynamic_ntk"})
    at = {
        "trained": lambda n: {"inv_freq": own, "m": m},
        "none": lambda n: {"inv_freq": plain},
        "pi-auto-over-trained": lambda n: {"inv_freq": own / max(1, n / 16), "m": m},
        "ntk-4-over-base": lambda n: {
            "inv_freq": (100.0 * 4 ** (8 / 6)) ** (-np.arange(0, 8, 2) / 8)
        },
        "dynamic_ntk-over-base": lambda n: {"inv_freq": dynamic.frequencies(GEOMETRY, n).inv_freq},
        "logn": lambda n: {
            "inv_freq": own,
            "m": m,
            "query_scale": np.maximum(1, np.log(np.arange(n) + 1) / np.log(16)),
        },
    }
    defaults = {"protocols": list(PROTOCOLS), "memory_gib": gib(100), "token_bytes": TOKEN_BYTES}
    settings = defaults | settings
    result = run(entries, nll=nll_fn, trained=trained, stride=5, bos=bos, **settings)
    found = figures(result)
    assert found.keys() == set(itertools.product(at, settings["protocols"], LENGTHS))
    assert len(found) == len(result.measurements)
    for (entry, protocol, length), measured in found.items():
        nll, weight, size = expected_sums(protocol, length, bos, **at[entry](length))
        np.testing.assert_allclose(measured.sums.weight, weight, rtol=1e-12)
        np.testing.assert_allclose(measured.sums.bytes, size, rtol=1e-12)
        np.testing.assert_allclose(measured.sums.nll, nll, rtol=2e-6, atol=1e-4)
        if protocol != "yarn_compat":
            assert measured.tokens == weight.sum()
    assert result.documents == len(weight) == (20 if bos == "none" else 21)
    for protocol in settings["protocols"]:
        hashes = {m.targets for m in result.measurements if m.protocol == protocol}
        assert len(hashes) == (1 if protocol == "same_tokens" else 4)


@pytest.mark.parametrize(
    ("lengths", "window", "wanted"),
    [
        ([8, 64], 16, [8, 16, 64]),
        ([8, 16, 64], 16, [8, 16, 64]),
        ([8, 12], 16, [8, 12]),  # all below
        ([32, 64], 16, [32, 64]),  # all above
        (None, 128, [64, 128, 256, 512, 1024, 2048]),
        (None, 5, [2, 5, 10, 20, 40, 80]),
        (None, 3, [3]),
    ],
)
def test_the_window_is_among_the_lengths_where_it_lies_between_them(lengths, window, wanted):
    assert sweep_lengths(SweepConfig(lengths=lengths), [window]) == tuple(wanted)


def test_the_baseline_is_the_trained_scaling_at_the_window():
    settings = {"trained": PIScaling(factor=3), "window": 24}
    entry = {"type": "pi", "factor": "auto"}
    result = run([entry], [8, 64], **settings, programs={})
    baseline = result.baseline
    wanted = figures(run(["trained"], [8, 64], **settings))["trained", "same_tokens", 24]
    np.testing.assert_array_equal(baseline.sums[:2], wanted.sums[:2])
    assert baseline.scaling == wanted.scaling == PIScaling(factor=3)
    assert baseline.targets == wanted.targets == result.measurements[0].targets
    # It is not a curve, and costs no compilation.
    assert {m.entry for m in result.measurements} == {"pi-auto-over-trained"}
    assert result.compilations == 3
    # the window is added to the lengths, and decides the factors
    assert {m.length: m.scaling.factor for m in result.measurements} == {8: 1, 24: 1, 64: 64 / 24}
    over_base = run([entry | {"over": "base"}], [8, 64], **settings)  # L is 16
    assert {m.length: m.scaling.factor for m in over_base.measurements} == {8: 1, 24: 1.5, 64: 4}
    assert run(lengths=[32, 64]).baseline is None
    assert run(protocols=["whole_window"]).baseline is None
    assert run(lengths=None, documents=[np.arange(300) % 90]).window == 16


def test_progress_counts_tokens_and_shows_the_mean_so_far_from_the_shortest_length_on():
    calls = []
    scalings = ["trained", {"type": "pi", "factor": 3}]
    # 12 windows per reading, 6 and 12 at a time
    documents = [*DOCUMENTS[:6], *(document[:15] for document in DOCUMENTS[6:])]
    settings = {"lengths": [8, 16], "memory_gib": gib(96), "documents": documents}
    result = run(scalings, progress=lambda *call: calls.append(call), **settings)
    assert [what for what, *_ in calls[:2]] == [f"compiling for length {n}" for n in (16, 8)]
    assert [done for _, done, _ in calls[:2]] == [0, 0]
    labels, done, totals = zip(*calls[2:], strict=True)
    assert done == (0, 96, 192, 192, 288, 384, 480, 576, 576)
    assert set(totals) == {576}
    means = {(m.entry, m.length): m.sums.mean() for m in result.measurements}
    shown = {name: f"length {name[1]}: {name[0]} {mean:.3f} nats" for name, mean in means.items()}
    assert [labels[i] for i in (0, 3, 8)] == ["length 8", "length 16", "done"]
    assert [labels[i] for i in (1, 2, 5, 7)] == list(shown.values())
    assert labels[4] != labels[5]  # of the first half of the windows


def layered_nll(params, tokens, rotary):
    """Return Σ over layers of w_l · Σ_i θ_i · m, whatever the text."""
    by_layer = rotary.frequencies.inv_freq.sum(-1) * rotary.frequencies.attention_factor
    nll = (jnp.broadcast_to(by_layer, (3, by_layer.shape[1])) * params[:, None]).sum(0)
    return jnp.broadcast_to(nll[:, None], (tokens.shape[0], tokens.shape[1] - 1))


def test_layers_may_have_frequencies_of_their_own():
    own, other = parse_scaling({"type": "pi", "factor": 3.0}), RotaryGeometry(8, 7.0, 16)
    pattern = (LayerOverride(), LayerOverride(base=7.0), LayerOverride(scaling=own))
    rows = [[0.1] * 4, [0.2] * 4, [0.3] * 4]
    explicit = {"type": "explicit", "inv_freq": rows, "name": "fitted"}
    drope = {"type": "drope", "factor": "auto", "c": 0.5}
    settings = {"nll": layered_nll, "params": np.float32([1.0, 10.0, 100.0]), "programs": {}}

    def total(geometry, scaling, length):
        made = scaling.frequencies(geometry, length)
        return float(made.inv_freq.sum() * made.attention_factor)

    # an entry replaces the scaling of the layers without one
    layers = RotaryLayers(GEOMETRY, 3, pattern)
    result = run(["trained", "dynamic_ntk", drope, explicit], geometry=layers, **settings)
    assert result.compilations == len(LENGTHS)  # whatever differs by layer
    for m in result.measurements:
        kept = 100 * total(GEOMETRY, own, m.length)
        if m.entry == "fitted":
            wanted = 0.4 + 8 + kept
        else:
            replaced = total(GEOMETRY, m.scaling, m.length)
            wanted = replaced + 10 * total(other, m.scaling, m.length) + kept
        assert m.sums.mean() == pytest.approx(wanted, rel=1e-5)
