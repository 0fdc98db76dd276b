"""The sweep: what it measures, against numpy, and what it is compared with."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import sweep_lengths
from rope_jax.protocols import PROTOCOLS
from rope_jax.protocols.windows import make_streams
from rope_jax.rope import (
    RotaryLayers,
    parse_scaling,
)
from rope_jax.rope.strategies import (
    NTKScaling,
    PIScaling,
    ResonanceScaling,
    YaRNScaling,
)
from tests.evaluation.test_sweep_batches import gib
from tests.evaluation.toy_model import (
    BOS,
    DOCUMENTS,
    GEOMETRY,
    LENGTHS,
    PARAMS,
    cheap_nll,
    figures,
    nll_fn,
    of_last,
    plain_frequencies,
    reference,
    run,
)


def expected_sums(protocol, length, inv_freq, *, bos="document", m=1.0, lengths=LENGTHS):
    """Return Σ NLL and Σ weight by document, computed one window at a time."""
    streams = make_streams(
        DOCUMENTS, longest=lengths[-1], max_documents=64, bos=bos, bos_id=BOS, seed=0
    )
    settings = {"targets": lengths[0] // 2, "max_blocks": 2, "stride": 5, "seed": 0}
    windows = PROTOCOLS[protocol](streams, lengths=lengths, **settings).windows(length)
    nll, weight = np.zeros(len(streams.tokens)), np.zeros(len(streams.tokens))
    for index, start, first, _ in zip(*windows[:4], strict=True):
        window = streams.tokens[index][start : start + length + 1].astype(np.int64)
        if bos == "every_window":
            window[0] = BOS
        scored = reference(window, inv_freq, m)[first - 1 :]
        nll[index] += scored.mean() if protocol == "yarn_compat" else scored.sum()
        weight[index] += 1 if protocol == "yarn_compat" else len(scored)
    return nll, weight


# What is measured


@pytest.mark.parametrize(
    ("bos", "settings"),
    [
        ("document", {}),
        ("every_window", {"nll_of_last": of_last(nll_fn)}),
        ("none", {"memory_gib": 1.0}),  # batches of several entries, each row with its own
    ],
)
def test_every_measurement_is_what_numpy_computes(bos, settings):
    trained = YaRNScaling(factor=2)
    result = run(
        ["trained", "none", {"type": "pi", "factor": "auto"}, {"type": "ntk", "factor": 4}],
        trained=trained,
        protocols=list(PROTOCOLS),
        stride=5,
        bos=bos,
        **({"memory_gib": 100 * 2**14 / 2**30} | settings),
    )
    own, m = trained.scaled(GEOMETRY)
    at = {
        "trained": lambda n: (own, m),
        "none": lambda n: (plain_frequencies(), 1.0),
        "pi-auto": lambda n: (plain_frequencies() / max(1, n / 16), 1.0),
        "ntk-4": lambda n: (plain_frequencies(100.0 * 4 ** (8 / 6)), 1.0),
    }
    found = figures(result)
    assert found.keys() == set(itertools.product(at, PROTOCOLS, LENGTHS))
    assert len(found) == len(result.measurements)
    for (entry, protocol, length), measured in found.items():
        inv_freq, factor = at[entry](length)
        nll, weight = expected_sums(protocol, length, inv_freq, bos=bos, m=factor)
        np.testing.assert_allclose(measured.sums.weight, weight, rtol=1e-12)
        np.testing.assert_allclose(measured.sums.nll, nll, rtol=2e-6, atol=1e-4)
        if protocol != "yarn_compat":
            assert measured.tokens == weight.sum()
    assert result.documents == len(weight) == (20 if bos == "none" else 21)


@pytest.mark.usefixtures("compiled_quickly")
def test_per_position_reuses_the_longest_windows_where_frequencies_are_equal():
    read = []

    def nll(params, tokens, rotary):
        jax.debug.callback(lambda: read.append(tokens.shape[1] - 1))
        return nll_fn(params, tokens, rotary)

    entries = [
        "trained",
        {"type": "ntk", "factor": 2},
        {"type": "pi", "factor": "auto"},
        "dynamic_ntk",
        {"type": "none", "query_scale": {"type": "logn"}, "name": "logn"},
    ]
    settings = {"protocols": ["per_position"], "memory_gib": 1.0}
    result = run(entries, nll=nll, **settings)
    jax.effects_barrier()
    # One batch per length: all five at 64; below, those whose frequencies differ from those at 64.
    assert sorted(read) == LENGTHS
    assert result.compilations == 4
    # Separate passes agree: each length as the longest, over the same places as the windows of 64.
    found = figures(result)
    for index, length in enumerate(LENGTHS):
        for entry in entries:
            label = entry if isinstance(entry, str) else entry.get("name")
            label = label or f"{entry['type']}-{entry['factor']}"
            separate = separate_pass(entry, LENGTHS[: index + 1])
            np.testing.assert_allclose(
                found[label, "per_position", length].sums.nll, separate, rtol=2e-6
            )


def separate_pass(entry, lengths):
    """Return Σ NLL by document of the last bucket, with windows that start where those of 64 do."""
    streams = make_streams(
        DOCUMENTS, longest=64, max_documents=64, bos="document", bos_id=BOS, seed=0
    )
    length, first = lengths[-1], (0, *lengths)[-2]
    settings = {k: v for k, v in entry.items() if k != "name"} if entry is not str(entry) else {}
    settings = settings or {"type": "none" if entry == "trained" else entry}
    if settings.get("factor") == "auto":
        settings = settings | {"factor": max(1.0, length / 16)}
    rotary = RotaryLayers(GEOMETRY).rotary(
        parse_scaling(settings), np.arange(length, dtype=np.int32)[None], length
    )
    sums = np.zeros(len(streams.tokens))
    for index, stream in enumerate(streams.tokens):
        for start in range(0, min(2, (len(stream) - 1) // 64) * 64, 64):
            window = stream[None, start : start + length + 1].astype(np.int32)
            sums[index] += float(nll_fn(PARAMS, jnp.asarray(window), rotary)[0, first:].sum())
    return sums


def test_the_scaling_of_each_measurement_is_recorded():
    result = run(
        [
            {"type": "pi", "factor": "auto"},
            {"type": "yarn", "factor": 8},
            {"type": "resonance", "inner": {"type": "yarn", "factor": "auto"}},
            "trained",
        ],
        trained=NTKScaling(factor=3),
        nll=cheap_nll,
    )
    found = {(m.entry, m.length): m.scaling for m in result.measurements}
    assert [found["pi-auto", n] for n in LENGTHS] == [PIScaling(factor=f) for f in (1, 1, 1.5, 4)]
    assert {found["yarn-8", n] for n in LENGTHS} == {YaRNScaling(factor=8)}
    assert [found["resonance-yarn-auto", n] for n in LENGTHS] == [
        ResonanceScaling(inner=YaRNScaling(factor=f)) for f in (1, 1, 1.5, 4)
    ]
    assert {found["trained", n] for n in LENGTHS} == {NTKScaling(factor=3)}


def test_same_tokens_has_one_set_of_targets_and_other_protocols_have_several():
    result = run(["none", "trained"], nll=cheap_nll, protocols=["same_tokens", "whole_window"])
    prints = {}
    for m in result.measurements:
        prints.setdefault(m.protocol, set()).add(m.targets)
    assert len(prints["same_tokens"]) == 1
    assert len(prints["whole_window"]) == len(LENGTHS)


# Lengths, the window and the baseline


@pytest.mark.parametrize(
    ("lengths", "window", "wanted"),
    [
        ([8, 64], 16, [8, 16, 64]),
        ([8, 16, 64], 16, [8, 16, 64]),
        ([8, 12], 16, [8, 12]),  # all below
        ([32, 64], 16, [32, 64]),  # all above
        ([16], 16, [16]),
        (None, 128, [64, 128, 256, 512, 1024, 2048]),
        (None, 5, [2, 5, 10, 20, 40, 80]),
    ],
)
def test_the_window_is_among_the_lengths_where_it_lies_between_them(lengths, window, wanted):
    assert sweep_lengths(SweepConfig(lengths=lengths), window) == wanted


def test_default_lengths_come_from_the_window():
    document = np.arange(300) % 90
    result = run(lengths=None, window=16, documents=[document], nll=cheap_nll)
    assert [m.length for m in result.measurements] == [8, 16, 32, 64, 128, 256]
    # and the window from the geometry
    assert run(lengths=None, documents=[document], nll=cheap_nll).window == 16


def test_the_window_is_measured_even_if_not_asked_for():
    result = run(["none"], [8, 64], nll=cheap_nll)
    assert [m.length for m in result.measurements] == [8, 16, 64]
    again = run(["none"], [8, 16, 64], nll=cheap_nll)
    for a, b in zip(result.measurements, again.measurements, strict=True):
        np.testing.assert_array_equal(a.sums.nll, b.sums.nll)


def test_the_baseline_is_the_trained_scaling_at_the_window():
    settings = {"trained": PIScaling(factor=3), "window": 24, "nll": cheap_nll}
    result = run([{"type": "ntk", "factor": 2}], **settings)
    baseline = result.baseline
    wanted = figures(run(["trained"], **settings))["trained", "same_tokens", 24]
    np.testing.assert_array_equal(baseline.sums.nll, wanted.sums.nll)
    np.testing.assert_array_equal(baseline.sums.weight, wanted.sums.weight)
    assert baseline.scaling == wanted.scaling == PIScaling(factor=3)
    assert baseline.targets == wanted.targets == result.measurements[0].targets
    # It is not a curve, and costs no compilation.
    assert {m.entry for m in result.measurements} == {"ntk-2"}
    assert result.compilations == len(LENGTHS)


def test_the_window_may_differ_from_the_training_length_of_the_formulas():
    result = run([{"type": "pi", "factor": "auto"}], window=32, nll=cheap_nll)
    factors = {m.length: m.scaling.factor for m in result.measurements}
    assert factors == {8: 1, 16: 1, 24: 1, 32: 1, 64: 2}
    assert result.window == 32


def test_there_is_no_baseline_without_the_window_or_same_tokens():
    assert run(lengths=[32, 64], nll=cheap_nll).baseline is None
    assert run(protocols=["whole_window"], nll=cheap_nll).baseline is None


def test_documents_are_the_same_at_every_length():
    documents = [np.full(size, size % 90) for size in range(60, 90)]
    result = run(documents=documents, nll=cheap_nll, max_documents=5, max_blocks=1, seed=1)
    assert result.documents == 5
    assert {m.targets for m in result.measurements} == {result.measurements[0].targets}
    assert {tuple(m.sums.weight) for m in result.measurements} == {(4,) * 5}


def test_progress_counts_tokens_up_to_the_end_and_the_longest_come_first():
    calls = []
    scalings = ["trained", {"type": "pi", "factor": 3}]
    # 12 windows per reading, 6 and 12 at a time
    documents = [*DOCUMENTS[:6], *(document[:15] for document in DOCUMENTS[6:])]
    settings = {"lengths": [8, 16], "memory_gib": gib(96), "documents": documents}
    run(scalings, nll=cheap_nll, progress=lambda *call: calls.append(call), **settings)
    done = [0, 96, 192, 288, 384, 384, 480, 576, 576]
    labels = ["length 16"] * 5 + ["length 8"] * 3 + ["done"]
    assert calls == [(a, b, 576) for a, b in zip(labels, done, strict=True)]


@pytest.mark.parametrize("bos", ["document", "every_window", "none"])
def test_the_bytes_are_those_of_the_scored_targets(bos):
    """In document d every token is d, and has d + 1 bytes."""
    documents = [np.full(70 + d, d) for d in range(4)]
    settings = {
        "documents": documents,
        "protocols": list(PROTOCOLS),
        "lengths": [8, 16, 32],
        "bos": bos,
    }
    settings |= {"nll": cheap_nll, "targets": 4, "stride": 5, "max_blocks": 2}
    result = run(["trained"], **settings, token_bytes=np.arange(1, 5))
    assert len(result.measurements) == 15
    for m in result.measurements:
        wanted = m.sums.weight * (m.unit_documents + 1)
        # also of yarn_compat, whose weights are windows
        np.testing.assert_allclose(m.sums.bytes, wanted, rtol=1e-12)
    same = run(["trained"], **settings, token_bytes=np.ones(4)).measurements
    assert all(np.array_equal(m.sums.bytes, m.sums.weight) for m in same)
    assert result.to_frame().bpb.notna().all()
    assert run(["trained"], **settings).to_frame().bpb.isna().all()
    with pytest.raises(UserError, match=r"^token_bytes: has no entry for token 3 of the documents"):
        run(["trained"], **settings, token_bytes=np.ones(3))
