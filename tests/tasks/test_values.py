"""What is hidden: its form, and that the lists hold no word twice."""

import re
import uuid
from itertools import pairwise

import pytest

from rope_jax.tasks import Draws, draws as values


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (lambda draws: values.digits(draws, 3), r"[0-9]{3}"),
        (lambda draws: values.number(draws, 3), r"[1-9][0-9]{2}"),
        (lambda draws: values.number(draws, 1), r"[1-9]"),
        (values.words, r"[a-z]+-[a-z]+-[a-z]+"),
        (values.named, r"[a-z]+-[a-z]+"),
    ],
)
def test_the_form_of_a_value(make, form):
    draws = Draws(1)
    found = {make(draws) for _ in range(300)}
    assert len(found) > 8
    assert all(re.fullmatch(form, value) for value in found)


def test_a_uuid_is_of_version_4():
    draws = Draws(2)
    for _ in range(100):
        text = values.uuid(draws)
        made = uuid.UUID(text)
        assert str(made) == text
        assert (made.version, made.variant) == (4, uuid.RFC_4122)


@pytest.mark.parametrize("words", [values.NAMES, values.WORDS, values.QUALITIES])
def test_no_word_occurs_twice(words):
    assert len(set(words)) == len(words)


def test_no_name_is_the_beginning_of_another():
    ordered = sorted(values.NAMES)
    assert not any(y.startswith(x) for x, y in pairwise(ordered))


def test_different_values_differ():
    draws = Draws(3)
    assert sorted(values.different(lambda: draws.below(10), 10)) == list(range(10))
