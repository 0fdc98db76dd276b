"""`chain`, followed from the number to the question by reading the window."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rope_jax.tasks import TASKS
from tests.tasks.samples import read, said, sample

settings.register_profile("fast", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("fast")

STATEMENT = r"VAR ([A-Z]) = (VAR [A-Z]|[0-9]+)\n"


def run(text):
    """Carry out the statements in order; (the variables' values, the hops to each)."""
    values, hops = {}, {}
    for name, value in re.findall(STATEMENT, text):
        assert name not in values
        source = value.removeprefix("VAR ")
        values[name] = values.get(source) if value.startswith("VAR") else value
        hops[name] = hops.get(source, 0) + 1 if value.startswith("VAR") else 0
    return values, hops


def places(made):
    """The share of the text before each statement of the chain that is asked for, in order."""
    text = read(made.tokens)
    name = re.search(r"VALUE ([A-Z]) = [0-9]+$", text).group(1)
    *filler, _ = re.split(r"VAR [A-Z] = (?:VAR [A-Z]|[0-9]+)\n|VALUE [A-Z] = [0-9]+$", text)
    shares = np.cumsum([len(piece) for piece in filler])[:-1] / len("".join(filler))
    found = []
    statements = re.findall(STATEMENT, text)
    for (variable, value), share in reversed(list(zip(statements, shares, strict=True))):
        if variable == name:
            found.append(share)
            name = value.removeprefix("VAR ")
    return found[::-1]


@given(
    hops=st.integers(1, 4),
    chains=st.integers(1, 5),
    digits=st.integers(2, 8),
    depth=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_the_number_follows_from_the_statements(hops, chains, digits, depth, seed):
    made = sample("chain", 1000, depth, seed=seed, hops=hops, chains=chains, digits=digits)
    text = read(made.tokens)
    values, links = run(text)
    assert len(values) == chains * (hops + 1)
    assert len(set(values.values())) == chains
    ((asked, answer),) = re.findall(r"VALUE ([A-Z]) = ([0-9]+)$", text)
    assert values[asked] == answer == said(made)
    assert len(answer) == digits
    assert links[asked] == hops


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("hops", [1, 2, 4])
def test_statements_divide_the_text_after_the_number_equally(depth, hops):
    found = places(sample("chain", 1500, depth, hops=hops))
    want = [depth + (1 - depth) * link / (hops + 1) for link in range(hops + 1)]
    assert found == pytest.approx(want, abs=0.001)


def test_another_chain_begins_anywhere():
    firsts = set()
    for seed in range(10):
        text = read(sample("chain", 1500, 0.5, seed=seed, chains=3).tokens)
        numbers = re.findall(r"VAR [A-Z] = [0-9]+\n", text)
        assert len(numbers) == 3
        firsts |= {text.index(number) * 4 // len(text) for number in numbers}
    assert firsts == {0, 1, 2, 3}


def test_the_number_taken_out_leaves_links_and_other_chains():
    whole, without = (sample("chain", 600, 0.25, ablated=out) for out in (False, True))
    there, left = (re.findall(STATEMENT, read(made.tokens)) for made in (whole, without))
    (gone,) = set(there) - set(left)
    assert gone[1] == said(whole) == said(without)
    assert len(left) == len(there) - 1
    values, _ = run(read(without.tokens))
    asked = re.search(r"VALUE ([A-Z]) = [0-9]+$", read(without.tokens)).group(1)
    assert values[asked] is None


def test_chance_is_that_of_guessing_a_number():
    assert TASKS["chain"](chains=3).chance == 1 / 3
    assert TASKS["chain"](chains=1, digits=4).chance == pytest.approx(1e-4)


def test_chains_have_names_of_their_own():
    says = "chains: 6 of 4 hops have more than 26 variables; take at most 5"
    with pytest.raises(ValidationError, match=says):
        TASKS["chain"](hops=4, chains=6)
    made = sample("chain", 1000, hops=1, chains=13)
    assert len(set(re.findall(STATEMENT, read(made.tokens)))) == 26
