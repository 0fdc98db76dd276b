"""A corpus as tokens: exact, cached, and cleaned up after."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rope_jax.config.data import JsonLinesData, TextData
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError

TEXTS = {"train": ["dos\r\n\tété", "", "日本"], "validation": ["v"], "test": ["t\x00t", "u"]}


@pytest.fixture
def data(tmp_path):
    files = {}
    for split, texts in TEXTS.items():
        for number, text in enumerate(texts):
            (tmp_path / f"{split}{number}").write_bytes(text.encode())
        files[split] = [str(tmp_path / f"{split}*")]
    return TextData(files=files, cache_dir=str(tmp_path / "tokens"))


def contents(corpus):
    return [
        [bytes(split.document(i)[1:].astype(np.uint8)).decode() for i in range(len(split))]
        for split in (corpus.train, corpus.validation, corpus.test)
    ]


def cached_files(data):
    (folder,) = Path(data.cache_dir).iterdir()
    return folder


def test_the_stream_has_each_document_after_its_start_token(data):
    corpus = open_corpus(data, ByteTokenizer())
    assert contents(corpus) == list(TEXTS.values())
    train = corpus.train
    assert train.tokens.dtype == np.uint16
    assert isinstance(train.tokens, np.memmap)
    stream = [t for text in TEXTS["train"] for t in (256, *text.encode())]
    assert train.tokens.tolist() == stream
    assert train.starts.tolist() == [0, 12, 13, 20]
    assert train.starts.dtype == np.int64
    assert train.lengths().tolist() == [12, 1, 7]
    assert [Path(i).name for i in train.ids] == ["train0", "train1", "train2"]
    assert corpus.report == (
        "train: 3 documents, 20 tokens",
        "validation: 1 document, 2 tokens",
        "test: 2 documents, 6 tokens",
    )
    assert train.bytes_per_token == 1.0
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"document {index} of 3"):
            train.document(index)


def test_tokens_cannot_be_changed(data):
    with pytest.raises(ValueError, match="read-only"):
        open_corpus(data, ByteTokenizer()).train.tokens[0] = 1


def test_the_fingerprint_depends_on_the_content_alone(data, tmp_path):
    digest = hashlib.sha256(b"bytes")
    for split, texts in TEXTS.items():
        digest.update(split.encode())
        for text in texts:
            digest.update(np.array([256, *text.encode()], "<u2").tobytes())
    assert open_corpus(data, ByteTokenizer()).fingerprint == digest.hexdigest()
    for split, texts in TEXTS.items():
        lines = "\n".join(json.dumps({"text": text}) for text in texts)
        (tmp_path / f"{split}.jsonl").write_text(lines)
    files = {split: [str(tmp_path / f"{split}.jsonl")] for split in TEXTS}
    elsewhere = open_corpus(JsonLinesData(files=files), ByteTokenizer())
    assert elsewhere.fingerprint == digest.hexdigest()


def test_default_cache_follows_xdg(data, tmp_path):
    open_corpus(data.model_copy(update={"cache_dir": None}), ByteTokenizer())
    assert len(list((tmp_path / "cache" / "rope_jax").iterdir())) == 1


def test_empty_splits_can_be_opened(tmp_path):
    (tmp_path / "only").write_text("text")
    data = TextData(files=[str(tmp_path / "only")], validation_fraction=0, test_fraction=0)
    corpus = open_corpus(data, ByteTokenizer())
    assert (len(corpus.train), len(corpus.test), corpus.test.tokens.size) == (1, 0, 0)
    assert corpus.test.lengths().tolist() == []


def test_changed_or_added_files_are_read_again(data, tmp_path):
    first = open_corpus(data, ByteTokenizer())
    before = (tmp_path / "train2").stat()
    (tmp_path / "train2").write_bytes("日曜".encode())  # the same size
    os.utime(tmp_path / "train2", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    changed = open_corpus(data, ByteTokenizer())
    assert contents(changed)[0][2] == "日曜"
    assert changed.fingerprint != first.fingerprint
    (tmp_path / "train3").write_text("more")
    assert len(open_corpus(data, ByteTokenizer()).train) == 4
    assert contents(first) == list(TEXTS.values())  # an open corpus stays as it was


REOPEN = """
import sys, time
from rope_jax.config.data import StdlibData
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
began = time.perf_counter()
corpus = open_corpus(StdlibData.model_validate_json(sys.argv[1]), ByteTokenizer())
print(time.perf_counter() - began, corpus.fingerprint, "datasets" in sys.modules)
"""


def test_reopening_does_not_import_datasets(stdlib_corpus, stdlib_data):
    done = subprocess.run(
        [sys.executable, "-c", REOPEN, stdlib_data.model_dump_json()],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, fingerprint, imported = done.stdout.split()
    assert (fingerprint, imported) == (stdlib_corpus.fingerprint, "False")
    assert float(seconds) < 1  # 0.03 s on an idle machine


def test_a_cache_that_cannot_be_written_is_reported(data, tmp_path):
    (tmp_path / "file").write_text("in the way")
    data = data.model_copy(update={"cache_dir": str(tmp_path / "file" / "tokens")})
    with pytest.raises(
        UserError, match=rf"^data\.cache_dir: cannot write .* {tmp_path}/file/tokens"
    ):
        open_corpus(data, ByteTokenizer())


def test_a_full_disk_names_the_key(data, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rope_jax.data.storage.load_documents", no_space)
    message = r"^data\.cache_dir: .*tokens \(No space left on device\); name a writable folder$"
    with pytest.raises(UserError, match=message):
        open_corpus(data, ByteTokenizer())
    assert not Path(data.cache_dir).exists()


def test_a_bad_source_leaves_nothing_behind(data, tmp_path):
    (tmp_path / "test0").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"^data\.files: .*test0 is not UTF-8"):
        open_corpus(data, ByteTokenizer())
    assert not Path(data.cache_dir).exists()
