"""Windows: their offsets, and the documents in them."""

import os
from pathlib import Path

import numpy as np
import pytest

from rope_jax.config.sections import DocumentsConfig, PosePositions, RandomizedPositions
from rope_jax.data.batches import (
    Batch,
    ShortRows,
    position_functions,
    training_batch,
    validation_batches,
)
from rope_jax.data.storage import TokenSplit
from rope_jax.errors import UserError

BOS = 256


def split_of(*documents):
    """Return a split of these documents, each a list of tokens without its start token."""
    stream = [token for document in documents for token in (BOS, *document)]
    lengths = [len(document) + 1 for document in documents]
    return TokenSplit(
        tokens=np.array(stream, np.uint16),
        starts=np.cumsum([0, *lengths]),
        ids=[str(i) for i in range(len(documents))],
        path=Path("not in a file"),
        opened=os.stat_result([0] * 10),
        vocab_size=257,
        bos_id=BOS,
        bytes_per_token=1.0,
    )


def numbered(count):
    """Return a split whose tokens are their own offsets, so that a window shows where it began."""
    tokens = np.arange(count, dtype=np.uint16)
    return TokenSplit(
        tokens,
        starts=np.array([0, count]),
        ids=["numbers"],
        path=Path("not in a file"),
        opened=os.stat_result([0] * 10),
        vocab_size=count,
        bos_id=None,
        bytes_per_token=None,
    )


def draw(split, step=0, seed=0, stage=0, seq_len=8, batch_size=8, rows=slice(None), **windows):
    return training_batch(
        split,
        seed=seed,
        stage=stage,
        step=step,
        seq_len=seq_len,
        batch_size=batch_size,
        rows=rows,
        **windows,
    )


def test_offsets_are_golden():
    # A run resumes from its step alone: other numbers would change every run that resumes.
    batch = draw(numbered(50_000), seed=3, stage=1, step=7, seq_len=128)
    assert batch.tokens[:, 0].tolist() == [45832, 22873, 22176, 41765, 24976, 10552, 49657, 15542]
    batch = draw(numbered(50_000), seed=0, stage=0, step=0, seq_len=128, batch_size=4)
    assert batch.tokens[:, 0].tolist() == [701, 12855, 23517, 4559]


def test_batch_depends_on_nothing_but_its_arguments():
    split = numbered(50_000)
    wanted = draw(split, step=5)
    draw(split, step=4)
    assert all(np.array_equal(a, b) for a, b in zip(wanted, draw(split, step=5), strict=True))
    others = [draw(split, step=6), draw(split, step=5, seed=1), draw(split, step=5, stage=1)]
    for other in others:
        assert not np.intersect1d(wanted.tokens[:, 0], other.tokens[:, 0]).size


def test_the_rows_of_all_hosts_make_up_the_batch():
    split = split_of(*([i] * (i % 7) for i in range(200)))
    whole = draw(split, batch_size=7)
    parts = [draw(split, batch_size=7, rows=slice(a, b)) for a, b in ((0, 2), (2, 3), (3, 7))]
    for name, together in zip(
        Batch._fields, map(np.concatenate, zip(*parts, strict=True)), strict=True
    ):
        assert np.array_equal(together, getattr(whole, name)), name


def test_documents_are_drawn_in_proportion_to_their_length():
    # 1,000 tokens, 900 of them in the first document.
    split = split_of([1] * 899, [2] * 99)
    first = np.concatenate([draw(split, step=i, seq_len=1).tokens[:, 0] for i in range(500)])
    assert np.mean(first == 1) == pytest.approx(0.9, abs=0.02)


def test_every_offset_that_fits_is_drawn_and_no_other():
    split = numbered(8 + 1 + 2)
    seen = np.concatenate([draw(split, step=i).tokens[:, 0] for i in range(20)])
    assert set(seen.tolist()) == {0, 1, 2}


def test_segments_positions_and_weights_follow_document_boundaries():
    split = split_of([1, 2], [3], [], [4, 5])
    (batch,) = validation_batches(split, seq_len=8, batch_size=1, batches=1)
    assert batch.tokens.tolist() == [[BOS, 1, 2, BOS, 3, BOS, BOS, 4]]
    assert batch.targets.tolist() == [[1, 2, BOS, 3, BOS, BOS, 4, 5]]
    assert batch.segment_ids.tolist() == [[0, 0, 0, 1, 1, 2, 3, 3]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1]]
    assert batch.weights.tolist() == [[1, 1, 0, 1, 0, 0, 1, 1]]
    assert [a.dtype for a in batch] == [np.int32] * 4 + [np.float32]


