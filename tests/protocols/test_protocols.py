"""Which windows are read and which of their tokens are scored."""

import re

import numpy as np
import pytest

from rope_jax.errors import UserError
from rope_jax.protocols import PROTOCOLS
from rope_jax.protocols.base import Streams, make_streams

BOS = 9
LENGTHS = (8, 12, 40, 64)


def documents(seed, count=12, shortest=65, longest=400):
    """Make texts without BOS; each token encodes its text and its place in it."""
    random = np.random.default_rng(seed)
    sizes = random.integers(shortest, longest, count)
    return [1000 * (d + 1) + np.arange(size) for d, size in enumerate(sizes)]


def streams_of(docs, bos="document", longest=LENGTHS[-1], seed=0, most=100, start=(BOS,)):
    return make_streams(
        docs, longest=longest, max_documents=most, bos=bos, bos_ids=start, seed=seed
    )


def protocol_of(streams, protocol, lengths=LENGTHS, targets=None, blocks=3, stride=4, seed=0):
    settings = {"lengths": lengths, "max_blocks": blocks, "stride": stride, "seed": seed}
    return PROTOCOLS[protocol](streams, targets=targets or lengths[0] // 2, **settings)


def windows_of(streams, protocol, length, *settings, units="documents", **more):
    return protocol_of(streams._replace(units=units), protocol, *settings, **more).windows(length)


def scored(streams, windows, length):
    """Return the scored targets, one array per window, as the model sees them."""
    tokens = streams.cut(windows, length)
    assert tokens.shape == (len(windows.document), length + 1)
    assert tokens.dtype == np.int32
    return [row[first:] for row, first in zip(tokens, windows.first, strict=True)]


def same_tokens(docs, lengths=LENGTHS, targets=None, blocks=3, bos="document", seed=0):
    """Return {length: the scored targets [W, targets]}."""
    streams = streams_of(docs, bos, lengths[-1], seed)
    targets = targets or lengths[0] // 2
    found = {}
    for length in lengths:
        windows = windows_of(streams, "same_tokens", length, lengths, targets, blocks, seed=seed)
        found[length] = np.stack(scored(streams, windows, length))
    return found


# same_tokens


@pytest.mark.parametrize("bos", ["document", "every_window", "none"])
def test_the_same_tokens_are_scored_at_every_length(bos):
    for seed in range(3):
        first, *others = same_tokens(documents(seed), bos=bos, seed=seed).values()
        assert first.shape[1] == LENGTHS[0] // 2
        for other in others:
            np.testing.assert_array_equal(first, other)
    # The window's last tokens are scored, so a longer window only adds context before them.
    streams = streams_of(documents(0), bos)
    for length in LENGTHS:
        assert set(windows_of(streams, "same_tokens", length).first) == {length - 3}


@pytest.mark.parametrize("targets", [1, 3, 4])
@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_blocks_do_not_overlap_and_end_within_reach(targets, blocks):
    # also for texts that hold just one window, or a token or two more
    docs = documents(1) + [np.arange(64 + extra) + 10**6 * (1 + extra) for extra in range(5)]
    streams = streams_of(docs)
    windows = windows_of(streams, "same_tokens", 64, targets=targets, blocks=blocks, seed=1)
    for index, stream in enumerate(streams.tokens):
        ends = windows.start[windows.document == index] + 64 + 1
        assert ends.min() >= 64 + 1
        assert ends.max() <= len(stream)
        assert (np.diff(ends) >= targets).all()
        # as many as asked for, or as fit: the first block's last token has 64 before it
        assert len(ends) == min(blocks, len(range(65, len(stream) + 1, targets)))


def test_every_end_within_reach_is_drawn():
    streams = streams_of([np.arange(70)], bos="none")
    drawn = [windows_of(streams, "same_tokens", 64, blocks=1, seed=seed) for seed in range(300)]
    ends = np.bincount([int(windows.start[0]) + 65 for windows in drawn])
    # evenly: 50 each, standard deviation 6.5
    assert (ends[:65] == 0).all()
    assert len(ends) == 71
    assert (abs(ends[65:] - 50) < 4 * 6.5).all()


def test_blocks_depend_on_the_seed_and_not_on_what_else_is_read():
    docs = documents(0)
    before = same_tokens(docs, seed=3)[64]
    assert not np.array_equal(before, same_tokens(docs, seed=4)[64])
    # other texts in place of all but the fifth
    others = documents(1)
    others[5] = docs[5]
    after = same_tokens(others, seed=3)[64]
    np.testing.assert_array_equal(before[before // 1000 == 6], after[after // 1000 == 6])
    # other lengths below the longest
    np.testing.assert_array_equal(before, same_tokens(docs, (10, 64), targets=4, seed=3)[64])


def test_the_blocks_of_a_run_are_golden():
    # Other numbers here mean that figures cannot be compared with earlier ones.
    found = same_tokens(documents(0, count=3), seed=0)[64]
    assert found[:, -1].tolist() == [1208, 1314, 1347, 2202, 2236, 2246, 3111, 3158, 3216]


# whole_window and per_position: windows side by side


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("bos", ["document", "none"])
def test_tiles_cover_the_first_blocks_once(blocks, bos):
    docs = documents(2)
    streams = streams_of(docs, bos)
    for length in LENGTHS:
        windows = windows_of(streams, "whole_window", length, blocks=blocks)
        found = np.stack(scored(streams, windows, length))
        for index, stream in enumerate(streams.tokens):
            reach = min(blocks, (len(stream) - 1) // 64) * 64 // length * length
            mine = found[windows.document == index]
            assert mine.shape == (reach // length, length)
            np.testing.assert_array_equal(mine.ravel(), stream[1 : reach + 1])


@pytest.mark.parametrize("lengths", [(2,), (5, 6), LENGTHS])
def test_position_buckets_partition_the_longest_window(lengths):
    streams = streams_of(documents(4), longest=lengths[-1])
    whole = windows_of(streams, "whole_window", lengths[-1], lengths)
    parts = []
    for length in lengths:
        windows = windows_of(streams, "per_position", length, lengths)
        # the same windows, cut shorter: a causal model's passes over them agree
        np.testing.assert_array_equal(windows.start, whole.start)
        np.testing.assert_array_equal(windows.document, whole.document)
        parts.append(np.stack(scored(streams, windows, length)))
    np.testing.assert_array_equal(
        np.concatenate(parts, axis=1), scored(streams, whole, lengths[-1])
    )


@pytest.mark.parametrize("protocol", ["sliding", "yarn_compat"])
@pytest.mark.parametrize(("stride", "bos"), [(1, "none"), (3, "document"), (8, "document")])
def test_sliding_windows_score_every_target_once(protocol, stride, bos):
    streams = streams_of(documents(5), bos)
    for length in LENGTHS:
        windows = windows_of(streams, protocol, length, blocks=2, stride=stride)
        found = scored(streams, windows, length)
        for index, stream in enumerate(streams.tokens):
            own = np.flatnonzero(windows.document == index)
            covered = min(2, (len(stream) - 1) // 64) * 64
            np.testing.assert_array_equal(
                np.concatenate([found[w] for w in own]), stream[1 : covered + 1]
            )
            # The first window is scored whole; later targets have length − stride + 1 tokens of
            # context or more.
            assert windows.start[own[0]] == 0
            assert windows.first[own[0]] == 1
            assert (windows.first[own[1:]] >= length - stride + 1).all()
            steps = np.diff(windows.start[own])
            assert (steps[:-1] == stride).all()
            assert not steps.size or 0 < steps[-1] <= stride


# The document-start token


@pytest.mark.parametrize("start", [(BOS,), (BOS, 8)], ids=["one", "two"])  # GLM-4 has two
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("bos", ["document", "every_window", "none"])
def test_start_tokens_stand_where_bos_says_and_are_never_scored(protocol, bos, start):
    """Each other target is what it is after one start token, or after none."""
    docs, size = documents(5), len(start)
    streams = streams_of(docs, bos, start=start)
    before = [stream.copy() for stream in streams.tokens]
    for length in LENGTHS:
        windows = windows_of(streams, protocol, length)
        tokens = streams.cut(windows, length)
        led = (bos == "every_window") | ((windows.start == 0) & (bos == "document"))
        assert ((tokens[:, :size] == start).all(1) == led).all()
        assert (tokens[:, size:] > 9).all()
        # the rest is the document's own text, in order
        for row, index, begin, first in zip(tokens, *windows[:3], strict=True):
            text = np.append([0] * (bos != "none") * size, docs[streams.indices[index]])
            np.testing.assert_array_equal(row[first:], text[begin + first : begin + length + 1])
        one = windows_of(streams_of(docs, bos), protocol, length)
        assert windows.first.tolist() == np.where(led & (one.first == 1), size, one.first).tolist()
    for old, new in zip(before, streams.tokens, strict=True):
        np.testing.assert_array_equal(old, new)


# The fingerprint


def prints(docs, protocol, bos="document", seed=0, blocks=3, targets=4):
    """Return {length: fingerprint}."""
    streams = streams_of(docs, bos, seed=seed)
    settings = {"targets": targets, "blocks": blocks, "seed": seed}
    return {
        length: streams.fingerprint(windows_of(streams, protocol, length, **settings), length)
        for length in LENGTHS
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_fingerprint_for_all_lengths_means_the_same_tokens(protocol):
    docs = documents(6)
    found = prints(docs, protocol)
    assert len(set(found.values())) == (1 if protocol == "same_tokens" else len(LENGTHS))
    # A document-start token in every window changes the context, not the targets.
    assert found == prints(docs, protocol, bos="every_window")


def test_the_fingerprint_changes_with_what_is_scored():
    docs = documents(6)
    changed = [document.copy() for document in docs]
    changed[7][31] += 1
    found = [set(prints(read, "same_tokens").values()) for read in (docs, changed, docs[:-1])]
    for setting in ({"seed": 1}, {"blocks": 2}, {"targets": 3}):
        found.append(set(prints(docs, "same_tokens", **setting).values()))
    found.append(set(prints(docs, "whole_window").values()))
    assert len(set.union(*found)) == sum(map(len, found))


# The choice of documents


@pytest.mark.parametrize("bos", ["document", "every_window", "none"])
def test_documents_too_short_for_the_longest_window_are_left_out(bos):
    sizes = [10, 63, 64, 65, 66, 200]
    docs = [np.full(size, size) for size in sizes]
    streams = streams_of(docs, bos)
    # a window is a token longer than its length, and bos is one of its tokens
    needed = 65 if bos == "none" else 64
    assert [sizes[i] for i in streams.indices] == [size for size in sizes if size >= needed]
    for index, stream in zip(streams.indices, streams.tokens, strict=True):
        text = stream if bos == "none" else stream[1:]
        np.testing.assert_array_equal(text, docs[index])
        assert bos == "none" or stream[0] == BOS


def test_documents_are_drawn_by_the_seed_and_kept_in_order():
    docs = documents(8, count=40)
    draws = [streams_of(docs, seed=seed, most=10)[0] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    for chosen in draws:
        assert len(chosen) == 10
        assert chosen == sorted(set(chosen))
    counts = np.zeros(40)
    for seed in range(400):
        counts[streams_of(docs, seed=seed, most=10)[0]] += 1
    # each is drawn 100 times of 400 on average, with a standard deviation of 8.7
    assert abs(counts - 100).max() < 4 * 8.7


@pytest.mark.parametrize("bos", ["document", "none"])
def test_if_all_documents_are_too_short_the_longest_possible_length_is_given(bos):
    docs = documents(9, count=7, shortest=20, longest=60)
    with pytest.raises(UserError) as caught:
        streams_of(docs, bos)
    says = r"lengths: none of the 7 .* has the 65 tokens .* longest possible length is (\d+)"
    possible = int(re.fullmatch(says, str(caught.value))[1])
    streams = streams_of(docs, bos, longest=possible)
    assert streams.indices == [int(np.argmax([len(document) for document in docs]))]
    windows = windows_of(streams, "same_tokens", possible, (8, possible))
    assert streams.cut(windows, possible).shape == (1, possible + 1)
    for too_short in (docs, []):
        with pytest.raises(UserError):
            streams_of(too_short, bos, longest=possible + 1)


# Blocks as units, where documents are few


def far_windows(docs, protocol, length, blocks):
    streams = streams_of(docs)
    assert streams.units == "blocks"
    return windows_of(streams, protocol, length, blocks=blocks, units="blocks")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("blocks", [1, 3, 1000])
def test_scored_tokens_of_two_units_are_more_than_the_longest_length_apart(protocol, blocks):
    docs = documents(2, count=3, shortest=65, longest=5000)
    for length in LENGTHS:
        windows = far_windows(docs, protocol, length, blocks)
        assert (np.diff(windows.document) >= 0).all()
        scored_by_unit: dict[tuple[int, int], set] = {}
        for document, start, first, unit in zip(*windows[:4], strict=True):
            places = scored_by_unit.setdefault((document, unit), set())
            targets = set(range(start + first, start + length + 1))
            assert not places & targets  # no token is scored twice
            places |= targets
        spans = {key: (min(places), max(places)) for key, places in scored_by_unit.items()}
        for (d, u), (low, _) in spans.items():
            if (d, u - 1) in spans:
                assert low - spans[d, u - 1][1] > LENGTHS[-1]
        assert [u for _, u in sorted(spans)] == list(range(len(spans)))
        # as many as asked for, in every document that has room for them
        by_document = np.bincount(windows.document)
        assert by_document.min() > 0
        if protocol == "same_tokens":
            assert by_document.max() <= blocks


def test_units_are_as_many_as_fit_and_hold_the_blocks_that_are_asked_for():
    longest, targets = 64, 4
    # 1 + (1 + 4000 − 65) // 68 = 58 places that are far enough apart
    few, many, most, short = (
        np.bincount(far_windows([np.arange(size)], "same_tokens", 64, blocks).unit)
        for size, blocks in ((4000, 40), (4000, 400), (4000, 4000), (230, 100))
    )
    assert few.tolist() == [1] * 40
    # more blocks than places: wider units, which leave at least 20 of them
    width = many.max() * targets
    assert len(many) == min(-(-400 // many.max()), 1 + (4001 - 61 - width) // (longest + width))
    assert len(many) >= 20
    assert many.sum() == 400
    # beyond what has room beside 20 units, fewer blocks than asked for
    assert len(most) == 20
    assert most.sum() < 800
    # where there is only room for three units they stay three
    assert len(short) == 3


def test_documents_are_the_units_from_twenty_on():
    docs = [np.arange(100) + 1000 * i for i in range(20)]
    assert streams_of(docs).units == "documents"
    assert streams_of(docs, most=3).units == "documents"  # fewer were asked for
    assert streams_of(docs[:19]).units == "blocks"
    assert streams_of([*docs[:19], np.arange(50)]).units == "blocks"  # one is too short


@pytest.mark.parametrize(
    ("protocol", "units", "documents", "wanted"),
    [
        ("same_tokens", "documents", 64, 8),  # 64 · 8 · 32 = 16,384
        ("same_tokens", "documents", 1000, 1),
        ("same_tokens", "blocks", 3, 171),  # 3 · 171 · 32 = 16,416
        ("sliding", "documents", 64, 1),
        ("sliding", "documents", 4, 2),
        ("sliding", "blocks", 3, 7),  # 21 units
    ],
)
def test_auto_scores_16384_tokens(protocol, units, documents, wanted):
    streams = Streams([], [np.zeros(1, np.int32)] * documents, units, "none", ())
    assert protocol_of(streams, protocol, (2048,), targets=32, blocks="auto").blocks == wanted
    assert protocol_of(streams, protocol, (2048,), targets=32, blocks=5).blocks == 5
