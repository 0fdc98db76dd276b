"""Windows of a fit, and which of their targets only far context can tell."""

from collections import Counter

import numpy as np
import pytest

from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.fitting.step import repeats_from_afar, windows_within_documents
from rope_jax.session import Session
from rope_jax.sweeps.model import load_model


@pytest.fixture(scope="module")
def split(run):
    return load_model(Session(*run, plain_console(quiet=True))).corpus.train


def test_windows_lie_within_documents_and_begin_everywhere(split):
    shortest = int(split.lengths().min())
    length = shortest - 3  # the shortest document has three places for a window
    documents = [split.document(index) for index in range(len(split))]
    places = {
        text[offset : offset + length + 1].tobytes(): (number, offset)
        for number, text in enumerate(documents)
        for offset in range(len(text) - length)
    }
    found = windows_within_documents(split, seed=1, step=2, length=length, count=4000)
    assert found.shape == (4000, length + 1)
    drawn = [places[row.astype(split.tokens.dtype).tobytes()] for row in found]
    assert {number for number, _ in drawn} == {
        number for number, text in enumerate(documents) if len(text) > length
    }
    # every place is as likely as any other: within 5 standard deviations
    counted = Counter(drawn)
    counts = np.array([counted[place] for place in set(places.values())])
    expected = 4000 / len(counts)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_windows_are_a_function_of_seed_step_and_length(split):
    def drawn(**changed):
        about = {"seed": 1, "step": 2, "length": 20, "count": 3} | changed
        return windows_within_documents(split, **about)

    np.testing.assert_array_equal(drawn(), drawn())
    np.testing.assert_array_equal(drawn(count=5)[:3], drawn())
    assert not np.array_equal(drawn(seed=2), drawn())
    assert not np.array_equal(drawn(step=3), drawn())
    assert not np.array_equal(drawn(length=21)[:, :-1], drawn())
    with pytest.raises(UserError, match=r"^length: no document .* has 100,001 t"):
        drawn(length=100_000)


@pytest.mark.parametrize("repeated", [2, 3, 5])
def test_targets_that_repeat_a_far_text(repeated):
    rng = np.random.default_rng(repeated)
    tokens = rng.integers(0, 3, (4, 61)).astype(np.int32)
    tokens[0, 40:50] = tokens[0, 5:15]
    window = 20
    wanted = np.zeros((4, 60), np.float32)
    for row, text in zip(wanted, tokens.tolist(), strict=True):
        for end in range(repeated, 62):
            piece = text[end - repeated : end]
            back = [
                end - other
                for other in range(repeated, end)
                if text[other - repeated : other] == piece
            ]
            row[end - 2] = bool(back) and min(back) > window
    assert 0 < wanted.sum() < wanted.size / 2
    np.testing.assert_array_equal(repeats_from_afar(tokens, window, repeated), wanted)
