"""The sweep, with models whose results numpy can compute."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.evaluation import sweep
from rope_jax.evaluation.plan import sweep_lengths
from rope_jax.evaluation.protocols import make_streams, plan
from rope_jax.rope import (
    LayerOverride,
    RotaryGeometry,
    RotaryLayers,
    cos_sin,
    parse_scaling,
)
from rope_jax.rope.strategies import (
    NoScaling,
    NTKScaling,
    PIScaling,
    ResonanceScaling,
    YaRNScaling,
)

pytestmark = pytest.mark.usefixtures("compiled_quickly")

BOS = 99
GEOMETRY = RotaryGeometry(rotary_dim=8, base=100.0, train_length=16)
LENGTHS = [8, 16, 24, 64]
PARAMS = {
    "cos": np.float32([0.5, -0.25, 0.125, 1.0]),
    "sin": np.float32([0.3, 0.2, -0.7, 0.4]),
    "context": np.float32(0.01),
}
DOCUMENTS = [
    np.random.default_rng(size).integers(0, 90, size) for size in (64, 150, 65, 90, 40, 331)
]
# A YaRN whose ramp starts after the last pair and whose temperature is 1: it does nothing.
IDLE = {"type": "yarn", "factor": 4, "beta_fast": 2.4e-2, "beta_slow": 1e-2, "attention_factor": 1}


def nll_fn(params, tokens, rotary):
    """NLL that depends on the position's angles, on all tokens before, and on the target."""
    frequencies = jax.tree.map(lambda leaf: leaf[0], rotary.frequencies)  # the one layer's
    cos, sin = cos_sin(frequencies, jnp.arange(tokens.shape[1] - 1)[None])
    by_position = (cos @ params["cos"] + sin @ params["sin"]) * rotary.query_scale[0]
    context = jnp.cumsum(tokens[:, :-1], axis=1) % 101
    by_text = context.astype(jnp.float32) * params["context"] + tokens[:, 1:].astype(jnp.float32)
    return by_text + by_position


def reference(window, inv_freq, m=1.0):
    """Compute the same for one window of n + 1 tokens, in float64."""
    angles = np.arange(len(window) - 1)[:, None] * inv_freq
    by_position = m * (np.cos(angles) @ PARAMS["cos"] + np.sin(angles) @ PARAMS["sin"])
    return 0.01 * (np.cumsum(window[:-1]) % 101) + window[1:] + by_position


def cheap_nll(params, tokens, rotary):
    """Depends on tokens, position and frequencies as well, but compiles at once."""
    by_row = rotary.frequencies.inv_freq.sum((0, 2)) * rotary.frequencies.attention_factor.sum(0)
    position = jnp.arange(tokens.shape[1] - 1, dtype=jnp.float32)[None]
    return by_row[:, None] * position + tokens[:, 1:].astype(jnp.float32)


def run(scalings=("trained",), lengths=LENGTHS, documents=DOCUMENTS, nll=nll_fn, **settings):
    settings = {"params": PARAMS, "geometry": GEOMETRY, "bos_id": BOS} | settings
    return sweep(nll, list(scalings), lengths, documents, **settings)


def plain_frequencies(base=100.0):
    return base ** (-np.arange(0, 8, 2) / 8)


