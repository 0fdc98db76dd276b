"""Windows: their offsets, documents and positions, and which distances they train."""

from dataclasses import replace

import numpy as np
import pytest

from rope_jax.config.sections import DocumentsConfig, PosePositions, RandomizedPositions
from rope_jax.data.batches import (
    Batch,
    ShortRows,
    count_distances,
    distance_edges,
    pose,
    position_functions,
    randomized,
    training_batch,
    validation_batches,
)
from rope_jax.data.storage import TokenSplit
from rope_jax.errors import UserError

BOS = 256


def split_of_stream(stream, starts, bos_ids):
    return TokenSplit(
        tokens=np.array(stream, np.uint16),
        starts=np.array(starts),
        ids=[str(i) for i in range(len(starts) - 1)],
        bos_ids=bos_ids,
        bytes_per_token=1.0,
    )


def split_of(*documents):
    """Return a split of these documents, each a list of tokens without its start token."""
    stream = [token for document in documents for token in (BOS, *document)]
    lengths = [len(document) + 1 for document in documents]
    return split_of_stream(stream, np.cumsum([0, *lengths]), (BOS,))


def numbered(count):
    """Return a split whose tokens are their own offsets, so that a window shows where it began."""
    return split_of_stream(range(count), [0, count], ())


def draw(split, step=0, seed=0, stage=0, seq_len=8, batch_size=8, **windows):
    given = {"seed": seed, "stage": stage, "step": step, "batch_size": batch_size}
    return training_batch(split, seq_len=seq_len, **given, **windows)


def mixed_documents():
    rng = np.random.default_rng(0)
    return split_of(*(rng.integers(0, 256, n).tolist() for n in rng.integers(0, 30, 60)))


def test_offsets_are_golden():
    # A run resumes from its step alone: other numbers would change every run that resumes.
    batch = draw(numbered(50_000), seed=3, stage=1, step=7, seq_len=128)
    assert batch.tokens[:, 0].tolist() == [45832, 22873, 22176, 41765, 24976, 10552, 49657, 15542]
    batch = draw(numbered(50_000), seed=0, stage=0, step=0, seq_len=128, batch_size=4)
    assert batch.tokens[:, 0].tolist() == [701, 12855, 23517, 4559]


def test_every_offset_that_fits_is_drawn_equally_often():
    split = numbered(8 + 1 + 2)
    seen = np.concatenate([draw(split, step=i, batch_size=100).tokens[:, 0] for i in range(20)])
    counts = np.bincount(seen)
    assert counts.size == 3
    np.testing.assert_allclose(counts / 2000, 1 / 3, atol=0.04)


@pytest.mark.parametrize(
    "settings",
    [
        {"positions": RandomizedPositions(length=100)},
        {
            "positions": PosePositions(length=50, chunks=3),
            "documents": DocumentsConfig(mask="none", positions="reset"),
            "short": ShortRows(4, 2),
        },
    ],
    ids=["randomized", "pose"],
)
def test_a_batch_depends_on_its_arguments_alone_and_hosts_share_its_rows(settings):
    split, given = mixed_documents(), {"seq_len": 24, "batch_size": 6, "step": 4, **settings}
    whole = draw(split, **given)
    parts = [draw(split, **given, rows=slice(a, b)) for a, b in ((0, 2), (2, 3), (3, 6))]
    together = Batch(*map(np.concatenate, zip(*parts, strict=True)))
    for name, leaf in together._asdict().items():
        assert np.array_equal(leaf, getattr(whole, name)), name
        assert leaf.dtype == (np.float32 if name == "weights" else np.int32)
    for other in ({"step": 5}, {"seed": 1}, {"stage": 1}):
        assert not np.array_equal(draw(split, **given | other).tokens, whole.tokens)


