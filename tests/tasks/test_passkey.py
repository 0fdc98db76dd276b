"""`passkey`, read back from its windows: hidden in the text at the depth, asked for at the end."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.samples import TEXT, read, said, sample

NEEDLE = r"<<PASS:([0-9](?:-[0-9]){4})>>"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(length=st.integers(34, 2000), depth=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_a_passkey_is_in_the_text_and_asked_for_at_its_end(length, depth, seed):
    made = sample("passkey", length, depth, seed=seed)
    before, key, after = re.fullmatch(
        f"(.*){NEEDLE}(.*)<<PASS:{said(made)}", read(made.tokens), re.S
    ).groups()
    assert key == said(made)
    assert read(TEXT).endswith(before + after)
    # 34: the key and the question
    assert len(before) == round(depth * (length - 34))


def test_the_key_is_nowhere_when_taken_out():
    made = sample("passkey", 600, 0.25, ablated=True)
    text = read(made.tokens).removesuffix(f"<<PASS:{said(made)}")
    assert read(TEXT).endswith(text)
    assert len(text) == 600 - 16
