"""Local files: which ones are read, under what ids, and what damage to them does."""

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow
import pytest

from rope_jax.config.data import JsonLinesData, TextData
from rope_jax.data.cache import cache_folder
from rope_jax.data.files import Reader, matching_files, read_documents
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from tests.data.test_corpora import whole

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pyarrow.Codec("zstd").compress(raw, asbytes=True),
}
ODD_NAMES = {"[plain].txt": "[plain].txt", "\udcff.txt": r"\udcff.txt", "é 日\n.txt": r"é 日\n.txt"}


def test_file_names_may_be_any_bytes(tmp_path):
    for name in ODD_NAMES:
        (tmp_path / name).write_bytes(os.fsencode(name).replace(b"\xff", b"ff"))
    # the name of the first looks like a pattern, and is read once
    data = TextData(**whole(files=[f"{tmp_path}/[plain].txt", f"{tmp_path}/*"]))
    corpus = open_corpus(data, ByteTokenizer())
    ids = [name.removeprefix(f"{tmp_path}/") for name in corpus.train.ids]
    assert sorted(ids) == sorted(ODD_NAMES.values())


def test_a_file_listed_twice_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in "abc":
        (texts / name).write_text(name)
    (tmp_path / "link").symlink_to(texts / "a")
    (tmp_path / "folder").symlink_to(texts)
    once = TextData(files=["texts/*"])
    for other in ["./texts/a", str(texts / "*"), "link", "folder/*", "texts/../texts/c"]:
        twice = TextData(files=["texts/*", other])
        assert matching_files(twice) == matching_files(once)
        assert cache_folder(twice, "") == cache_folder(once, "")
        data = TextData(files={"train": ["texts/*"], "test": [other]})
        with pytest.raises(UserError, match="is in both train and test; name it in one"):
            matching_files(data)
    more = TextData(files=["texts/a", "texts/*", "texts/c"])
    assert matching_files(more) == {"train": [Path("texts") / name for name in "abc"]}


def documents(paths, data):
    return list(read_documents(paths, data, Reader(data)))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read_exactly_and_damage_is_explained(tmp_path, suffix):
    compress = COMPRESS[suffix]
    texts = ["naïve\r\n日本", "\ufeffx", "long " * 50_000]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt{suffix}").write_bytes(compress(text.encode()))
    data = TextData(**whole(files=[f"{tmp_path}/*"]))
    assert documents(matching_files(data)["train"], data) == [
        (f"{tmp_path}/{n}.txt{suffix}", text) for n, text in enumerate(texts)
    ]
    path = tmp_path / f"b.jsonl{suffix.upper()}"  # of two parts, one after the other
    raw = b'{"text": "one"}\n{"text": "two"}\n'
    path.write_bytes(compress(raw[:9]) + compress(raw[9:]))
    lines = JsonLinesData(files=[str(path)])
    assert documents([path], lines) == [
        (f"{path}:1", "one"),
        (f"{path}:2", "two"),
    ]
    raw, path = Random(0).randbytes(9_000).hex().encode(), tmp_path / f"a.txt{suffix}"
    for content in (compress(raw)[:-4000], b"plain text", compress(raw)[:100] + bytes(99)):
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            documents([path], data)
        says = str(caught.value)
        assert says.startswith(f"data.files: cannot read {path}: ")
        assert says.endswith(f"; it is damaged, or not what its name ({suffix}) says")


def test_archives_are_refused(tmp_path):
    for name in ("a.tar", "a.tar.gz", "a.zip"):
        with pytest.raises(UserError, match=rf"^data\.files: .*{name} is an archive; unpack it"):
            documents([tmp_path / name], TextData(files=["a"]))
