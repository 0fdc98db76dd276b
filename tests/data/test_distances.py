"""Counts of trained distances, against a loop over all pairs."""

import itertools

import numpy as np
import pytest

from rope_jax.config.sections import DocumentsConfig, PosePositions, RandomizedPositions
from rope_jax.data.batches import Batch, ShortRows, count_distances, distance_edges, training_batch
from tests.data.test_batches import split_of

DOCUMENTS = [
    DocumentsConfig(mask=mask, positions=positions)
    for mask in ("document", "none")
    for positions in ("reset", "continue")
]


def counted_one_by_one(batch, length):
    edges = distance_edges(length)
    counts = np.zeros(1 + len(edges), int)
    for positions, segments in zip(batch.positions, batch.segment_ids, strict=True):
        for query in range(positions.size):
            for key in range(query + 1):
                if segments[query] == segments[key]:
                    distance = positions[query] - positions[key]
                    counts[0 if distance < 0 else np.searchsorted(edges, distance, "right")] += 1
    return counts


@pytest.mark.parametrize("documents", DOCUMENTS, ids=lambda d: f"{d.mask}-{d.positions}")
@pytest.mark.parametrize("seq_len", [1, 2, 48])
def test_counts_agree_with_a_loop_over_pairs(documents, seq_len):
    rng = np.random.default_rng(0)
    split = split_of(*(rng.integers(0, 256, n).tolist() for n in rng.integers(0, 30, 60)))
    given = {"seq_len": seq_len, "batch_size": 4, "documents": documents}
    cases = [(given, seq_len)]
    if seq_len > 1:
        cases.append((given | {"positions": RandomizedPositions(length=200)}, 200))
    if seq_len == 48:
        cases.append((given | {"positions": PosePositions(length=99)}, 99))
        cases.append((given | {"short": ShortRows(16, 1)}, 48))
    for settings, length in cases:
        batch = training_batch(split, seed=0, stage=0, step=0, **settings)
        wanted = counted_one_by_one(batch, length)
        np.testing.assert_array_equal(count_distances(batch, length), wanted)
        assert (wanted[0] > 0) == (documents == DOCUMENTS[2] and seq_len == 48)


def test_the_distances_of_one_long_document_are_known():
    """Of T tokens, T − d pairs are at distance d."""
    tokens = 3000
    ids = np.zeros((2, tokens), np.int32)
    positions = np.tile(np.arange(tokens, dtype=np.int32), (2, 1))
    found = count_distances(Batch(ids, ids, ids, positions, ids), tokens)
    edges = [*distance_edges(tokens), tokens]
    pairs = 2 * (tokens - np.arange(tokens))
    assert found[0] == 0
    assert found[1:].tolist() == [pairs[a:b].sum() for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("length", "edges"),
    [(1, [0]), (2, [0, 1]), (4, [0, 1, 2]), (5, [0, 1, 2, 4]), (512, [0, *(2 ** np.arange(9))])],
)
def test_edges_are_powers_of_two(length, edges):
    assert distance_edges(length) == list(edges)