def test_a_window_may_begin_inside_a_document():
    split = split_of([1, 2, 3], [4])
    first, last = validation_batches(split, seq_len=4, batch_size=1, batches=2)
    assert first.tokens.tolist() == [[BOS, 1, 2, 3]]
    assert first.weights.tolist() == [[1, 1, 1, 0]]  # the target after it starts a document
    assert last.tokens.tolist() == [[1, 2, 3, BOS]]
    assert last.segment_ids.tolist() == [[0, 0, 0, 1]]
    assert last.positions.tolist() == [[0, 1, 2, 0]]
    assert last.weights.tolist() == [[1, 1, 0, 1]]


@pytest.mark.parametrize("seq_len", [1, 2, 33])
def test_windows_agree_with_a_loop_over_the_stream(seq_len):
    rng = np.random.default_rng(0)
    split = split_of(*(rng.integers(0, 256, n).tolist() for n in rng.integers(0, 30, 60)))
    batch = draw(split, seq_len=seq_len, batch_size=32)
    for row in range(32):
        segment, position = 0, 0
        for t, token in enumerate(batch.tokens[row]):
            if t and token == BOS:
                segment, position = segment + 1, 0
            assert (batch.segment_ids[row, t], batch.positions[row, t]) == (segment, position)
            position += 1
        assert np.array_equal(batch.targets[row, :-1], batch.tokens[row, 1:])
        assert np.array_equal(batch.weights[row], batch.targets[row] != BOS)


def test_validation_windows_are_spaced_evenly_and_reach_both_ends():
    split = numbered(1000)
    batches = list(validation_batches(split, seq_len=99, batch_size=2, batches=5))
    offsets = np.concatenate([b.tokens[:, 0] for b in batches])
    assert offsets.tolist() == [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]
    assert batches[-1].targets[-1, -1] == 999
    again = validation_batches(split, seq_len=99, batch_size=2, batches=5)
    assert np.array_equal(offsets, np.concatenate([b.tokens[:, 0] for b in again]))


def test_many_validation_windows_are_built_as_they_are_read():
    # 2^62 windows: an array of all their offsets would not fit, nor their products into 64 bits
    batches = validation_batches(numbered(1000), seq_len=99, batch_size=2, batches=2**61)
    assert next(iter(batches)).tokens[:, 0].tolist() == [0, 0]


def test_a_window_may_take_the_whole_stream():
    assert draw(numbered(9)).tokens[:, 0].tolist() == [0] * 8
    (batch,) = validation_batches(numbered(9), seq_len=8, batch_size=1, batches=1)
    assert batch.targets[0, -1] == 8


def test_too_little_text_names_the_key():
    with pytest.raises(UserError, match=r"^stages\[2\]\.seq_len: .* 8 tokens needs 9, .* has 8; "):
        draw(numbered(8), stage=2)
    with pytest.raises(UserError, match=r"^data\.validation_fraction: .* needs 9, .* has 8; "):
        validation_batches(numbered(8), seq_len=8, batch_size=1, batches=1)


# Positions, short windows and documents of a stage


def mixed_documents():
    rng = np.random.default_rng(0)
    return split_of(*(rng.integers(0, 256, n).tolist() for n in rng.integers(0, 30, 60)))


CONTINUED = DocumentsConfig(positions="continue")
EVERYTHING = [
    {"positions": RandomizedPositions(length=100)},
    {"positions": PosePositions(length=100, chunks=3)},
    {"documents": DocumentsConfig(mask="none", positions="continue")},
    {"short": ShortRows(8, 1)},
    {
        "positions": PosePositions(length=50),
        "documents": DocumentsConfig(mask="none", positions="reset"),
        "short": ShortRows(4, 2),
    },
]


@pytest.mark.parametrize("settings", EVERYTHING, ids=range(len(EVERYTHING)))
def test_the_rows_of_all_hosts_make_up_the_batch_of_every_kind(settings):
    given = {"seq_len": 24, "batch_size": 6, "step": 4, **settings}
    whole = draw(mixed_documents(), **given)
    parts = [draw(mixed_documents(), **given, rows=slice(2 * i, 2 * i + 2)) for i in range(3)]
    for name, together in zip(
        Batch._fields, map(np.concatenate, zip(*parts, strict=True)), strict=True
    ):
        assert np.array_equal(together, getattr(whole, name)), name
        assert together.dtype == getattr(whole, name).dtype
    plain = draw(mixed_documents(), seq_len=24, batch_size=6, step=4)
    assert any(not np.array_equal(a, b) for a, b in zip(whole, plain, strict=True))


