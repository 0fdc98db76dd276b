"""The three sentences of an extension: each case says what its intervals allow, and no more."""

import math

import pytest

from rope_jax.extending.verdict import is_below_truncation, passkeys_found, verdict
from rope_jax.results.statistics import Estimate, UsableLength
from rope_jax.results.summary import CheckpointSummary, CurveSummary
from rope_jax.results.tasks import SampleRow

NOTHING = Estimate(0.0, 0.0, 0.0)
FOUND = {
    ("yarn-4", 512): (7, 8),
    ("yarn-4", 128): (8, 8),
    ("trained", 512): (0, 8),
    ("trained", 128): (8, 8),
}


def said(
    at_length,
    at_window=NOTHING,
    *,
    documents=24,
    units=None,
    found=FOUND,
    candidates=3,
    winner="yarn-4",
):
    unknown = UsableLength(None, False, False)
    above = {128: Estimate(*at_window), 512: Estimate(*at_length)}
    summary = CheckpointSummary(
        *("run", 10, 128, 2.0),
        documents=documents,
        units=units or documents,
        curves={winner: CurveSummary(unknown, unknown, {}, above, {})},
    )
    below = is_below_truncation(summary, winner, 512)
    return below, verdict(summary, winner, 512, found, candidates)


@pytest.mark.parametrize(
    ("at_length", "is_below", "says"),
    [
        (
            (-0.043, -0.06, -0.027),
            True,
            "At 512 tokens, yarn-4, the best of 3 on these texts, is better than truncation to the "
            "last 128 tokens: its loss is lower by +0.043 nats per token [+0.027, +0.060] over 24 "
            "documents.",
        ),
        (
            (-0.01, -0.03, 0.01),
            False,
            "At 512 tokens, nothing is known to be better than truncation to the last 128 tokens: "
            "yarn-4, the best of 3 on these texts, differs from it by −0.010 nats per token "
            "[−0.030, +0.010] over 24 documents.",
        ),
        (
            (0.2, 0.1, 0.3),
            False,
            "At 512 tokens, nothing is better than truncation to the last 128 tokens: even yarn-4, "
            "the best of 3 on these texts, loses +0.200 nats per token [+0.100, +0.300] to it over "
            "24 documents, so keep the end of the text alone.",
        ),
    ],
)
def test_the_interval_decides_whether_truncation_is_beaten(at_length, is_below, says):
    assert said(at_length)[0] is is_below
    assert said(at_length)[1][0] == says


def test_the_model_as_it_is_may_be_the_best():
    first = said((0.2, 0.1, 0.3), winner="trained")[1][0]
    assert "even the model as it is, which loses less than any candidate, loses +0.200" in first


@pytest.mark.parametrize("sampled", [{"documents": 9}, {"documents": 3, "units": 19}])
def test_few_documents_make_a_hint_and_no_finding(sampled):
    first = said((-0.2, -0.3, -0.1), **sampled)[1][0]
    kind = "blocks" if "units" in sampled else "documents"
    assert first.endswith(
        f"; intervals over fewer than 20 {kind} are unreliable, so this is a hint and no finding."
    )
    assert "unreliable" not in said((-0.2, -0.3, -0.1), documents=3, units=20)[1][0]


def test_one_document_has_no_interval():
    is_below, (first, *_) = said((-0.2, math.nan, math.nan), documents=1, candidates=1)
    assert not is_below
    assert "nothing is known to be better" in first
    assert "yarn-4 differs" in first
    assert "−0.200 nats per token (one document has no interval)" in first


@pytest.mark.parametrize(
    ("at_window", "says"),
    [
        ((0.0, 0.0, 0.0), "yarn-4 changes nothing."),
        ((0.02, 0.01, 0.03), "yarn-4 costs +0.020 nats per token [+0.010, +0.030], which every"),
        ((0.01, -0.01, 0.03), "yarn-4 has no cost that these texts can tell from 0: +0.010 nats"),
        ((-0.02, -0.03, -0.01), "yarn-4 is better as well: −0.020 nats per token"),
    ],
)
def test_what_texts_that_fit_the_window_pay(at_window, says):
    start = f"At 128 tokens, which the model reads by itself, {says}"
    assert said((0.2, 0.1, 0.3), at_window)[1][1].startswith(start)


def test_passkeys_are_counted_and_what_was_not_measured_is_said():
    last = said((0.2, 0.1, 0.3))[1][2]
    assert last.startswith(
        "Of the passkeys further back than 128 tokens in texts of 512, yarn-4 finds 7 of 8, and "
        "8 of 8 in texts of 128 (the model as it is: 0 of 8 and 8 of 8); not measured: generated"
    )
    missed = FOUND | {("yarn-4", 512): (0, 8), ("yarn-4", 128): (3, 8)}
    assert (
        "they say little about far text; not measured" in said((0.2, 0.1, 0.3), found=missed)[1][2]
    )


def test_samples_that_lack_the_passkey_and_other_checkpoints_do_not_count():
    def row(**changes):
        given = {"name": "pi-4", "task": "passkey", "length": 512, "depth": 0.0}
        given |= {"taken_out": False, "step": 10, "sample": 0, "nll": 1.0, "tokens": 9}
        return SampleRow(**given | {"exact": 1, "answers": 1} | changes)

    samples = [row(), row(depth=0.3, exact=0), row(taken_out=True), row(step=5)]
    assert passkeys_found(samples, 10) == {("pi-4", 512): (1, 2)}
