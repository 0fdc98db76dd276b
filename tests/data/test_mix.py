"""Samples of tasks among the rows of training batches."""

import re

import numpy as np
import pytest

from rope_jax.config.data import StdlibData
from rope_jax.config.sections import DocumentsConfig, PosePositions
from rope_jax.config.tasks import MIXED_TASKS
from rope_jax.config.tokenizer import START_TOKEN
from rope_jax.data.batches import ShortRows
from rope_jax.data.mix import Mix, mix_of, words_of
from rope_jax.data.tokenizers import ByteTokenizer, JsonTokenizer
from rope_jax.errors import UserError
from tests.data.test_batches import BOS, draw, split_of

LETTERS = np.random.default_rng(0).integers(ord("a"), ord("z"), 3000)
SPLIT = split_of(LETTERS[:1000], LETTERS[1000:])
T = 64
SHORTER = mix_of((MIXED_TASKS["passkey"](share=1.0, shortest=34),), ByteTokenizer())


def mix(**shares):
    tasks = tuple(
        MIXED_TASKS[name].model_validate({"task": name, "share": share})
        for name, share in shares.items()
    )
    return mix_of(tasks, ByteTokenizer())


def batch_of(shares, **given):
    return draw(SPLIT, **({"seq_len": T, "batch_size": 16} | given), mix=mix(**shares))


def texts(batch):
    windows = np.concatenate([batch.tokens, batch.targets[:, -1:]], axis=1)
    return ["".join("^" if token == BOS else chr(token) for token in row) for row in windows]


def test_shares_are_those_of_the_config():
    shown = [
        text
        for step in range(40)
        for text in texts(batch_of({"passkey": 0.25, "induction": 0.5}, step=step, seq_len=160))
    ]
    deviation = (0.25 * 0.75 / 640) ** 0.5
    assert len(shown) == 640
    assert abs(sum("<<PASS" in text for text in shown) / 640 - 0.25) < 4 * deviation
    plain = sum(re.fullmatch("[a-z^]*", text) is not None for text in shown)
    assert abs(plain / 640 - 0.25) < 4 * deviation


def test_a_sample_is_one_document_that_is_trained_as_a_whole():
    batch = batch_of({"passkey": 1.0})
    for text in texts(batch):
        found = re.fullmatch(r"\^([a-z^]*)<<PASS:(.{9})>>([a-z^]*)<<PASS:(.{9})", text)
        assert found, text
        assert found[2] == found[4]
        assert re.fullmatch(r"\d(-\d){4}", found[2])
    assert (batch.segment_ids == 0).all()
    assert (batch.weights == 1).all()
    assert (batch.positions == np.arange(T)).all()
    assert np.array_equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    depths = [text.index("<<") for text in texts(batch)]
    assert len(set(depths)) > 8


def test_no_start_token_of_a_sample_is_a_target():
    words = SHORTER.words._replace(bos_ids=(BOS, 300))
    two = Mix((MIXED_TASKS["passkey"](share=1.0, shortest=40),), words)
    batch = draw(SPLIT, seq_len=T, batch_size=200, mix=two)
    assert (batch.weights == ~np.isin(batch.targets, (BOS, 300))).all()
    assert ((batch.tokens == 300).sum(1) == 1).all()


def test_shorter_samples_follow_text_as_documents_of_their_own():
    plain = draw(SPLIT, seq_len=T, batch_size=200)
    batch = draw(SPLIT, seq_len=T, batch_size=200, mix=SHORTER)
    begins = []
    for row, text in enumerate(texts(batch)):
        begin = text.rindex("^", 0, text.index("<<PASS"))
        begins.append(begin)
        length = T - begin
        assert 34 <= length <= T
        assert re.fullmatch(r"\^[a-z^]*<<PASS:(.{9})>>[a-z^]*<<PASS:\1", text[begin:])
        assert np.array_equal(batch.tokens[row, :begin], plain.tokens[row, :begin])
        assert batch.positions[row, begin:].tolist() == list(range(length))
        own = batch.segment_ids[row, begin:]
        assert len(set(own)) == 1
        if begin:
            assert own[0] == batch.segment_ids[row, begin - 1] + 1
            assert batch.weights[row, begin - 1] == 0
        assert (batch.weights[row, begin:] == 1).all()
    assert len(set(begins)) > 20
    assert min(begins) == 0


def test_a_sample_is_seen_with_the_text_before_it_where_documents_are():
    documents = DocumentsConfig(mask="none", positions="continue")
    batch = draw(SPLIT, seq_len=T, mix=SHORTER, documents=documents)
    assert (batch.segment_ids == 0).all()
    assert (batch.positions == np.arange(T)).all()


def test_other_rows_are_those_without_a_mix_and_hosts_share_the_rows():
    given = {"passkey": 0.3, "induction": 0.3}
    mixed, plain = batch_of(given, step=7), draw(SPLIT, seq_len=T, batch_size=16, step=7)
    is_task = (mixed.tokens != plain.tokens).any(axis=1)
    assert 0 < is_task.sum() < 16
    for one, other in zip(mixed, plain, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one[~is_task], other[~is_task])
    for rows in (slice(0, 5), slice(5, 16)):
        for one, other in zip(mixed, batch_of(given, step=7, rows=rows), strict=True):
            assert np.array_equal(one[rows], other)
    assert not np.array_equal(mixed.tokens, batch_of(given, step=8).tokens)


def test_samples_jump_like_other_rows_and_leave_short_windows_alone():
    jumping = batch_of({"passkey": 1.0}, positions=PosePositions(length=256, chunks=2))
    assert jumping.positions.max() > T
    assert (np.diff(jumping.positions, axis=1) > 0).all()
    short = ShortRows(32, 2)
    mixed = batch_of({"passkey": 1.0}, short=short)
    for row, text in enumerate(texts(mixed)):
        assert ("<<PASS" in text) == (row >= 2)


def test_a_task_that_does_not_fit_is_refused_with_the_stage():
    with pytest.raises(UserError, match=r"^data\.mix\.1\.digits: .*; stages\[1\]\.seq_len is 32$"):
        mix(induction=0.1, passkey=0.1).check(32, 1)
    with pytest.raises(UserError, match=r"data\.mix\.0\.digits: 5 need a window of 34 tokens"):
        draw(SPLIT, seq_len=33, batch_size=4, mix=mix(passkey=1.0))
    assert words_of(JsonTokenizer(ByteTokenizer().json(), START_TOKEN, "of an import")).has_words


def test_bad_shares_are_refused():
    for shares, message in (((0.6, 0.6), "mix: the shares add up to 1.2"), ((0, 0.1), "share")):
        tasks = [{"task": "passkey", "share": share} for share in shares]
        with pytest.raises(ValueError, match=message):
            StdlibData(mix=tasks)