@pytest.mark.parametrize(
    "positions", [RandomizedPositions(length=100), PosePositions(length=100)], ids=lambda p: p.type
)
def test_positions_jump_by_a_function_of_the_row(positions):
    split = mixed_documents()
    plain, batch = draw(split, seq_len=24), draw(split, seq_len=24, positions=positions)
    for name in ("tokens", "targets", "segment_ids", "weights"):
        assert np.array_equal(getattr(batch, name), getattr(plain, name)), name
    assert plain.segment_ids.max() >= 2
    for row in range(8):
        seed = np.random.SeedSequence([0, 0, 0], spawn_key=(1, row))
        (function,) = position_functions(positions, [seed], 24)
        assert batch.positions[row].tolist() == [function[p] for p in plain.positions[row]]
    assert batch.positions.max() >= 24
    # The same row of another batch size or step: the row and the step decide.
    other = draw(split, seq_len=24, batch_size=3, positions=positions, documents=CONTINUED)
    again = draw(split, seq_len=24, batch_size=5, positions=positions, documents=CONTINUED)
    assert np.array_equal(other.positions, again.positions[:3])
    later = draw(split, seq_len=24, step=1, positions=positions, documents=CONTINUED)
    assert not np.array_equal(other.positions[0], later.positions[0])


@pytest.mark.parametrize("mask", ["document", "none"])
@pytest.mark.parametrize("positions", ["reset", "continue"])
def test_documents_are_masked_and_numbered_as_the_switches_say(mask, positions):
    documents = DocumentsConfig(mask=mask, positions=positions)
    split = split_of([1, 2], [3], [], [4, 5])
    (batch,) = validation_batches(split, seq_len=8, batch_size=1, batches=1, documents=documents)
    segments = {"document": [0, 0, 0, 1, 1, 2, 3, 3], "none": [0] * 8}
    numbers = {"reset": [0, 1, 2, 0, 1, 0, 0, 1], "continue": list(range(8))}
    assert batch.segment_ids.tolist() == [segments[mask]]
    assert batch.positions.tolist() == [numbers[positions]]
    assert batch.weights.tolist() == [[1, 1, 0, 1, 0, 0, 1, 1]]  # at borders as ever
    assert [a.dtype for a in batch] == [np.int32] * 4 + [np.float32]


def test_short_windows_are_windows_of_their_own():
    split, short = numbered(50_000), ShortRows(8, 5)
    given = {"seq_len": 24, "batch_size": 8}
    long, batch = draw(split, **given), draw(split, **given, short=short)
    is_short = np.arange(8) < 5
    for a, b in zip(batch, long, strict=True):
        assert np.array_equal(a[~is_short], b[~is_short])
    starts = batch.tokens[is_short][:, ::8]
    assert len(set(starts.ravel().tolist())) == 15  # no two of them begin together
    assert batch.tokens[0].tolist() == [int(s) + i for s in starts[0] for i in range(8)]
    assert np.array_equal(batch.targets[is_short], batch.tokens[is_short] + 1)  # also at the joints
    assert batch.positions[0].tolist() == [*range(8)] * 3
    assert batch.segment_ids[0].tolist() == [i // 8 for i in range(24)]
    assert batch.weights.min() == 1
    # golden, as the offsets of long windows are
    assert starts[[0, 4]].tolist() == [[35177, 34283, 774], [7321, 32697, 46747]]


def test_the_documents_of_short_windows_are_numbered_through_the_row():
    split, short = mixed_documents(), ShortRows(8, 2)
    for mask in ("document", "none"):
        documents = DocumentsConfig(mask=mask)
        batch = draw(split, seq_len=24, batch_size=2, short=short, documents=documents)
        for row in range(2):
            segment = -1
            for t, token in enumerate(batch.tokens[row].tolist()):
                begins = t % 8 == 0 or (token == BOS and mask == "document")
                segment += begins
                assert batch.segment_ids[row, t] == segment
                assert (batch.positions[row, t] == 0) == (t % 8 == 0 or token == BOS)
            assert np.array_equal(batch.weights[row], batch.targets[row] != BOS)


def test_a_short_window_reaches_every_place_of_the_text():
    split = numbered(12)
    seen = [draw(split, step=i, batch_size=1, short=ShortRows(4, 1)) for i in range(40)]
    starts = {int(start) for batch in seen for start in batch.tokens[0, ::4]}
    assert starts == set(range(8))
