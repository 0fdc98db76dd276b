"""Divide documents into splits, by a stable hash or by position, and long ones into parts."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.errors import UserError


class Document(NamedTuple):
    """Where a document was found, and its text."""

    document: str
    text: str


Split = Callable[[], Iterator[Document]]
"""Reads the documents of a split, again at every call."""

SPLITS = ("train", "validation", "test")
GAP = 0.01
"""Share of a document that is left out between two splits of it."""


def stable_key(name: str) -> int:
    """Return a 64-bit hash of a document's content or a group's name; Python's own is salted."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8"), digest_size=8).digest(), "big")


def assign(
    keys: NDArray[np.uint64], validation_fraction: float, test_fraction: float
) -> NDArray[np.int64]:
    """Return the split of each key, as an index into SPLITS: int64 [keys].

    A key in the lowest `test_fraction` of the 64-bit range is test, one in the next
    `validation_fraction` is validation, whatever the other keys are. The one exception: if a
    fraction is above 0 but its split would be empty, the split takes the lowest key left.

    Raises UserError if nothing is left to train on.
    """
    share = keys / 2.0**64
    test = share < test_fraction
    if test_fraction and not test.any():
        test = keys == keys.min()
    validation = ~test & (share < test_fraction + validation_fraction)
    if validation_fraction and not validation.any() and not test.all():
        validation = keys == keys[~test].min()
    if (test | validation).all():
        distinct = len(np.unique(keys))
        raise UserError(
            f"data: too few documents ({distinct} distinct): none are left to train on; "
            "give more, give files for each split, or set data.validation_fraction and "
            "data.test_fraction to 0"
        )
    return np.where(test, 2, np.where(validation, 1, 0))


def parts(text: str, most_bytes: int) -> Iterator[str]:
    """Yield a text in parts of at most `most_bytes` bytes of UTF-8, which together are the text.

    A part ends after a line break if its second half has one, and never inside a character.
    """
    left = memoryview(text.encode())
    while len(left) > most_bytes:
        end = most_bytes
        while left[end] & 0xC0 == 0x80:  # the middle of a character
            end -= 1
        line = bytes(left[end // 2 : end]).rfind(b"\n")
        if line >= 0:
            end = end // 2 + line + 1
        yield str(left[:end], "utf-8")
        left = left[end:]
    if len(left) or not text:
        yield str(left, "utf-8")


def cut(split: Split, most_bytes: int) -> Iterator[Document]:
    """Yield the documents of a split, long ones in `parts` called DOCUMENT#0, DOCUMENT#1, …."""
    for document, text in split():
        if len(text.encode()) <= most_bytes:
            yield Document(document, text)
        else:
            for number, part in enumerate(parts(text, most_bytes)):
                yield Document(f"{document}#{number}", part)


def by_position(text: str, fractions: Mapping[str, float]) -> dict[str, str]:
    """Return the splits of one text: train is its beginning, and the others follow in their order.

    fractions: of the text, by split, except train's. Between two splits `GAP` of the text or a
    little more is left out, so that no passage is in both; splits begin and end with a line where
    there is a line break nearby.
    """
    taken: dict[str, str] = {}
    end = size = len(text)
    gap = round(GAP * size)
    for name, fraction in reversed(list(fractions.items())):
        start = max(0, end - round(fraction * size))
        line_break = text.find("\n", start, start + gap)
        start = start if line_break < 0 else line_break + 1
        taken = {name: text[start:end]} | taken
        end = text.rfind("\n", max(0, start - 2 * gap), max(0, start - gap)) + 1
        end = end or max(0, start - gap)
    return {"train": text[:end]} | taken