@pytest.mark.parametrize(
    ("offset", "weights"),
    [(0, [0, 0, 1, 1, 0, 0]), (1, [0, 1, 1, 0, 0, 0]), (2, [1, 1, 0, 0, 0, 0])],
)
def test_no_token_of_a_start_of_several_is_a_target(offset, weights):
    """Also where the window begins within one: documents of 2, 0 and 1 tokens."""
    stream = [7, 8, 9, 1, 2, 7, 8, 9, 7, 8, 9, 3]
    split = split_of_stream(stream, [0, 5, 8, 12], (7, 8, 9))
    (batch,) = validation_batches(
        replace(split, tokens=split.tokens[: offset + 7]), seq_len=6, batch_size=2, batches=1
    )
    assert batch.tokens[1].tolist() == stream[offset : offset + 6]
    assert batch.weights[1].tolist() == weights
    assert split.texts()[0].tolist() == [1, 2]


@pytest.mark.parametrize("mask", ["document", "none"])
@pytest.mark.parametrize("positions", ["reset", "continue"])
def test_documents_are_masked_and_numbered_as_the_switches_say(mask, positions):
    split = split_of([1, 2], [3], [], [4, 5])
    documents = DocumentsConfig(mask=mask, positions=positions)
    first, last = validation_batches(split, seq_len=7, batch_size=1, batches=2, documents=documents)
    assert first.tokens.tolist() == [[BOS, 1, 2, BOS, 3, BOS, BOS]]
    assert first.targets.tolist() == [[1, 2, BOS, 3, BOS, BOS, 4]]
    segments = {"document": [0, 0, 0, 1, 1, 2, 3], "none": [0] * 7}
    numbers = {"reset": [0, 1, 2, 0, 1, 0, 0], "continue": list(range(7))}
    assert first.segment_ids.tolist() == [segments[mask]]
    assert first.positions.tolist() == [numbers[positions]]
    assert first.weights.tolist() == [[1, 1, 0, 1, 0, 0, 1]]  # 0 where a document begins
    # the other begins inside a document
    assert last.tokens.tolist() == [[1, 2, BOS, 3, BOS, BOS, 4]]
    assert last.positions.tolist() == [{"reset": [0, 1, 0, 1, 0, 0, 1]}.get(positions, [*range(7)])]


def test_validation_windows_are_spaced_evenly_and_reach_both_ends():
    batches = list(validation_batches(numbered(1000), seq_len=99, batch_size=2, batches=5))
    offsets = np.concatenate([b.tokens[:, 0] for b in batches])
    assert offsets.tolist() == [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]
    assert batches[-1].targets[-1, -1] == 999
    # 2^62 windows: an array of all their offsets would not fit, nor their products into 64 bits
    many = validation_batches(numbered(1000), seq_len=99, batch_size=2, batches=2**61)
    assert next(iter(many)).tokens[:, 0].tolist() == [0, 0]


def test_a_window_takes_at_most_the_whole_stream():
    assert draw(numbered(9)).tokens[:, 0].tolist() == [0] * 8
    (batch,) = validation_batches(numbered(9), seq_len=8, batch_size=1, batches=1)
    assert batch.targets[0, -1] == 8
    with pytest.raises(UserError, match=r"^stages\[2\]\.seq_len: .* 8 tokens needs 9, .* has 8; "):
        draw(numbered(8), stage=2)
    with pytest.raises(UserError, match=r"^data\.validation_fraction: .* needs 9, .* has 8; "):
        validation_batches(numbered(8), seq_len=8, batch_size=1, batches=1)


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


def test_short_windows_are_windows_of_their_own():
    split, given = numbered(50_000), {"seq_len": 24, "batch_size": 8}
    long, batch = draw(split, **given), draw(split, **given, short=ShortRows(8, 5))
    for a, b in zip(batch, long, strict=True):
        assert np.array_equal(a[5:], b[5:])
    starts = batch.tokens[:5, ::8]
    assert len(set(starts.ravel().tolist())) == 15  # no two of them begin together
    assert batch.tokens[0].tolist() == [int(s) + i for s in starts[0] for i in range(8)]
    assert np.array_equal(batch.targets[:5], batch.tokens[:5] + 1)  # also at the joints
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
    seen = [draw(numbered(12), step=i, batch_size=1, short=ShortRows(4, 1)) for i in range(40)]
    assert {int(start) for batch in seen for start in batch.tokens[0, ::4]} == set(range(8))


