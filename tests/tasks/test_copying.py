"""`induction` and `repeat`: what is needed lies exactly as far back as they say."""

import numpy as np
import pytest

from rope_jax.tasks import TASKS
from tests.tasks.samples import BYTES, NO_START, TEXT, answered, sample

both = pytest.mark.parametrize("words", [BYTES, NO_START], ids=["start", "no_start"])


@both
@pytest.mark.parametrize(
    ("task", "given_settings", "length", "distance", "count"),
    [
        ("induction", {}, 100, 50, 49),
        ("induction", {}, 101, 50, 49),
        ("induction", {}, 4, 2, 1),
        ("repeat", {}, 100, 68, 31),
        ("repeat", {"stretch": 5}, 100, 95, 4),
        ("repeat", {"stretch": 50}, 100, 50, 49),
    ],
)
def test_each_answer_is_the_token_so_far_back(words, task, given_settings, length, distance, count):
    made = sample(task, length, words=words, **given_settings)
    assert TASKS[task](**given_settings).distance(length) == distance
    (targets,) = np.nonzero(made.answers >= 0)
    assert targets.tolist() == list(range(length - count, length))
    assert made.answers[targets].tolist() == list(range(count))
    places = targets + 1  # in the tokens
    np.testing.assert_array_equal(made.tokens[places], made.tokens[places - distance])
    # and the one before it, from which the model knows where to look
    first = places[0] - 1
    assert made.tokens[first] == made.tokens[first - distance]


@both
@pytest.mark.parametrize("length", [100, 101])
def test_induction_taken_out_has_another_first_copy(words, length):
    whole, without = (
        sample("induction", length, words=words, ablated=out) for out in (False, True)
    )
    assert answered(whole) == answered(without)
    n = length // 2
    np.testing.assert_array_equal(whole.tokens[-n:], without.tokens[-n:])
    np.testing.assert_array_equal(whole.tokens[: -2 * n], without.tokens[: -2 * n])
    first = without.tokens[-2 * n : -n]
    assert np.mean(first == whole.tokens[-2 * n : -n]) < 0.1


def test_random_tokens_are_bytes_and_begin_alike_at_every_length():
    short, long = (sample("induction", length).tokens for length in (100, 4000))
    np.testing.assert_array_equal(short[-50:], long[-2000:][:50])
    counts = np.bincount(long[1:], minlength=256)
    assert len(counts) == 256
    assert abs(counts - 4000 / 256).max() < 5 * (2 * 4000 / 256) ** 0.5


@both
def test_a_repeat_is_the_end_of_the_text_and_taken_out_the_text_alone(words):
    made = sample("repeat", 100, words=words)
    np.testing.assert_array_equal(made.tokens[1:33], TEXT[-32:])
    np.testing.assert_array_equal(made.tokens[33:], TEXT[-68:])
    without = sample("repeat", 100, words=words, ablated=True)
    np.testing.assert_array_equal(without.tokens[1:], TEXT[-100:])
    assert (made.tokens[0] == 256) == (without.tokens[0] == 256) == (words is BYTES)


@pytest.mark.parametrize(
    ("task", "length", "lost"), [("induction", 100, 1), ("induction", 101, 0), ("repeat", 100, 1)]
)
def test_a_start_of_two_tokens_takes_the_place_of_what_is_copied_first(task, length, lost):
    one = sample(task, length)
    two = sample(task, length, words=BYTES._replace(bos_ids=(258, 257)))
    assert two.tokens[:2].tolist() == [258, 257]
    np.testing.assert_array_equal(two.tokens[2:], one.tokens[2:])
    np.testing.assert_array_equal(two.answers, np.maximum(one.answers - lost, -1))
