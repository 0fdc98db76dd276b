"""What holds for every task."""

from bisect import bisect_left

import numpy as np
import pytest

from rope_jax.tasks import TASKS, Draws, TokenizerView
from tests.tasks.samples import BYTES, NO_START, TEXT, Merging, answered, sample

# Settings, and the shortest window that they fit into, by hand, with a document start.
CASES = [
    ("repeat", {}, 64),
    ("repeat", {"stretch": 3}, 6),
    ("induction", {}, 4),
    ("passkey", {}, 7 + 9 + 2 + 7 + 9),
    ("passkey", {"digits": 1}, 7 + 1 + 2 + 7 + 1),
    ("passkey_text", {}, None),
    ("needle", {}, None),
]
cases = pytest.mark.parametrize(("task", "given_settings", "shortest"), CASES)


def shortest_of(task, given_settings, words):
    """The shortest window that fits, by trying lengths."""

    def fits(length):
        try:
            sample(task, length, words=words, **given_settings)
        except ValueError:
            return False
        return True

    return bisect_left(range(4000), True, lo=2, key=fits)


def test_every_task_is_here():
    assert {task for task, _, _ in CASES} == set(TASKS)
    assert {name for name, task in TASKS.items() if task.needs_words} == {"passkey_text", "needle"}
    without_depth = {name for name, task in TASKS.items() if not task.has_depth}
    assert without_depth == {"repeat", "induction"}


@cases
@pytest.mark.parametrize("words", [BYTES, NO_START], ids=["start", "no_start"])
@pytest.mark.parametrize("ablated", [False, True])
def test_a_sample_has_the_length_and_counts_its_answers(
    task, given_settings, shortest, words, ablated
):
    settings = {"words": words, "ablated": ablated} | given_settings
    for length in (1500, 1501):
        made = sample(task, length, 0.3, **settings)
        assert (made.tokens.shape, made.answers.shape) == ((length + 1,), (length,))
        assert made.tokens.dtype == made.answers.dtype == np.int32
        assert made.tokens.min() >= 0
        assert (made.tokens[0] == 256) == (words is BYTES)
        assert made.tokens[1:].max() < 256
        asked = made.answers[made.answers >= 0]
        assert set(asked.tolist()) == set(range(asked.max() + 1))
        assert made.answers.min() == -1
    # of a longer text, the last tokens are used
    exactly, longer = (sample(task, 1500, text=x, **settings) for x in (TEXT[-1500:], TEXT))
    np.testing.assert_array_equal(exactly.tokens, longer.tokens)


@cases
@pytest.mark.parametrize("words", [BYTES, NO_START], ids=["start", "no_start"])
def test_a_window_that_is_too_short_is_told_which_one_is_not(task, given_settings, shortest, words):
    found = shortest_of(task, given_settings, words)
    if shortest is not None and words is BYTES:
        assert found == shortest
    for ablated in (False, True):
        made = sample(task, found, 1.0, words=words, ablated=ablated, **given_settings)
        assert len(made.tokens) == found + 1
        if found > 2:
            with pytest.raises(ValueError, match=f" {found:,} tokens, not {found - 1:,};") as error:
                sample(task, found - 1, 1.0, words=words, ablated=ablated, **given_settings)
            key = str(error.value).partition(":")[0]
            assert key in TASKS[task].model_fields


@cases
def test_what_is_asked_is_the_same_everywhere(task, given_settings, shortest):
    if task == "induction":
        pytest.skip("how much is asked depends on the length")
    of_one = [
        answered(sample(task, length, depth, seed=3, ablated=ablated, **given_settings))
        for length in (1300, 1501, 1900)
        for depth in (0.0, 0.4, 1.0)
        for ablated in (False, True)
    ]
    assert all(answers == of_one[0] for answers in of_one)
    assert of_one[0] != answered(sample(task, 1300, seed=4, **given_settings)) or task == "repeat"


@pytest.mark.parametrize(
    ("task", "given_settings", "chance"),
    [
        ("passkey", {"digits": 3}, 1e-3),
        ("passkey_text", {"digits": 2}, 1 / 90),
        ("needle", {}, 1 / 9e6),
    ],
)
def test_chance_is_that_of_guessing_among_what_is_there(task, given_settings, chance):
    assert TASKS[task](**given_settings).chance == pytest.approx(chance)


def test_tokens_of_words_fit_as_well():
    tokenizer = Merging()
    words = TokenizerView(tokenizer.encode, 2000, (0,), has_words=True)
    text = np.full(1500, 1999, np.int64)
    for task, given_settings, _ in CASES:
        made = sample(task, 1500, 0.5, words=words, text=text, **given_settings)
        assert made.tokens.shape == (1501,)
        assert made.tokens[0] == 0
        assert (made.tokens[1:] > 0).all()


def test_ordinary_tokens_leave_out_the_document_start():
    assert BYTES.ordinary().tolist() == NO_START.ordinary().tolist() == list(range(256))
    words = TokenizerView(BYTES.encode, 6, (1,), has_words=True)
    assert words.ordinary().tolist() == [0, 2, 3, 4, 5]
    assert set(words.random(Draws(1), 200).tolist()) == {0, 2, 3, 4, 5}
    assert words.start().tolist() == [1]
    assert words._replace(bos_ids=()).start().tolist() == []
