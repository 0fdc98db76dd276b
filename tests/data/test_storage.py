"""A corpus as tokens: exact, cached, written again if damaged, and cleaned up after."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from rope_jax.config.data import HubData, JsonLinesData, TextData
from rope_jax.config.tasks import MIXED_TASKS
from rope_jax.config.tokenizer import START_TOKEN
from rope_jax.data.cache import cache_folder
from rope_jax.data.corpora import document_batches
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from tests.data.test_corpora import text_files, whole

TEXTS = {"train": ["dos\r\n\tété", "", "日本"], "validation": ["v"], "test": ["t\x00t", "u"]}


def in_files(folder, texts):
    """Write the texts of each split, and return their schema."""
    for split, own in texts.items():
        text_files(folder, own, split)
    files = {split: [str(folder / f"{split}*")] for split in texts}
    return TextData(files=files, cache_dir=str(folder / "cached"))


@pytest.fixture
def data(tmp_path):
    return in_files(tmp_path, TEXTS)


def opened(data):
    return open_corpus(data, ByteTokenizer())


def wrong(data):
    """Return the one line with which a corpus is refused."""
    with pytest.raises(UserError) as caught:
        opened(data)
    return str(caught.value)


def contents(corpus):
    return [
        [bytes(split.document(i)[1:].astype(np.uint8)).decode() for i in range(len(split))]
        for split in (corpus.train, corpus.validation, corpus.test)
    ]


def cached_files(data):
    (folder,) = Path(data.cache_dir).iterdir()
    return folder


def test_the_stream_has_each_document_after_its_start_token(data):
    corpus = opened(data)
    assert contents(corpus) == list(TEXTS.values())
    train = corpus.train
    assert train.tokens.dtype == np.uint16
    assert isinstance(train.tokens, np.memmap)
    stream = [t for text in TEXTS["train"] for t in (256, *text.encode())]
    assert train.tokens.tolist() == stream
    assert train.starts.tolist() == [0, 12, 13, 20]
    assert train.starts.dtype == np.int64
    assert train.lengths().tolist() == [12, 1, 7]
    assert [Path(i).name for i in train.ids] == ["train00.txt", "train01.txt", "train02.txt"]
    assert corpus.report == (
        "train: 3 documents, 20 tokens",
        "validation: 1 document, 2 tokens",
        "test: 2 documents, 6 tokens",
    )
    assert train.bytes_per_token == 1.0
    with pytest.raises(ValueError, match="read-only"):
        train.tokens[0] = 1


def test_control_tokens_and_an_end_of_documents_are_kept_on_request(tmp_path):
    data = in_files(tmp_path, {"train": ["a" + START_TOKEN + "b", START_TOKEN + "c", ""]})

    def train(**changes):
        return opened(data.model_copy(update=whole(**changes))).train

    written = [*START_TOKEN.encode()]
    as_text = train()
    assert as_text.tokens.tolist() == [256, 97, *written, 98, 256, *written, 99, 256]
    ended = train(split_special_tokens=False, eos=START_TOKEN)
    assert ended.tokens.tolist() == [256, 97, 256, 98, 256, 256, 99, 256, 256, 256]
    assert ended.starts.tolist() == [0, 5, 8, 10]
    # sweeps read neither the start nor the end
    assert [text.tolist() for text in ended.texts()] == [[97, 256, 98], [99], []]
    assert ended.bytes_per_token == (2 + 1 + 2 * len(written)) / 4
    with pytest.raises(UserError, match=r"^data\.eos: bytes have no token '</s>', only '<\|begin"):
        train(eos="</s>")


def test_the_fingerprint_depends_on_the_content_alone(data, tmp_path):
    digest = hashlib.sha256(b"bytes")
    for split, texts in TEXTS.items():
        digest.update(split.encode())
        for text in texts:
            digest.update(np.array([256, *text.encode()], "<u2").tobytes())
    assert opened(data).fingerprint == digest.hexdigest()
    for split, texts in TEXTS.items():
        lines = "\n".join(json.dumps({"text": text}) for text in texts)
        (tmp_path / f"{split}.jsonl").write_text(lines)
    files = {split: [str(tmp_path / f"{split}.jsonl")] for split in TEXTS}
    assert opened(JsonLinesData(files=files)).fingerprint == digest.hexdigest()
    assert len(list((tmp_path / "cache" / "rope_jax").iterdir())) == 1  # the default follows XDG


def test_empty_splits_can_be_opened(tmp_path):
    (tmp_path / "only").write_text("text")
    data = TextData(files=[str(tmp_path / "only")], validation_fraction=0, test_fraction=0)
    corpus = opened(data)
    assert (len(corpus.train), len(corpus.test), corpus.test.tokens.size) == (1, 0, 0)
    assert corpus.test.lengths().tolist() == []


def test_changed_or_added_files_are_read_again(data, tmp_path):
    first = opened(data)
    file = tmp_path / "train02.txt"
    before = file.stat()
    file.write_bytes("日曜".encode())  # the same size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    changed = opened(data)
    assert contents(changed)[0][2] == "日曜"
    assert changed.fingerprint != first.fingerprint
    (tmp_path / "train03.txt").write_text("more")
    assert len(opened(data).train) == 4
    assert contents(first) == list(TEXTS.values())  # an open corpus stays as it was


@pytest.mark.parametrize(
    ("folder", "error", "message"),
    [
        ("file/tokens", None, "written (Not a directory)"),  # a file is in the way
        ("cached", OSError(28, "No space left"), "written (No space left)"),
        ("cached", shutil.rmtree, "written (No such file or directory)"),
    ],
    ids=["in the way", "full", "removed while it is written"],
)
def test_a_cache_that_cannot_be_written_is_reported_and_leaves_nothing(
    data, tmp_path, folder, error, message, monkeypatch
):
    (tmp_path / "file").write_text("")

    def batches(dataset):
        if isinstance(error, OSError):
            raise error
        if error is not None:
            error(data.cache_dir)
        return document_batches(dataset)

    monkeypatch.setattr("rope_jax.data.storage.document_batches", batches)
    said = wrong(data.model_copy(update={"cache_dir": str(tmp_path / folder)}))
    assert said.startswith(f"{tmp_path}/{folder}")
    assert said.endswith(f": cannot be {message}; name another folder with data.cache_dir")
    assert not list(Path(data.cache_dir).glob("*"))


def test_a_bad_source_leaves_nothing(data, tmp_path):
    (tmp_path / "test00.txt").write_bytes(b"\xff")
    assert wrong(data).startswith(f"data.files: {tmp_path}/test00.txt is not UTF-8")
    assert not list(Path(data.cache_dir).glob("*"))


def test_an_intact_cache_that_cannot_be_written_works(data, monkeypatch):
    opened(data)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    for name in ("pathlib.Path.mkdir", "pathlib.Path.unlink", "os.replace", "os.rename"):
        monkeypatch.setattr(name, refuse)  # the tests may run as root
    assert contents(opened(data)) == list(TEXTS.values())


def test_a_cache_that_cannot_be_read_is_reported(data):
    opened(data)
    about = cached_files(data) / "corpus.json"
    about.unlink()
    about.mkdir()
    assert wrong(data).startswith(f"{about}: cannot be read (Is a directory); name another folder")


def test_the_name_depends_on_every_field_that_changes_the_tokens(tmp_path):
    (tmp_path / "a").write_text("{}")
    data, hub = JsonLinesData(files=[str(tmp_path / "a")]), HubData(id="a/b")
    own = {"column": "body", "test_fraction": 0.2, "validation_fraction": 0.2, "split_bytes": 2048}
    own |= {"split_special_tokens": False, "eos": START_TOKEN}
    of_hub = dict.fromkeys(("id", "subset", "revision", "column"), "x") | {"max_documents": 3}
    changed = [data, hub]
    changed += [data.model_copy(update={key: value}) for key, value in own.items()]
    changed += [hub.model_copy(update={key: value}) for key, value in of_hub.items()]
    names = {cache_folder(d, "bytes").name for d in changed} | {cache_folder(data, "other").name}
    names.add(cache_folder(data, "bytes", "test").name)
    assert len(names) == len(changed) + 2
    mix = (MIXED_TASKS["passkey"](share=0.1),)
    for same in ({"streaming": True}, {"mix": mix}, {"cache_dir": "~/x"}):  # the same documents
        folder = cache_folder(hub.model_copy(update=same), "bytes")
        assert folder.name == cache_folder(hub, "bytes").name
        assert "~" not in str(folder)
