"""The sweep's batches and compilations: they change the cost, never the results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluation.toy_model import DOCUMENTS, LENGTHS, cheap_nll, run


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


def test_batches_fit_the_budget_and_are_equal_in_size():
    # 208, 104, 56 and 26 windows, at most 12, 6, 4 and 1 at a time: in 18, 18, 14 and 26 batches
    assert batches(memory_gib=gib(100)) == {(12, 9), (6, 17), (4, 25), (1, 65)}
    assert batches(memory_gib=gib(2000)) == {(208, 9), (104, 17), (56, 25), (26, 65)}  # all at once
    more = batches(memory_gib=gib(100), row_multiple=lambda n: 4)
    assert more == {(12, 9), (8, 17), (4, 25), (4, 65)}
    # the caller says what a row takes: here the square of its length
    squares = batches(memory_gib=64**2 * 2 / 2**30, row_bytes=lambda n: n**2)
    assert squares == {(104, 9), (26, 17), (14, 25), (2, 65)}


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
        # documents[3] is the fourth of 21 long enough; its last tokens are past its only tile
        assert np.isfinite(m.sums.nll).all()
    documents[3][5] = 95
    result = run(documents=documents, nll=nll, lengths=[8, 64], protocols=["whole_window"])
    for m in result.measurements:
        np.testing.assert_array_equal(np.isfinite(m.sums.nll), [n != 3 for n in range(21)])


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
    windows = 38
    assert rows == {n: windows * c for n, c in curves.items()}
    # and every curve has its measurements
    assert len(result.measurements) == len(scalings) * len(LENGTHS)
