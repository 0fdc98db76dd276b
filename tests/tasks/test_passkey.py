"""`passkey` and `multikey`, read back from their windows."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rope_jax.tasks import TASKS
from tests.tasks.samples import TEXT, fillers, read, said, sample

settings.register_profile("fast", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("fast")

PASS = r"<<PASS:[0-9-]+>>"
KEYED = r"<<([a-z]+):([0-9a-z-]+)>>"


@given(length=st.integers(34, 2000), depth=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_a_passkey_is_in_the_text_and_asked_for_at_its_end(length, depth, seed):
    made = sample("passkey", length, depth, seed=seed)
    text = read(made.tokens)
    ((key, asked),) = re.findall(r"<<PASS:((?:[0-9]-){4}[0-9])>>.*<<PASS:([0-9-]+)$", text, re.S)
    assert key == asked == said(made)
    before, after, _ = fillers(made, PASS, "<<PASS:")
    assert len(before) + len(after) == length - 34
    assert len(before) == round(depth * (length - 34))
    assert before + after == read(TEXT[len(TEXT) - (length - 34) :])


def test_a_passkey_taken_out_is_nowhere():
    made = sample("passkey", 300, 0.25, ablated=True)
    text = read(made.tokens)
    assert text.count("<<") == 1
    assert text.endswith("<<PASS:" + said(made))
    assert text.startswith(read(TEXT[len(TEXT) - 284 :]))


FORMS = {
    "digits": r"(?:[0-9]-){4}[0-9]",
    "words": r"[a-z]+-[a-z]+-[a-z]+",
    "uuids": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
}


@given(
    keys=st.integers(2, 32),
    values=st.sampled_from(list(FORMS)),
    depth=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_one_of_several_keys_is_asked_for(keys, values, depth, seed):
    made = sample("multikey", 2500, depth, seed=seed, keys=keys, values=values)
    text = read(made.tokens)
    found = re.findall(KEYED, text)
    names, of_names = zip(*found, strict=True)
    assert len(set(names)) == len(set(of_names)) == keys
    assert all(re.fullmatch(FORMS[values], value) for value in of_names)
    ((asked, answer),) = re.findall(r"<<([a-z]+):([0-9a-z-]+)$", text)
    assert dict(found)[asked] == answer == said(made)


def places(length, depth, *, seed=1, keys=4):
    """Where the keys are, as shares of the text before them; the one asked for is the first."""
    made = sample("multikey", length, depth, seed=seed, keys=keys)
    text = read(made.tokens)
    asked = re.search(r"<<([a-z]+):[0-9-]+$", text).group(1)
    *filler, _ = re.split(r"<<[a-z]+:[0-9-]+(?:>>|$)", text)
    names = [name for name, _ in re.findall(KEYED, text)]
    total = len("".join(filler))
    shares = np.cumsum([len(piece) for piece in filler])[:-1] / total
    found = dict(zip(names, shares, strict=True))
    return found.pop(asked), found


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_the_key_asked_for_is_at_the_depth_and_the_others_do_not_move(depth):
    place, others = places(1000, depth)
    assert place == pytest.approx(depth, abs=0.001)
    for length in (1000, 1900):
        moved, same = places(length, 0.5)
        assert moved == pytest.approx(0.5, abs=0.001)
        assert same == pytest.approx(others, abs=0.003)


def test_other_keys_are_spread_over_the_text():
    for seed in range(20):
        _, others = places(1900, 0.5, seed=seed, keys=5)
        assert [int(place * 4) for place in sorted(others.values())] == [0, 1, 2, 3]
    assert len({tuple(places(1900, 0.5, seed=seed)[1].values()) for seed in range(20)}) == 20


def test_other_keys_remain_when_the_one_asked_for_is_taken_out():
    whole, without = (sample("multikey", 600, 0.5, ablated=out) for out in (False, True))
    asked = re.search(r"<<([a-z]+):[0-9-]+$", read(whole.tokens)).group(1)
    left = dict(re.findall(KEYED, read(without.tokens)))
    assert left == {k: v for k, v in re.findall(KEYED, read(whole.tokens)) if k != asked}
    assert len(left) == 3
    assert said(without) not in left.values()
    assert read(without.tokens).count(f"<<{asked}:") == 1


def test_chance_is_that_of_guessing():
    assert TASKS["passkey"](digits=3).chance == pytest.approx(1e-3)
    assert TASKS["multikey"](keys=5).chance == 1 / 5


def test_values_can_differ():
    says = "digits: 11 keys need values of 2 digits or more to differ"
    with pytest.raises(ValidationError, match=says):
        TASKS["multikey"](keys=11, digits=1)
    made = sample("multikey", 600, keys=10, digits=1)
    assert {value for _, value in re.findall(KEYED, read(made.tokens))} == set("0123456789")
