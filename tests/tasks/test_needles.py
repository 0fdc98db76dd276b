"""`passkey`, `multikey` and `chain`, read back from their windows.

What they share: needles hidden in the last bytes of the text, the one asked for at the depth, and a
question at the end.
"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.samples import FORMS, TEXT, read, said, sample

small = settings(max_examples=25, deadline=None, derandomize=True)
STATEMENT = r"VAR ([A-Z]) = (VAR [A-Z]|[0-9]+)\n"
# a needle with what it says, and the question with its answer
READ = {
    "passkey": (r"<<(PASS):([0-9-]+)>>", r"<<(PASS):([0-9-]+)$"),
    "multikey": (r"<<([a-z]+):([0-9a-z-]+)>>", r"<<([a-z]+):([0-9a-z-]+)$"),
    "chain": (STATEMENT, r"VALUE ([A-Z]) = ([0-9]+)$"),
}


def hidden(task, *args, **more):
    """Return (needles, places, asked, answer) of a sample.

    needles: what each says, in order. places: the share of the text before each.
    """
    made = sample(task, *args, **more)
    needle, question = READ[task]
    text = read(made.tokens)
    asked, answer = re.search(question, text).groups()
    assert answer == said(made)
    body = re.sub(question, "", text)
    filler = re.sub(needle, "", body)
    assert read(TEXT).endswith(filler)
    ends = [len(re.sub(needle, "", body[: m.start()])) for m in re.finditer(needle, body)]
    return re.findall(needle, body), np.array(ends) / max(1, len(filler)), asked, answer


@small
@given(length=st.integers(34, 2000), depth=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_a_passkey_is_in_the_text_and_asked_for_at_its_end(length, depth, seed):
    ((_, key),), (place,), _, answer = hidden("passkey", length, depth, seed=seed)
    assert re.fullmatch(FORMS["digits"], key)
    assert key == answer
    # 34: the key and the question
    assert round(place * (length - 34)) == round(depth * (length - 34))


@small
@given(
    keys=st.integers(2, 32),
    values=st.sampled_from(["digits", "words", "uuids"]),
    depth=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_one_of_several_keys_is_asked_for(keys, values, depth, seed):
    given_settings = {"seed": seed, "keys": keys, "values": values}
    found, _, asked, answer = hidden("multikey", 2500, depth, **given_settings)
    names, of_names = zip(*found, strict=True)
    assert len(set(names)) == len(set(of_names)) == keys
    assert all(re.fullmatch(FORMS[values], value) for value in of_names)
    assert dict(found)[asked] == answer


@small
@given(
    hops=st.integers(1, 4),
    chains=st.integers(1, 5),
    digits=st.integers(2, 8),
    depth=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_the_number_of_a_chain_follows_from_the_statements(hops, chains, digits, depth, seed):
    given_settings = {"seed": seed, "hops": hops, "chains": chains, "digits": digits}
    found, _, asked, answer = hidden("chain", 1000, depth, **given_settings)
    values, links = carried_out(found)
    assert len(values) == chains * (hops + 1)
    assert len(set(values.values())) == chains
    assert (values[asked], links[asked], len(answer)) == (answer, hops, digits)


def carried_out(statements):
    """Carry out statements in order; (the variables' values, the hops to each)."""
    values, hops = {}, {}
    for name, value in statements:
        assert name not in values
        source = value.removeprefix("VAR ")
        values[name] = values.get(source) if value.startswith("VAR") else value
        hops[name] = hops.get(source, 0) + 1 if value.startswith("VAR") else 0
    return values, hops


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_the_key_asked_for_is_at_the_depth_and_the_others_do_not_move(depth):
    others = None
    for length, at in ((1000, depth), (1000, 0.5), (1900, 0.5)):
        found, places, asked, _ = hidden("multikey", length, at, seed=1)
        by_name = {name: place for (name, _), place in zip(found, places, strict=True)}
        assert by_name.pop(asked) == pytest.approx(at, abs=0.001)
        others = others or by_name
        assert by_name == pytest.approx(others, abs=0.003)


def test_other_keys_are_spread_over_the_text():
    spread = set()
    for seed in range(20):
        found, places, asked, _ = hidden("multikey", 1900, 0.5, seed=seed, keys=5)
        others = [p for (name, _), p in zip(found, places, strict=True) if name != asked]
        assert [int(place * 4) for place in others] == [0, 1, 2, 3]
        spread.add(tuple(others))
    assert len(spread) == 20


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("hops", [1, 2, 4])
def test_statements_divide_the_text_after_the_number_equally(depth, hops):
    found, places, name, _ = hidden("chain", 1500, depth, hops=hops)
    own = []
    for (variable, value), place in reversed(list(zip(found, places, strict=True))):
        if variable == name:
            own.append(place)
            name = value.removeprefix("VAR ")
    want = [depth + (1 - depth) * link / (hops + 1) for link in range(hops + 1)]
    assert own[::-1] == pytest.approx(want, abs=0.001)


def test_another_chain_begins_anywhere():
    firsts = set()
    for seed in range(10):
        found, places, *_ = hidden("chain", 1500, 0.5, seed=seed, chains=3)
        numbers = [p for (_, value), p in zip(found, places, strict=True) if value[0] != "V"]
        assert len(numbers) == 3
        firsts |= {int(place * 4) for place in numbers}
    assert firsts >= {0, 1, 2, 3}


@pytest.mark.parametrize(("task", "left"), [("passkey", 0), ("multikey", 3), ("chain", 5)])
def test_what_is_asked_for_is_nowhere_when_taken_out_and_the_rest_remains(task, left):
    whole, without = (hidden(task, 600, 0.25, ablated=out) for out in (False, True))
    assert whole[2:] == without[2:]
    (gone,) = set(whole[0]) - set(without[0])
    assert gone[1] == whole[3]
    assert [needle for needle in whole[0] if needle != gone] == without[0]
    assert len(without[0]) == left
    if task == "chain":
        assert carried_out(without[0])[0][whole[2]] is None
