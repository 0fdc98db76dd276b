"""Splits by hash: stable, disjoint, never empty by chance."""

import numpy as np
import pytest

from rope_jax.data.splits import assign, stable_key
from rope_jax.errors import UserError


def keys_of(*names):
    return np.array([stable_key(name) for name in names], np.uint64)


def test_key_is_golden():
    # The first 8 bytes of BLAKE2b with an 8-byte digest: other numbers move documents from test
    # to train.
    assert stable_key("asyncio") == 0x2315AC32D29A4116
    assert stable_key("é") != stable_key("e")


def test_a_split_depends_on_the_key_alone():
    names = [f"document {i}" for i in range(2000)]
    split = assign(keys_of(*names), 0.05, 0.1)
    assert np.array_equal(split[500:], assign(keys_of(*names[500:]), 0.05, 0.1))
    shares = np.bincount(split, minlength=3) / len(names)
    assert shares == pytest.approx([0.85, 0.05, 0.1], abs=0.02)


def test_validation_moves_nothing_into_or_out_of_test():
    keys = keys_of(*map(str, range(500)))
    assert np.array_equal(assign(keys, 0.0, 0.2) == 2, assign(keys, 0.3, 0.2) == 2)
    assert set(assign(keys, 0.0, 0.2)) == {0, 2}


def test_copies_share_a_split():
    keys = keys_of(*(str(i % 50) for i in range(200)))
    split = assign(keys, 0.2, 0.2)
    assert np.array_equal(split[:150], split[50:])


def test_a_few_documents_still_give_each_split_one():
    for start in range(30):
        split = assign(keys_of(*(str(start + i) for i in range(4))), 0.001, 0.001)
        assert sorted(split) == [0, 0, 1, 2]


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_left_to_train_on(count):
    keys = keys_of(*(str(i % count) for i in range(10)))
    with pytest.raises(
        UserError, match=rf"^data: .* \({count} distinct\): .* set data.validation_fraction"
    ):
        assign(keys, 0.1, 0.1)
    assert not assign(keys, 0.0, 0.0).any()
