"""Near-copies: compared with plain Python sets, and on planted texts."""

import random
import zlib

import numpy as np
import pytest

from rope_jax.data.stdlib import near_copies, share_seen, shingles


def words(seed, count):
    rng = random.Random(seed)
    return [f"w{rng.randrange(10**6)}" for _ in range(count)]


def plain_shingles(text):
    """Compute shingles by their definition, with Python's integers."""
    crc = [zlib.crc32(word.encode()) for word in text.split()]
    return {
        sum(c * 0x9E3779B97F4A7C15 ** (4 - j) for j, c in enumerate(crc[i : i + 5])) % 2**64
        for i in range(len(crc) - 4)
    }


def test_shingles_are_the_distinct_hashed_5_grams():
    text = " ".join(words(0, 60) + words(1, 40) + words(0, 60))
    assert shingles(text).tolist() == sorted(plain_shingles(text))


@pytest.mark.parametrize("text", ["", "four words are few", "— … !"])
def test_short_texts_have_no_shingles(text):
    assert shingles(text).tolist() == []


def test_layout_and_punctuation_do_not_hide_a_copy():
    assert np.array_equal(
        shingles("def f(a, b):\n    return a + b"), shingles("def f(a,b): return a+b")
    )


def test_a_planted_copy_is_dropped_and_unrelated_texts_are_kept():
    original, other = words(0, 400), words(1, 400)
    edited = [*original[:100], "edit", *original[100:250], "edit", *original[250:350]]
    half = words(2, 200)
    texts = [edited, original, other, [*half, *words(3, 300)], [*half[:80], *words(4, 300)]]
    found = near_copies([shingles(" ".join(text)) for text in texts])
    assert found == {0}  # the smaller of the two


def test_a_text_contained_in_a_larger_one_is_dropped():
    long = words(0, 1000)
    texts = [long[300:400], long]  # Jaccard similarity 0.1
    assert near_copies([shingles(" ".join(text)) for text in texts]) == {0}


def test_the_first_of_equal_texts_is_kept():
    texts = [shingles(" ".join(words(0, 50)))] * 3
    assert near_copies(texts) == {1, 2}


def test_empty_texts_are_not_copies():
    assert near_copies([shingles("")] * 3) == set()
    assert near_copies([]) == set()


def test_share_seen_counts_distinct_shingles():
    texts = [" ".join(words(seed, 100)) for seed in range(3)]
    test = [shingles(texts[0]), shingles(texts[0]), shingles(texts[1])]
    assert share_seen(test, [shingles(texts[1]), shingles(texts[2])]) == pytest.approx(0.5)
    assert share_seen([], [shingles(texts[0])]) == 0.0
    assert share_seen(test, []) == 0.0
