"""The published prompts: word by word, with the same tokens in the needle and in the answer."""

import re

import numpy as np
import pytest

from rope_jax.tasks import TokenizerView
from tests.tasks.samples import TEXT, Merging, answered, read, said, sample

PASSKEY = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
    "them. I will quiz you about the important information there.\n{before}\nThe pass key is {k}. "
    "Remember it. {k} is the pass key.\n{after}\nWhat is the pass key? The pass key is {k}"
)
SENTENCES = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
# As in scripts/data/synthetic/constants.py, and what niah.py makes of them for one value.
RULER = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I "
    "will quiz you about the number afterwards.\n{context}\nWhat is the special magic number for "
    "{key} mentioned in the provided text? The special magic number for {key} mentioned in the "
    "provided text is{value}"
)
NEEDLE = r" One of the special magic numbers for ([a-z]+-[a-z]+) is:( [1-9][0-9]{6})\."


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


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_the_needle_is_that_of_ruler(depth):
    made = sample("needle", 1900, depth)
    context = read(made.tokens).split("\n")[1]
    before, key, value, after = re.fullmatch(f"(.*){NEEDLE}(.*)", context).groups()
    assert read(made.tokens) == RULER.format(context=context, key=key, value=value)
    assert value == said(made)
    assert read(TEXT).endswith(before + after)
    assert len(before) == round(depth * len(before + after))
    without = read(sample("needle", 1900, depth, ablated=True).tokens)
    context = without.split("\n")[1]
    assert without == RULER.format(context=context, key=key, value=value)
    assert read(TEXT).endswith(context)


@pytest.mark.parametrize("task", ["passkey_text", "needle"])
def test_the_tokens_of_a_value_are_those_of_its_answer(task):
    tokenizer = Merging()
    words = TokenizerView(tokenizer.encode, 2000, (0,), has_words=True)
    text = np.full(800, 1999, np.int64)
    made = sample(task, 800, 0.5, words=words, text=text)
    (answer,) = answered(made)
    tokens = made.tokens[: -len(answer)].tolist()
    windows = [tokens[n : n + len(answer)] for n in range(len(tokens))]
    assert windows.count(answer) == (2 if task == "passkey_text" else 1)
    # one space before the value, though this tokenizer puts another before every text
    assert re.fullmatch(r" [0-9]+", tokenizer.decode(answer))
