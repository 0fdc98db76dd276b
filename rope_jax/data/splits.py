"""Assigns documents to splits by a stable hash, the same on every machine and in every run."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from rope_jax.errors import UserError

SPLITS = ("train", "validation", "test")


def stable_key(name: str) -> int:
    """Return a 64-bit hash of a document's content or a group's name; Python's own is salted."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8"), digest_size=8).digest(), "big")


def assign(
    keys: NDArray[np.uint64], validation_fraction: float, test_fraction: float
) -> NDArray[np.int64]:
    """Return the split of each key, as an index into SPLITS: int64 [keys].

    A key in the lowest `test_fraction` of the 64-bit range is test, one in the next
    `validation_fraction` is validation: equal keys share a split, and a key's split does not
    depend on the other keys. The one exception: if a fraction is above 0 but its split would be
    empty, the split takes the lowest key left.

    Raises UserError if nothing is left to train on.
    """
    place = keys / 2.0**64
    test = place < test_fraction
    if test_fraction and not test.any():
        test = keys == keys.min()
    validation = ~test & (place < test_fraction + validation_fraction)
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
