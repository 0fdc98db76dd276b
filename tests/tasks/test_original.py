"""The published prompts: word by word, with the same tokens in the needle and in the answer."""

import re

import numpy as np
import pytest

from rope_jax.tasks import TokenizerView
from tests.tasks.samples import FORMS, TEXT, Merging, answered, read, said, sample

PASSKEY = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
    "them. I will quiz you about the important information there.\n{before}\nThe pass key is {k}. "
    "Remember it. {k} is the pass key.\n{after}\nWhat is the pass key? The pass key is {k}"
)
SENTENCES = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
# As in scripts/data/synthetic/constants.py, and what niah.py makes of them for one value.
SEVERAL = (
    "Some special magic {type} are hidden within the following text. Make sure to memorize it. I "
    "will quiz you about the {type} afterwards.\n{context}\nWhat are all the special magic {type} "
    "for {query} mentioned in the provided text? The special magic {type} for {query} mentioned "
    "in the provided text are"
)
SINGLE = SEVERAL.replace("Some", "A").replace("are all", "is").replace("are", "is")
NEEDLE = r" One of the special magic (numbers|words|uuids) for ([a-z]+-[a-z]+) is: ([0-9a-z-]+)\."


@pytest.mark.parametrize(("depth", "digits"), [(0.0, 5), (0.25, 1), (0.25, 7), (1.0, 5)])
def test_the_passkey_text_is_that_of_the_authors(depth, digits):
    made = sample("passkey_text", 1000, depth, digits=digits)
    text, key = read(made.tokens), said(made)
    assert re.fullmatch(rf" [1-9][0-9]{{{digits - 1}}}", key)
    pattern = re.escape(PASSKEY).replace(r"\{k\}", key[1:])
    pattern = pattern.replace(r"\{before\}", "(.*)").replace(r"\{after\}", "(.*)")
    before, after = re.fullmatch(pattern, text).groups()
    filler = before + after
    assert (SENTENCES * 20).rstrip().endswith(filler)
    assert len(before) == round(depth * len(filler))
    without = read(sample("passkey_text", 1000, depth, digits=digits, ablated=True).tokens)
    assert without.endswith(f"\nWhat is the pass key? The pass key is{key}")
    assert "Remember" not in without
    assert (SENTENCES * 20).rstrip().endswith(without.split("\n")[1])


def needles(made):
    """What the text says: (type, key, value), in order."""
    return re.findall(NEEDLE, read(made.tokens))


@pytest.mark.parametrize(
    ("keys", "values", "queries"),
    [(1, 1, 1), (4, 1, 1), (1, 4, 1), (1, 1, 4), (3, 2, 2), (2, 1, 2)],
)
@pytest.mark.parametrize("kind", ["numbers", "words", "uuids"])
def test_the_needles_are_those_of_ruler(keys, values, queries, kind):
    given = {"keys": keys, "values": values, "queries": queries, "kind": kind}
    for seed in range(3):
        made = sample("needle", 1900, 0.25, seed=seed, **given)
        found = needles(made)
        assert {form for form, _, _ in found} == {kind}
        form = r"[a-z]+-[a-z]+" if kind == "words" else FORMS[kind]
        assert all(re.fullmatch(form, value) for _, _, value in found)
        assert len(found) == len({value for _, _, value in found}) == max(keys, queries) * values
        assert len({key for _, key, _ in found}) == max(keys, queries)

        template = SINGLE if queries * values == 1 else SEVERAL
        pattern = re.escape(template).replace(
            r"\{type\}", kind[:-1] if template is SINGLE else kind
        )
        pattern = pattern.replace(r"\{context\}", "(?P<context>.*)")
        pattern = pattern.replace(r"\{query\}", "(?P<query>[a-z-]+(?:, (?:and )?[a-z-]+)*)", 1)
        pattern = pattern.replace(r"\{query\}", "(?P=query)") + "(?P<answer>.*)"
        parsed = re.fullmatch(pattern, read(made.tokens), re.S)
        asked = re.split(", and |, ", parsed["query"])
        assert (", and " in parsed["query"]) == (queries > 1)
        assert len(set(asked)) == queries
        right = [value for key in asked for _, name, value in found if name == key]
        assert parsed["answer"] == said(made) == " " + ", ".join(right)
        filler = re.sub(NEEDLE, "", parsed["context"])
        assert len(filler) > 100
        assert read(TEXT).endswith(filler)


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("given", [{}, {"keys": 4}, {"values": 3}, {"queries": 3, "keys": 5}])
def test_the_first_needle_asked_for_is_at_the_depth_and_none_is_left_when_taken_out(depth, given):
    whole, without = (sample("needle", 1900, depth, ablated=out, **given) for out in (False, True))
    *_, context, question = read(whole.tokens).split("\n")
    asked = re.findall(r"[a-z]+-[a-z]+", question)
    before = context[: context.index(f" One of the special magic numbers for {asked[0]}")]
    filler = len(re.sub(NEEDLE, "", context))
    assert len(re.sub(NEEDLE, "", before)) == round(depth * filler)
    assert needles(without) == [found for found in needles(whole) if found[1] not in asked]
    assert len(needles(whole)) > len(needles(without))


def test_the_tokens_of_a_value_are_those_of_its_answer():
    for task, given in [("passkey_text", {}), ("needle", {"keys": 3}), ("needle", {"values": 3})]:
        tokenizer = Merging()
        words = TokenizerView(tokenizer.encode, 2000, (0,), has_words=True)
        text = np.full(800, 1999, np.int64)
        made = sample(task, 800, 0.5, words=words, text=text, **given)
        (answer,) = answered(made)
        comma = tokenizer.texts.index(",") if "," in tokenizer.texts else -1
        values = [[]]
        for token in answer:
            values.append([]) if token == comma else values[-1].append(token)
        tokens = made.tokens[: -len(answer)].tolist()
        for value in values:
            windows = [tokens[n : n + len(value)] for n in range(len(tokens))]
            assert windows.count(value) == (2 if task == "passkey_text" else 1)
            # one space before the value, though this tokenizer puts another before every text
            assert re.fullmatch(r" [0-9]+", tokenizer.decode(value))