# Positions that jump


def bits(*seed):
    return np.random.Philox(np.random.SeedSequence(seed))


def integers(source):
    """Return a function that draws the next integer below a number, with Python's integers."""
    return lambda below: (source.random_raw() * below) >> 64


def test_positions_are_golden():
    # A run resumes from its step alone: other numbers would change every run that resumes.
    seeds = [np.random.SeedSequence([3, 1, 7], spawn_key=(1, row)) for row in (0, 5)]
    found = position_functions(RandomizedPositions(length=1000), seeds, 8)
    assert found.dtype == np.int32
    assert found.tolist() == [
        [32, 143, 151, 173, 410, 495, 732, 958],
        [62, 374, 400, 528, 552, 754, 887, 913],
    ]
    found = position_functions(PosePositions(length=1000), seeds, 8)
    assert found.tolist() == [
        [0, 952, 953, 954, 955, 956, 957, 958],
        [0, 1, 2, 375, 376, 377, 378, 379],
    ]


@pytest.mark.parametrize(
    ("count", "below"), [(5, 11), (64, 300), (300, 2**24), (6, 11), (250, 300), (7, 7)]
)
def test_a_sample_is_the_first_different_integers_or_what_they_leave(count, below):
    for seed in range(3):
        next_below, wanted = integers(bits(seed)), set()
        while len(wanted) < min(count, below - count):
            wanted.add(next_below(below))
        if count > below - count:
            wanted = set(range(below)) - wanted
        assert randomized(bits(seed), count, below).tolist() == sorted(wanted)


@pytest.mark.parametrize("chunks", [2, 3, 5])
@pytest.mark.parametrize(("seq_len", "length"), [(5, 5), (8, 64), (129, 2**32), (9, 2**40)])
def test_pose_agrees_with_the_papers_formula(seq_len, length, chunks):
    for seed in range(10):
        next_below = integers(bits(seed))
        most = min((seq_len + chunks - 1) // chunks, (seq_len - 1) // (chunks - 1))
        lengths = [1 + next_below(most) for _ in range(chunks - 1)]
        lengths.append(seq_len - sum(lengths))
        assert min(lengths) >= 1
        wanted, start, jump = [], 0, 0
        for chunk, tokens in enumerate(lengths):
            if chunk:
                jump += next_below(length - seq_len - jump + 1)
            wanted += [start + jump + i for i in range(tokens)]
            start += tokens
        assert pose(bits(seed), seq_len, length, chunks).tolist() == wanted
        assert wanted[0] == 0
        assert wanted[-1] < length


# Trained distances


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


@pytest.mark.parametrize("positions", ["reset", "continue"])
@pytest.mark.parametrize("mask", ["document", "none"])
def test_counts_agree_with_a_loop_over_pairs(mask, positions):
    documents = DocumentsConfig(mask=mask, positions=positions)
    cases = [
        ({"seq_len": 1}, 1),
        ({"seq_len": 2, "positions": RandomizedPositions(length=200)}, 200),
        ({"seq_len": 32}, 32),
        ({"seq_len": 32, "positions": PosePositions(length=99)}, 99),
        ({"seq_len": 32, "short": ShortRows(16, 1)}, 32),
    ]
    assert distance_edges(3000) == [0, *(2**power for power in range(12))]
    for settings, length in cases:
        batch = draw(mixed_documents(), batch_size=4, documents=documents, **settings)
        wanted = counted_one_by_one(batch, length)
        np.testing.assert_array_equal(count_distances(batch, length), wanted)
        restarts = (mask, positions) == ("none", "reset") and settings["seq_len"] == 32
        assert (wanted[0] > 0) == restarts
