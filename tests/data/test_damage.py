"""Token caches that are damaged, unreadable, or changed while they are in use."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rope_jax.config.data import TextData
from rope_jax.data.corpora import row_batches
from rope_jax.data.manifest import NewFolder, creating_folder, read_manifest
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


def tokens(*ids):
    return np.array(ids, "<u2").tobytes()


def offsets(*starts):
    return np.array(starts, "<i8").tobytes()


def contents(corpus):
    return [
        [bytes(split.document(i)[1:].astype(np.uint8)).decode() for i in range(len(split))]
        for split in (corpus.train, corpus.validation, corpus.test)
    ]


def cached_files(data):
    (folder,) = Path(data.cache_dir).iterdir()
    return folder


def rewrite(path, change):
    """Replace a file: changing one that is mapped would change what its reader sees."""
    data = bytearray(path.read_bytes())
    path.unlink()
    path.write_bytes(change(data))


def flip(data):
    data[len(data) // 2] ^= 4
    return data


@pytest.mark.parametrize("name", ["manifest.json", "train.tokens", "test.starts", "test.ids.json"])
@pytest.mark.parametrize(
    "damage",
    [
        None,
        lambda data: data[:-1],
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
    (line,) = said
    assert line.startswith(f"{folder}: {name} is ")
    assert line.endswith("; the tokens are written again")
    open_corpus(data, ByteTokenizer(), said.append)
    assert len(said) == 1


def seal(folder, changes):
    """Change files of a corpus and give them a manifest with the right checksums."""
    content = read_manifest(folder)
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "manifest.json"}
    shutil.rmtree(folder)
    with creating_folder(folder) as new:
        new.content |= content
        for name, raw in (files | changes).items():
            with new.create(name) as file:
                file.write(raw)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test.tokens": tokens(256, 9, 9, 9, 256, 257)}, "test.tokens holds tokens outside"),
        ({"test.tokens": b"odd"}, "the files are not those of a corpus"),
        ({"test.starts": offsets(0, 6)}, "test.starts does not fit"),
        ({"test.starts": offsets(1, 4, 6)}, "test.starts does not fit"),
        ({"test.starts": offsets(0, 4, 7)}, "test.starts does not fit"),
        ({"test.starts": b""}, "test.starts does not fit"),
        ({"train.starts": offsets(0, 13, 12, 20)}, "train.starts does not hold where"),
        ({"train.starts": offsets(0, 11, 13, 20)}, "train.starts does not hold where"),
        ({"test.ids.json": b"5"}, "the files are not those of a corpus"),
        ({"test.ids.json": b"[]"}, "test.starts does not fit"),
    ],
)
def test_files_that_are_no_corpus_are_rewritten(data, changes, message):
    said = []
    open_corpus(data, ByteTokenizer())
    folder = cached_files(data)
    seal(folder, changes)
    assert contents(open_corpus(data, ByteTokenizer(), said.append)) == list(TEXTS.values())
    (line,) = said
    assert line.startswith(f"{folder}: {message}")


def test_the_name_of_a_damaged_folder_is_printable(data):
    said = []
    data = data.model_copy(update={"cache_dir": data.cache_dir + "\n\x1b"})
    open_corpus(data, ByteTokenizer())
    rewrite(cached_files(data) / "test.tokens", flip)
    open_corpus(data, ByteTokenizer(), said.append)
    assert r"tokens\n\x1b/" in said[0]


def test_a_token_outside_the_vocabulary_is_not_written(data, monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "encode", lambda *_: np.array([7, 65536 + 7], np.uint32))
    message = "^data: the tokenizer gives .*train0 tokens from 7 to 65543, outside its vocabulary"
    with pytest.raises(UserError, match=message):
        open_corpus(data, ByteTokenizer())
    assert not Path(data.cache_dir).exists()


def test_what_is_written_is_read_back(data, monkeypatch):
    def losing(self, name):
        (self.path / "test.tokens").write_bytes(b"")
        really_write(self, name)

    really_write = NewFolder.write_manifest
    monkeypatch.setattr(NewFolder, "write_manifest", losing)
    message = "^data.cache_dir: .* was written just now, and test.tokens is damaged: 0 bytes"
    with pytest.raises(UserError, match=message):
        open_corpus(data, ByteTokenizer())


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


@pytest.mark.parametrize("name", ["manifest.json", "train.tokens", "test.starts"])
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
        "data.cache_dir: name a readable folder; tokens cannot be read (Permission denied) from "
        f"{cached_files(data) / name}"
    )
    assert {path: path.read_bytes() for path in cached_files(data).iterdir()} == before


def test_a_path_that_is_too_long_is_reported(data, tmp_path):
    data = data.model_copy(update={"cache_dir": str(tmp_path / "/".join(["n" * 250] * 20))})
    with pytest.raises(
        UserError, match=r"^data\.cache_dir: .* read \(File name too long\) from .*nnn"
    ):
        open_corpus(data, ByteTokenizer())


def test_a_cache_that_is_removed_while_it_is_written_is_reported(data, monkeypatch):
    def removing(dataset):
        shutil.rmtree(data.cache_dir)
        return row_batches(dataset)

    monkeypatch.setattr("rope_jax.data.storage.row_batches", removing)
    with pytest.raises(
        UserError, match=r"^data\.cache_dir: cannot write tokens to .*tokens \("
    ) as e:
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
    (folder / "manifest.json").write_bytes(b"")
    (folder / "train.tokens").unlink()
    again = in_three_processes()
    assert {found for found, _ in again} == {fingerprint}
    assert max(said for _, said in again) == "1"
    assert cached_files(data) == folder
    assert contents(open_corpus(data, ByteTokenizer(), pytest.fail)) == list(TEXTS.values())
