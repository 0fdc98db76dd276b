"""Positions that jump: golden values, and references in Python's integers."""

import numpy as np
import pytest

from rope_jax.config.sections import PosePositions, RandomizedPositions
from rope_jax.data.batches import pose, position_functions, randomized


def bits(*seed):
    return np.random.Philox(np.random.SeedSequence(seed))


def integers(source):
    """Return a function that draws the next integer below a number, with Python's integers."""
    return lambda below: (source.random_raw() * below) >> 64


def test_positions_are_golden():
    # A run resumes from its step alone: other numbers would change every run that resumes.
    seeds = [np.random.SeedSequence([3, 1, 7], spawn_key=(1, row)) for row in (0, 5)]
    found = position_functions(RandomizedPositions(length=1000), seeds, 8)
    assert found.dtype == np.int32
    assert found.tolist() == [
        [32, 143, 151, 173, 410, 495, 732, 958],
        [62, 374, 400, 528, 552, 754, 887, 913],
    ]
    found = position_functions(PosePositions(length=1000), seeds, 8)
    assert found.tolist() == [
        [0, 952, 953, 954, 955, 956, 957, 958],
        [0, 1, 2, 375, 376, 377, 378, 379],
    ]


@pytest.mark.parametrize(
    ("count", "below"), [(5, 11), (64, 300), (300, 2**24), (6, 11), (250, 300), (7, 7)]
)
def test_a_sample_is_the_first_different_integers_or_what_they_leave(count, below):
    for seed in range(3):
        draw, wanted = integers(bits(seed)), set()
        while len(wanted) < min(count, below - count):
            wanted.add(draw(below))
        if count > below - count:
            wanted = set(range(below)) - wanted
        assert randomized(bits(seed), count, below).tolist() == sorted(wanted)


@pytest.mark.parametrize("chunks", [2, 3, 5])
@pytest.mark.parametrize(("seq_len", "length"), [(5, 5), (8, 64), (129, 2**32), (9, 2**40)])
def test_pose_agrees_with_the_papers_formula(seq_len, length, chunks):
    for seed in range(10):
        draw = integers(bits(seed))
        most = min((seq_len + chunks - 1) // chunks, (seq_len - 1) // (chunks - 1))
        lengths = [1 + draw(most) for _ in range(chunks - 1)]
        lengths.append(seq_len - sum(lengths))
        assert min(lengths) >= 1
        wanted, start, jump = [], 0, 0
        for chunk, tokens in enumerate(lengths):
            if chunk:
                jump += draw(length - seq_len - jump + 1)
            wanted += [start + jump + i for i in range(tokens)]
            start += tokens
        assert pose(bits(seed), seq_len, length, chunks).tolist() == wanted
        assert wanted[0] == 0
        assert wanted[-1] < length
