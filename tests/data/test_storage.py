"""A corpus as tokens: exact, cached, written again if damaged, and cleaned up after."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rope_jax.config.data import HubData, JsonLinesData, TextData
from rope_jax.data.cache import cache_folder
from rope_jax.data.corpora import document_batches
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
        UserError,
        match=rf"^data\.cache_dir: .* \(Not a directory\): {tmp_path}/file/tokens",
    ):
        open_corpus(data, ByteTokenizer())


def test_a_full_disk_names_the_key(data, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rope_jax.data.storage.load_documents", no_space)
    message = (
        r"^data\.cache_dir: .*tokens cannot be written \(No space left on device\): .*/tokens$"
    )
    with pytest.raises(UserError, match=message):
        open_corpus(data, ByteTokenizer())
    assert not Path(data.cache_dir).exists()


def test_a_bad_source_leaves_nothing_behind(data, tmp_path):
    (tmp_path / "test0").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"^data\.files: .*test0 is not UTF-8"):
        open_corpus(data, ByteTokenizer())
    assert not Path(data.cache_dir).exists()


def rewrite(path, change):
    """Replace a file: changing one that is mapped would change what its reader sees."""
    data = bytearray(path.read_bytes())
    path.unlink()
    path.write_bytes(change(data))


def flip(data):
    data[len(data) // 2] ^= 4
    return data


@pytest.mark.parametrize("name", ["SHA256SUMS", "corpus.json", "train.tokens", "test.starts"])
@pytest.mark.parametrize(
    "damage",
    [
        None,
        lambda data: data[: len(data) // 2],
        lambda data: bytes(len(data)),
        flip,
    ],
    ids=["removed", "shortened", "zeroed", "flipped"],
)
def test_damaged_files_are_rewritten_and_named(data, name, damage):
    said = []
    first = open_corpus(data, ByteTokenizer(), said.append)
    folder = cached_files(data)
    if damage is None:
        (folder / name).unlink()
    else:
        rewrite(folder / name, damage)
    again = open_corpus(data, ByteTokenizer(), said.append)
    assert contents(again) == contents(first) == list(TEXTS.values())
    assert again.fingerprint == first.fingerprint
    assert not list(Path(data.cache_dir).glob(".*"))
    if damage is None and name == "SHA256SUMS":  # there is no telling what was there
        assert not said
    else:
        (line,) = said
        assert line.startswith(f"{folder}/")
        assert name in line  # a changed checksum looks like a changed file
        assert line.endswith("; writing tokens again")
    open_corpus(data, ByteTokenizer(), pytest.fail)


def test_the_name_of_a_damaged_folder_is_printable(data):
    said = []
    data = data.model_copy(update={"cache_dir": data.cache_dir + "\udcff\n\x1b"})
    open_corpus(data, ByteTokenizer())
    rewrite(cached_files(data) / "test.tokens", flip)
    open_corpus(data, ByteTokenizer(), said.append)
    assert r"tokens\udcff\n\x1b/" in said[0]


def test_a_file_that_is_changed_while_it_is_mapped_is_refused(data):
    corpus = open_corpus(data, ByteTokenizer())
    path = cached_files(data) / "test.tokens"
    before, written = path.stat(), path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes(len(written)))  # all of them are in the vocabulary
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    message = rf"^data\.cache_dir: {path} was changed while it was being read \(its size or time"
    with pytest.raises(UserError, match=message):
        corpus.test.document(0)
    os.truncate(path, 8)
    with pytest.raises(UserError, match=message):
        corpus.test.document(0)
    path.write_bytes(b"\xff" * len(written))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match=r"read \(token 65535 is not in the vocabulary\); run"):
        corpus.test.document(0)
    assert contents(open_corpus(data, ByteTokenizer(), lambda _: None)) == list(TEXTS.values())


def test_a_file_that_is_replaced_or_deleted_while_it_is_mapped_can_be_read(data):
    corpus = open_corpus(data, ByteTokenizer())
    rewrite(cached_files(data) / "test.tokens", flip)
    assert contents(corpus) == list(TEXTS.values())
    assert contents(open_corpus(data, ByteTokenizer(), lambda _: None)) == list(TEXTS.values())
    shutil.rmtree(data.cache_dir)
    assert contents(corpus) == list(TEXTS.values())


def test_an_intact_cache_that_cannot_be_written_works(data, monkeypatch):
    open_corpus(data, ByteTokenizer())

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    for name in ("pathlib.Path.mkdir", "pathlib.Path.unlink", "os.replace", "os.rename"):
        monkeypatch.setattr(name, refuse)  # the tests may run as root
    assert contents(open_corpus(data, ByteTokenizer(), pytest.fail)) == list(TEXTS.values())


@pytest.mark.parametrize("name", ["SHA256SUMS", "train.tokens", "test.starts"])
def test_a_cache_that_cannot_be_read_is_reported_and_kept(data, name, monkeypatch):
    open_corpus(data, ByteTokenizer())
    before = {path: path.read_bytes() for path in cached_files(data).iterdir()}
    really_open, really_open_number = io.open, os.open

    def forbidding(really):
        def opened(path, *arguments, **settings):
            if Path(path).name == name:
                raise PermissionError(13, "Permission denied", str(path))
            return really(path, *arguments, **settings)

        return opened

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", forbidding(really_open))
        patch.setattr(os, "open", forbidding(really_open_number))
        with pytest.raises(UserError) as caught:
            open_corpus(data, ByteTokenizer(), pytest.fail)
    assert str(caught.value) == (
        "data.cache_dir: name another folder; tokens cannot be read (Permission denied): "
        f"{cached_files(data) / name}"
    )
    assert {path: path.read_bytes() for path in cached_files(data).iterdir()} == before


def test_a_path_that_is_too_long_is_reported(data, tmp_path):
    data = data.model_copy(update={"cache_dir": str(tmp_path / "/".join(["n" * 250] * 20))})
    with pytest.raises(UserError, match=r"^data\.cache_dir: .* read \(File name too long\): .*nnn"):
        open_corpus(data, ByteTokenizer())


def test_a_cache_that_is_removed_while_it_is_written_is_reported(data, monkeypatch):
    def removing(dataset):
        shutil.rmtree(data.cache_dir)
        return document_batches(dataset)

    monkeypatch.setattr("rope_jax.data.storage.document_batches", removing)
    with pytest.raises(UserError, match=r"^data\.cache_dir: .*; tokens cannot be written \(") as e:
        open_corpus(data, ByteTokenizer())
    assert "\n" not in str(e.value)
    assert not Path(data.cache_dir).exists()


OPEN = """
import sys
from rope_jax.config.data import TextData
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
said = []
corpus = open_corpus(TextData.model_validate_json(sys.argv[1]), ByteTokenizer(), said.append)
print(corpus.fingerprint, len(said))
"""


@pytest.mark.slow
def test_processes_that_write_or_repair_a_corpus_at_once_all_succeed(data):
    def in_three_processes():
        command = [sys.executable, "-c", OPEN, data.model_dump_json()]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        return [process.communicate()[0].split() for process in running]

    first = in_three_processes()
    folder = cached_files(data)
    fingerprint = first[0][0]
    assert first == [[fingerprint, "0"]] * 3
    (folder / "SHA256SUMS").write_bytes(b"")
    (folder / "train.tokens").unlink()
    again = in_three_processes()
    assert {found for found, _ in again} == {fingerprint}
    assert max(said for _, said in again) == "1"
    assert cached_files(data) == folder
    assert contents(open_corpus(data, ByteTokenizer(), pytest.fail)) == list(TEXTS.values())


def test_the_name_depends_on_every_field_but_cache_dir(tmp_path):
    (tmp_path / "a").write_text("{}")
    data = JsonLinesData(files=[str(tmp_path / "a")])
    hub = HubData(id="a/b")
    changed = [
        data,
        data.model_copy(update={"column": "body"}),
        data.model_copy(update={"test_fraction": 0.2}),
        data.model_copy(update={"validation_fraction": 0.2}),
        hub,
        *(hub.model_copy(update={k: "x"}) for k in ("id", "subset", "revision", "column")),
        hub.model_copy(update={"max_documents": 3}),
    ]
    names = {cache_folder(d, "bytes").name for d in changed} | {cache_folder(data, "other").name}
    names.add(cache_folder(data, "bytes", "test").name)
    assert len(names) == len(changed) + 2
    streamed = hub.model_copy(update={"streaming": True})  # gives the same documents
    assert cache_folder(streamed, "bytes") == cache_folder(hub, "bytes")
    moved = cache_folder(data.model_copy(update={"cache_dir": "~/x"}), "bytes")
    assert moved.name == cache_folder(data, "bytes").name
    assert "~" not in str(moved)


def test_a_cache_that_has_no_path_is_reported(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home(*_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    with pytest.raises(UserError, match=r"^data\.cache_dir: there is no folder ~; name"):
        cache_folder(HubData(id="a/b"), "bytes")
