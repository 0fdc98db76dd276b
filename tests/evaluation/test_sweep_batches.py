"""The sweep's batches, programs, memory and journal: they change the cost, never the results."""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.errors import UserError
from rope_jax.evaluation import measure
from tests.evaluation.toy_model import (
    DOCUMENTS,
    LEAKY,
    LENGTHS,
    LOGN,
    SINKS,
    Interrupting,
    assert_equal,
    cheap_nll,
    gib,
    recording,
    run,
    windows_of,
)

PI = {"type": "pi", "factor": 3}
NTK = {"type": "ntk", "factor": 2}
AUTO = [{"type": kind, "factor": "auto"} for kind in ("pi", "ntk", "yarn")]


def batches(**settings):
    """Return the shapes of the tokens that a sweep of whole windows reads."""
    nll, shapes = recording()
    run(nll=nll, protocols=["whole_window"], max_blocks=100, **settings)
    return set(shapes)


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
    assert asked == [(64, 3), (24, 3), (16, 3), (8, 3)]  # whether the longest fits, shows at once
    asked.clear()
    # the first of the sliding windows is scored whole
    run(nll=whole, nll_of_last=last_alone, protocols=["same_tokens", "sliding"], stride=4)
    assert asked == [(64, None), (24, None), (16, None), (8, None)]


def test_an_infinite_token_stays_in_its_own_document():
    def nll(params, tokens, rotary):
        plain = cheap_nll(params, tokens, rotary)
        return jnp.where(tokens[:, 1:] == 95, jnp.float32(jnp.inf), plain)

    documents = [document.copy() for document in DOCUMENTS]
    documents[3][-20:] = 95  # the fourth of 21 long enough; these are past its only tile
    settings = {"nll": nll, "lengths": [8, 64], "protocols": ["whole_window"]}
    for m in run(documents=documents, **settings).measurements:
        assert np.isfinite(m.sums.nll).all()
    documents[3][5] = 95
    for m in run(documents=documents, **settings).measurements:
        np.testing.assert_array_equal(np.isfinite(m.sums.nll), [n != 3 for n in range(21)])


# Programs: as many as shapes, whatever the number of scalings


def test_one_compilation_per_length():
    nll, traced = recording()
    entries = ["trained", NTK, AUTO[0], AUTO[2], {"type": "yarn", "factor": 8, "beta_fast": 4}]
    protocols = ["same_tokens", "whole_window", "per_position"]
    # the last batch of every length is a short one
    result = run(entries, nll=nll, protocols=protocols, memory_gib=gib(50))
    assert len(traced) == len(set(traced)) == result.compilations == 4


@pytest.mark.parametrize(
    ("entries", "protocol", "curves"),
    [
        # up to the window of 16 every automatic factor is 1; at 64 "auto" is 4
        (["trained", "none", *AUTO, {"type": "pi", "factor": 4}], "same_tokens", [4, 5, 2, 2]),
        # all at 64; below, those whose frequencies differ from those at 64, which are equal up to
        # the window
        (["trained", NTK, AUTO[0], "dynamic_ntk", LOGN], "per_position", [5, 2, 1, 1]),
    ],
)
def test_equal_readings_run_once(entries, protocol, curves):
    nll, shapes = recording()
    result = run(entries, nll=nll, protocols=[protocol], memory_gib=1.0)  # a length in one batch
    windows = len(windows_of(protocol, 64)[0])
    counts = zip(curves, LENGTHS[::-1], strict=True)
    assert shapes == [(windows * count, n + 1) for count, n in counts]
    # and every curve has its measurements
    assert len(result.measurements) == len(entries) * len(LENGTHS)


# Memory


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, r"lengths: \d+ × 64 tokens at a time take at least .* only 6e-08; lower memory_gib"),
        ({"memory_gib": 1e-9}, r"lengths: 1 × 64 .*; leave out the longest length"),
    ],
)
def test_what_does_not_fit_into_memory_is_refused_before_anything_is_read(
    monkeypatch, settings, says
):
    monkeypatch.setattr(measure, "least_available", lambda: 64)
    with pytest.raises(UserError, match=f"^{says}$"):
        run(lengths=[8, 64], programs={}, journal=Interrupting(0), **settings)


# Interrupted


BASE = {"lengths": [8, 64], "scalings": [PI | {"map": LEAKY}]}


@pytest.fixture(scope="module")
def complete_journal():
    journal = {}
    for protocol, stride in (("same_tokens", None), ("sliding", 4), ("per_position", None)):
        run(**BASE, journal=journal, protocols=[protocol], stride=stride)
    return journal


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"targets": 3},
        {"bos": "every_window"},
        {"max_blocks": 1},
        {"documents": DOCUMENTS[::-1]},
        {"protocols": ["sliding"], "stride": 3},
        {"lengths": LENGTHS, "protocols": ["per_position"]},
        {"scalings": [{"type": "pi", "factor": 5, "map": LEAKY}]},
        {"scalings": [PI | {"map": LEAKY | {"k": 41.0}}]},
        {"scalings": [PI | {"map": LEAKY | {"window": 9}}]},
        {"scalings": [PI | {"map": SINKS}]},
        {"scalings": [PI]},
    ],
    ids=lambda change: "-".join(change),
)
def test_measurements_with_other_settings_are_not_reused(complete_journal, change):
    journal = dict(complete_journal)
    found = run(**(BASE | change), journal=journal)
    assert len(journal) > len(complete_journal)
    assert_equal(found, run(**(BASE | change)))