def expected_sums(protocol, length, inv_freq, *, bos="document", m=1.0, lengths=LENGTHS):
    """Σ NLL and Σ weight by document, one window at a time."""
    _, streams = make_streams(
        DOCUMENTS, longest=lengths[-1], max_documents=64, bos=bos, bos_id=BOS, seed=0
    )
    settings = {"targets": lengths[0] // 2, "blocks": 2, "stride": 5, "seed": 0}
    windows = plan(protocol, streams, length, lengths=lengths, **settings)
    nll, weight = np.zeros(len(streams)), np.zeros(len(streams))
    for index, start, first in zip(*windows, strict=True):
        window = streams[index][start : start + length + 1].astype(np.int64)
        if bos == "every_window":
            window[0] = BOS
        scored = reference(window, inv_freq, m)[first - 1 :]
        nll[index] += scored.mean() if protocol == "yarn_compat" else scored.sum()
        weight[index] += 1 if protocol == "yarn_compat" else len(scored)
    return nll, weight


def figures(result):
    """{(entry, protocol, length): measurement}."""
    return {(m.entry, m.protocol, m.length): m for m in result.measurements}


def of_last(nll):
    """Make an nll_of_last of an nll_fn; it fails if all targets are asked for."""

    def function(params, tokens, rotary, last):
        assert last < tokens.shape[1] - 1
        return nll(params, tokens, rotary)[:, -last:]

    return function


PROTOCOLS = ["same_tokens", "whole_window", "sliding", "per_position", "yarn_compat"]


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
        protocols=PROTOCOLS,
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
    assert result.documents == len(weight) == (4 if bos == "none" else 5)


def test_positions_are_read_as_prefixes_where_frequencies_are_equal():
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
    # One batch per length: all five at 64; below, those whose numbers differ from there.
    assert sorted(read) == LENGTHS
    assert result.compilations == 4
    # Separate passes agree: each length as the longest one, for the windows of 64.
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
    """Σ NLL by document of the last bucket, from windows of lengths[-1] at 64's places."""
    _, streams = make_streams(
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
    sums = np.zeros(len(streams))
    for index, stream in enumerate(streams):
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


def test_same_tokens_is_one_set_of_targets_and_other_protocols_are_not():
    result = run(["none", "trained"], nll=cheap_nll, protocols=["same_tokens", "whole_window"])
    prints = {}
    for m in result.measurements:
        prints.setdefault(m.protocol, set()).add(m.targets)
    assert len(prints["same_tokens"]) == 1
    assert len(prints["whole_window"]) == len(LENGTHS)


def gib(tokens):
    """Return the memory budget for this many tokens."""
    return tokens * 2**14 / 2**30


@pytest.mark.parametrize("tokens", [1, 130, 10**6])
def test_the_batch_size_does_not_change_results(tokens):
    settings = {"nll": cheap_nll, "protocols": ["same_tokens", "whole_window"], "lengths": [8, 64]}
    scalings = ["trained", {"type": "pi", "factor": 3}]
    wanted = run(scalings, memory_gib=gib(64), **settings)
    found = run(scalings, memory_gib=gib(tokens), **settings)
    for a, b in zip(wanted.measurements, found.measurements, strict=True):
        np.testing.assert_array_equal(a.sums.weight, b.sums.weight)
        np.testing.assert_allclose(a.sums.nll, b.sums.nll, rtol=1e-6)  # XLA rounds by shape


def batches(**settings):
    """Return the shapes of the tokens that a sweep of whole windows reads."""
    shapes = set()

    def nll(params, tokens, rotary):
        shapes.add(tokens.shape)
        return cheap_nll(params, tokens, rotary)

    run(nll=nll, protocols=["whole_window"], max_blocks=100, **settings)
    return shapes


def test_batches_fit_the_budget_and_are_equal():
    # 80, 40, 24 and 10 windows, at most 12, 6, 4 and 1 at a time: in 7, 7, 6 and 10 batches
    assert batches(memory_gib=gib(100)) == {(12, 9), (6, 17), (4, 25), (1, 65)}
    assert batches(memory_gib=gib(1000)) == {(80, 9), (40, 17), (24, 25), (10, 65)}  # all at once
    more = batches(memory_gib=gib(100), row_multiple=4)
    assert more == {(12, 9), (8, 17), (4, 25), (4, 65)}
    # what a row takes is the caller's to say: here the square of its length
    squares = batches(memory_gib=64**2 * 2 / 2**30, row_bytes=lambda n: n**2)
    assert squares == {(80, 9), (20, 17), (12, 25), (2, 65)}


def test_only_the_last_targets_are_asked_for_if_no_others_are_scored():
    asked = []

    def last_alone(params, tokens, rotary, last):
        asked.append((tokens.shape[1] - 1, last))
        return cheap_nll(params, tokens, rotary)[:, -last:]

    def whole(params, tokens, rotary):
        asked.append((tokens.shape[1] - 1, None))
        return cheap_nll(params, tokens, rotary)

    run(nll=whole, nll_of_last=last_alone, targets=3)
    assert asked == [(64, 3), (24, 3), (16, 3), (8, 3)]
    asked.clear()
    # the first of the sliding windows is scored whole
    run(nll=whole, nll_of_last=last_alone, protocols=["same_tokens", "sliding"], stride=4)
    assert asked == [(64, None), (24, None), (16, None), (8, None)]


def test_an_infinite_token_stays_in_its_own_document():
    def nll(params, tokens, rotary):
        plain = cheap_nll(params, tokens, rotary)
        return jnp.where(tokens[:, 1:] == 95, jnp.float32(jnp.inf), plain)

    documents = [document.copy() for document in DOCUMENTS]
    documents[3][-20:] = 95
    result = run(documents=documents, nll=nll, lengths=[8, 64], protocols=["whole_window"])
    for m in result.measurements:
        # of the five documents long enough the fourth; its last tokens are past one 64-token tile
        assert np.isfinite(m.sums.nll).all()
    documents[3][5] = 95
    result = run(documents=documents, nll=nll, lengths=[8, 64], protocols=["whole_window"])
    for m in result.measurements:
        np.testing.assert_array_equal(np.isfinite(m.sums.nll), [True, True, True, False, True])


# Compilations: as many as shapes, whatever the number of scalings


@pytest.fixture
def backend_compiles():
    """Record the compilations that JAX itself reports."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


FIVE = [
    "trained",
    {"type": "pi", "factor": "auto"},
    {"type": "ntk", "factor": 2},
    {"type": "yarn", "factor": "auto"},
    {"type": "yarn", "factor": 8, "beta_fast": 4},
]


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize(
    ("protocols", "shapes"),
    [
        (["same_tokens"], 4),
        (["sliding"], 4),
        (["same_tokens", "whole_window", "per_position"], 4),
    ],
)
def test_one_compilation_per_length(backend_compiles, count, protocols, shapes):
    traced = []

    def nll(params, tokens, rotary):
        traced.append(tokens.shape)
        return cheap_nll(params, tokens, rotary)

    # the last batch of every length is a short one
    result = run(FIVE[:count], nll=nll, protocols=protocols, memory_gib=gib(50))
    assert len(traced) == len(set(traced)) == shapes
    assert len(backend_compiles) == shapes
    assert result.compilations == shapes


def test_equal_frequencies_run_once():
    rows = {}

    def nll(params, tokens, rotary):
        rows[tokens.shape[1] - 1] = tokens.shape[0]
        return cheap_nll(params, tokens, rotary)

    scalings = ["trained", "none"]
    scalings += [{"type": kind, "factor": "auto"} for kind in ("pi", "ntk", "yarn")]
    scalings += [{"type": "pi", "factor": 4}]
    result = run(scalings, nll=nll, memory_gib=1.0)  # all of a length in one batch
    # Up to the window of 16 every automatic factor is 1. At 64 "auto" is 4.
    curves = {8: 2, 16: 2, 24: 5, 64: 4}
    windows = 8
    assert rows == {n: windows * c for n, c in curves.items()}
    # and every curve has its measurements
    assert len(result.measurements) == len(scalings) * len(LENGTHS)


# A scaling that does nothing is refused


@pytest.mark.parametrize("factor", [4, "auto"])
def test_a_scaling_that_changes_nothing_is_refused_before_any_work(factor):
    def nll(params, tokens, rotary):
        raise AssertionError("traced")

    entry = {**IDLE, "factor": factor, "name": "idle"}
    with pytest.raises(UserError) as caught:
        run(["trained", entry], nll=nll)
    assert str(caught.value) == (
        "scalings: idle: factor: 4 changes no frequency at train_length 16; "
        "check yarn's other settings"
    )


@pytest.mark.parametrize(
    ("entry", "lengths"),
    [
        ({**IDLE, "attention_factor": 1.1}, LENGTHS),  # the temperature is a change
        ({**IDLE, "beta_fast": 9e-2}, LENGTHS),  # so is the last pair's frequency
        ({**IDLE, "factor": 1}, LENGTHS),  # nothing was promised
        ({**IDLE, "factor": "auto"}, [8, 16]),
        ({"type": "pi", "factor": "auto"}, [8, 16]),
        ("none", LENGTHS),
    ],
)
def test_a_scaling_that_changes_something_or_need_not_is_accepted(entry, lengths):
    result = run([entry], lengths, nll=cheap_nll)
    assert len(result.measurements) == len(lengths)


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


def test_lengths_by_default_come_from_the_window():
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


def test_there_is_no_baseline_without_the_window_or_the_same_tokens():
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
    # 12 windows a reading, 6 and 12 at a time
    settings = {"lengths": [8, 16], "memory_gib": gib(96)}
    run(scalings, nll=cheap_nll, progress=lambda *call: calls.append(call), **settings)
    done = [0, 96, 192, 288, 384, 384, 480, 576, 576]
    labels = ["length 16"] * 5 + ["length 8"] * 3 + ["done"]
    assert calls == [(a, b, 576) for a, b in zip(labels, done, strict=True)]


# Interrupted


@pytest.mark.parametrize("tokens", [8, 200])  # one reading at a time, and several in a batch
def test_an_interrupted_sweep_resumes_where_it_was(tokens):
    entries = ["trained", {"type": "pi", "factor": "auto"}, {"type": "ntk", "factor": 2}]
    settings = {"protocols": ["same_tokens", "per_position"], "memory_gib": gib(tokens)}
    settings["nll_of_last"] = of_last(cheap_nll)
    whole = run(entries, nll=cheap_nll, **settings)

    class Interrupting(dict):
        def __setitem__(self, key, value):
            if len(self) == 7:
                raise KeyboardInterrupt
            super().__setitem__(key, value)

    journal = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        run(entries, nll=cheap_nll, journal=journal, **settings)
    kept = dict(journal)
    assert len(kept) == 7
    read = []

    def nll(params, tokens, rotary):
        jax.debug.callback(lambda: read.append(tokens.shape[1] - 1))
        return cheap_nll(params, tokens, rotary)

    settings["nll_of_last"] = of_last(nll)
    result = run(entries, nll=nll, journal=kept, **settings)
    jax.effects_barrier()
    for a, b in zip(whole.measurements, result.measurements, strict=True):
        np.testing.assert_array_equal(a.sums, b.sums)
        assert (a.entry, a.length, a.targets) == (b.entry, b.length, b.targets)
    # the longest had been read but for one reading; nothing is read twice
    in_all = len(read)
    read.clear()
    run(entries, nll=nll, journal={}, **settings)
    jax.effects_barrier()
    assert 0 < in_all < len(read)
    read.clear()
    run(entries, nll=nll, journal=kept, **settings)
    jax.effects_barrier()
    assert read == []


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"targets": 3},
        {"bos": "every_window"},
        {"max_blocks": 1},
        {"documents": DOCUMENTS[::-1]},
        {"scalings": [{"type": "pi", "factor": 5}]},
        {"protocols": ["sliding"], "stride": 3},
        {"lengths": [8, 16, 64], "protocols": ["per_position"]},
    ],
    ids=lambda change: "-".join(change),
)
def test_measurements_with_other_settings_are_not_reused(change):
    journal = {}
    base = {"nll": cheap_nll, "scalings": [{"type": "pi", "factor": 4}], "journal": journal}
    for protocol, stride in (("same_tokens", None), ("sliding", 4), ("per_position", None)):
        run(**base, protocols=[protocol], stride=stride)
    before = set(journal)
    found = run(**(base | change))
    fresh = run(**(base | change | {"journal": {}}))
    assert set(journal) - before
    for a, b in zip(found.measurements, fresh.measurements, strict=True):
        np.testing.assert_array_equal(a.sums, b.sums)


def test_only_measurements_of_this_sweep_count_as_reused():
    journal, told = {}, []
    settings = {"nll": cheap_nll, "journal": journal, "resuming": lambda *call: told.append(call)}
    run(["trained", {"type": "ntk", "factor": 2}], **settings)
    assert told == []  # an empty journal
    # `none` is `trained` here: one entry of the journal serves both. The rest of it is of ntk.
    run(["trained", "none", {"type": "pi", "factor": 2}], **settings)
    assert told == [(8, 12)]
    run([{"type": "pi", "factor": 3}], **settings)
    assert told == [(8, 12)]  # nothing to reuse, nothing said


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scalings": ["yran"]}, "sweep: scalings.0.type: 'yran' is not one of"),
        ({"scalings": []}, "sweep: scalings: "),
        ({"lengths": [64, 8]}, "sweep: lengths: [64, 8] must be ascending, without repeats"),
        ({"lengths": []}, "sweep: lengths: give at least one"),
        ({"memory_gb": 3}, "sweep: memory_gb: unknown key; did you mean memory_gib?"),
        ({"stride": 9}, "sweep: stride: 9 is more than the shortest length, 8: tokens between"),
        (
            {"lengths": None, "window": 16, "stride": 9, "protocols": ["sliding"]},
            "stride: 9 is more than the shortest length, 8",
        ),
        ({"protocols": ["same"]}, "sweep: protocols.0: "),
        ({"targets": 5}, "sweep: lengths: 8 is too short for 5 scored targets"),
        ({"lengths": None, "window": 4, "targets": 2}, "lengths: 2 is too short for 2 scored"),
        ({"bos_id": None}, "bos: there is no document-start token; give bos_id, or bos: none"),
        (
            {"lengths": [8, 400]},
            "lengths: none of the 6 documents has the 401 tokens that length 400 needs; "
            "the longest possible length is 331",
        ),
    ],
)
def test_bad_input_is_a_user_error(settings, message):
    with pytest.raises(UserError) as caught:
        run(**({"nll": cheap_nll} | settings))
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "geometry", "key"),
    [
        ({"type": "ntk", "factor": 2}, RotaryGeometry(2, 100.0, 16), "rotary_dim"),
        ({"type": "yarn", "factor": "auto"}, RotaryGeometry(8, 1.0, 16), "base"),
    ],
)
def test_a_geometry_that_a_scaling_has_no_formula_for_is_a_user_error(entry, geometry, key):
    with pytest.raises(UserError, match=key):
        run([entry], geometry=geometry, nll=cheap_nll)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"type": "explicit", "inv_freq": [1, 0.5, 0.1]},
            "explicit: inv_freq: 3 numbers for the 4 pairs of rotary_dim 8",
        ),
        (
            {"type": "explicit", "factors": [[1, 1, 1, 1]] * 3, "name": "mine"},
            "mine: factors: 3 entries for 2 layers",
        ),
        (
            {"type": "explicit", "factors": [1, 1, 1, 1], "attention_factor": [1, 1, 1]},
            "explicit: attention_factor: 3 entries for 2 layers",
        ),
        (
            {"type": "longrope", "factor": "auto", "short_factor": [1], "long_factor": [2] * 4},
            "longrope-auto: short_factor: 1 numbers for the 4 pairs of rotary_dim 8",
        ),
        (
            {"type": "longrope", "factor": "auto", "short_factor": [1] * 4, "long_factor": [2] * 5},
            "longrope-auto: long_factor: 5 numbers for the 4 pairs of rotary_dim 8",
        ),
    ],
)
def test_lists_that_do_not_fit_the_model_are_a_user_error(entry, message):
    def nll(params, tokens, rotary):
        raise AssertionError("traced")

    with pytest.raises(UserError) as caught:
        run(["trained", entry], geometry=RotaryLayers(GEOMETRY, count=2), nll=nll)
    assert str(caught.value) == f"scalings: {message}"


@pytest.mark.parametrize("factor", ["auto", 4])
def test_layers_may_be_alike_in_some_entries_or_at_some_lengths_alone(factor):
    # at 64 "auto" is 4: there, and in this entry, every layer is the same
    own = LayerOverride(scaling=PIScaling(factor=4))
    layers = RotaryLayers(GEOMETRY, 2, (own, LayerOverride()))
    result = run([{"type": "pi", "factor": factor}], geometry=layers, nll=cheap_nll)
    assert len(result.measurements) == len(LENGTHS)
    assert result.baseline is not None


def test_no_document_start_token_is_needed_where_none_is_asked_for():
    result = run(bos="none", bos_id=None, nll=cheap_nll)
    assert result.documents == 4


def test_a_strategy_may_be_given_as_its_settings():
    assert NoScaling() == run(["none"], nll=cheap_nll).measurements[0].scaling
    settings = YaRNScaling(factor=4, beta_fast=16)
    result = run([settings.model_dump()], nll=cheap_nll)
    assert {m.scaling for m in result.measurements} == {settings}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda nll: nll[:, 1:],
        lambda nll: jnp.pad(nll, ((0, 0), (0, 1))),
        lambda nll: nll.mean(),
        lambda nll: nll.astype(jnp.bfloat16),
    ],
)
def test_a_model_that_returns_something_else_is_refused(wrong):
    with pytest.raises(UserError, match=r"^nll_fn: returned .* it must return float32 \[\d+, 64\]"):
        run(nll=lambda *args: wrong(cheap_nll(*args)))
