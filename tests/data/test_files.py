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
from pyarrow import parquet

from rope_jax.config.data import JsonLinesData, ParquetData, TextData
from rope_jax.data.cache import cache_folder
from rope_jax.data.files import matching_files, read_documents
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from tests.data.test_corpora import json_lines, whole

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pyarrow.Codec("zstd").compress(raw, asbytes=True),
}
ODD_NAMES = {
    b"[plain].txt": "[plain].txt",
    b"\xff.txt": r"\udcff.txt",
    b"line\nbreak.txt": r"line\nbreak.txt",
    b"\x1b[31mred\t.txt": r"\x1b[31mred\t.txt",
    "é 日本.txt".encode(): "é 日本.txt",
}


def test_file_names_may_be_any_bytes(tmp_path):
    for name in ODD_NAMES:
        (tmp_path / os.fsdecode(name)).write_bytes(b"the text of " + name.replace(b"\xff", b"ff"))
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


def damaged(raw, seed):
    """Return bytes with a few random changes: flips, a cut, zeros, a repeated or removed part."""
    random, data = Random(seed), bytearray(raw)
    for _ in range(random.choice([1, 1, 3])):
        at, size = random.randrange(len(data)), random.randrange(1, 40)
        match random.randrange(5):
            case 0:
                data[at] ^= 1 << random.randrange(8)
            case 1:
                del data[at + 1 :]
            case 2:
                data[at : at + size] = bytes(len(data[at : at + size]))
            case 3:
                data[at:at] = data[at : at + size]
            case _ if len(data) > size + 1:
                del data[at : at + size]
        data = data or bytearray(b"x")
    return bytes(data)


@pytest.mark.parametrize("kind", ["text", "jsonl", "none", "snappy", *COMPRESS])
def test_random_damage_gives_a_corpus_or_one_line(tmp_path, kind):
    texts = ["naïve 日本", 'a "quoted" text', "long " * 300, "x"]
    path = tmp_path / f"file{kind if kind in COMPRESS else ''}"
    schema = {"text": TextData, "none": ParquetData, "snappy": ParquetData}.get(kind, JsonLinesData)
    if schema is ParquetData:
        parquet.write_table(pyarrow.table({"text": texts}), path, compression=kind)
    else:
        json_lines(path, texts)
        path.write_bytes(COMPRESS.get(kind, bytes)(path.read_bytes()))
    data = schema(**whole(files=[str(path)]))
    raw = path.read_bytes()
    refused = []
    for seed in range(60):
        path.write_bytes(damaged(raw, seed))
        try:
            for row in read_documents([path], data, {}):
                row.text.encode()
                assert row.document.isprintable()
        except UserError as error:
            refused.append(str(error))
    assert refused
    assert all(line.startswith(("data.files: ", "data.column: ")) for line in refused)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read_exactly_and_damage_is_explained(tmp_path, suffix):
    compress = COMPRESS[suffix]
    texts = ["naïve\r\n日本", "\ufeffx", "long " * 50_000]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt{suffix}").write_bytes(compress(text.encode()))
    data = TextData(**whole(files=[f"{tmp_path}/*"]))
    assert list(read_documents(matching_files(data)["train"], data, {})) == [
        (f"{tmp_path}/{n}.txt{suffix}", text) for n, text in enumerate(texts)
    ]
    path = tmp_path / f"b.jsonl{suffix.upper()}"  # of two parts, one after the other
    raw = b'{"text": "one"}\n{"text": "two"}\n'
    path.write_bytes(compress(raw[:9]) + compress(raw[9:]))
    lines = JsonLinesData(files=[str(path)])
    assert list(read_documents([path], lines, {})) == [(f"{path}:1", "one"), (f"{path}:2", "two")]
    raw, path = Random(0).randbytes(9_000).hex().encode(), tmp_path / f"a.txt{suffix}"
    for content in (compress(raw)[:-4000], b"plain text", compress(raw)[:100] + bytes(99)):
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            list(read_documents([path], data, {}))
        says = str(caught.value)
        assert says.startswith(f"data.files: cannot read {path}: ")
        assert says.endswith(f"; it is damaged, or not what its name ({suffix}) says")


def test_archives_are_refused(tmp_path):
    for name in ("a.tar", "a.tar.gz", "a.zip"):
        with pytest.raises(UserError, match=rf"^data\.files: .*{name} is an archive; unpack it"):
            list(read_documents([tmp_path / name], TextData(files=["a"]), {}))
