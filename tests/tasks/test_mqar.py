"""`mqar` against zoology's definition: pairs, one question for each, gaps by a power law."""

import numpy as np
import pytest

from rope_jax.tasks import TokenizerView
from tests.tasks.samples import BYTES, NO_START, answered, sample

MANY = TokenizerView(BYTES.encode, 50_000, (3,), has_words=True)


def parts(made, k, start=1):
    """The keys, the values, and the places of the questions, relative to the end of the pairs."""
    tokens = made.tokens[start:]
    (asked,) = np.nonzero(made.answers >= 0)
    order = np.argsort(made.answers[asked])
    return tokens[0 : 2 * k : 2], tokens[1 : 2 * k : 2], asked[order] - start - 2 * k


@pytest.mark.parametrize(("words", "vocabulary"), [(BYTES, 256), (NO_START, 256), (MANY, 8192)])
@pytest.mark.parametrize("k", [1, 4, 25])
def test_every_question_has_its_pair(words, vocabulary, k):
    for seed in range(5):
        made = sample("mqar", 101, words=words, seed=seed, pairs=k)
        start = len(words.start())
        keys, values, gaps = parts(made, k, start)
        assert len(set(keys.tolist())) == len(set(values.tolist())) == k
        assert keys.max() <= vocabulary // 2
        assert values.min() >= vocabulary // 2
        assert values.max() < vocabulary
        assert 3 not in made.tokens[start:].tolist() or words is not MANY
        assert (gaps % 2 == 0).all()
        assert gaps.min() >= 0
        assert len(set(gaps.tolist())) == k
        rest = made.tokens[start + 2 * k :]
        np.testing.assert_array_equal(rest[gaps], keys)
        np.testing.assert_array_equal(rest[gaps + 1], values)
        assert answered(made) == [[value] for value in values.tolist()]


def test_the_rest_is_random_tokens_but_the_key():
    made = sample("mqar", 8000, pairs=1)
    (gap,) = parts(made, 1)[2]
    rest = np.delete(made.tokens[3:], [gap, gap + 1])
    counts = np.bincount(rest, minlength=256)
    assert len(counts) == 256
    key = made.tokens[1]
    assert counts[key] == 0
    assert abs(np.delete(counts, key) - 8000 / 255).max() < 5 * (8000 / 255) ** 0.5


def test_gaps_have_the_power_law_of_zoology_and_differ():
    # two of three places, in order: p_i p_j / (1 − p_i), with p ∝ i^(a − 1)
    p = np.arange(1, 4) ** (0.01 - 1)
    p /= p.sum()
    found = np.zeros((3, 3))
    for seed in range(700):
        first, second = parts(sample("mqar", 10, seed=seed, pairs=2), 2)[2] // 2
        found[first, second] += 1
    want = 700 * np.outer(p, p) / (1 - p)[:, None]
    np.fill_diagonal(want, 0)
    assert (abs(found - want) <= 5 * np.sqrt(want)).all()


def test_every_value_taken_out_is_replaced_by_another():
    for seed in range(20):
        whole, without = (
            sample("mqar", 200, seed=seed, pairs=8, ablated=out) for out in (False, True)
        )
        (keys, values, gaps), (same, others, there) = (parts(made, 8) for made in (whole, without))
        np.testing.assert_array_equal(keys, same)
        np.testing.assert_array_equal(gaps, there)
        assert (values != others).all()
        assert others.min() >= 128
        np.testing.assert_array_equal(whole.tokens[17:], without.tokens[17:])
        assert answered(without) == answered(whole)


def test_a_load_is_a_share_of_the_length_and_has_the_same_pairs_first():
    for load, length, k in ((0.25, 100, 25), (0.1, 99, 9), (0.001, 100, 1)):
        assert len(answered(sample("mqar", length, load=load))) == k
    short, long = (answered(sample("mqar", length, load=0.1)) for length in (100, 500))
    assert long[: len(short)] == short
