"""Local files: which ones are read, under what ids, and what damage to them does."""

import json
import os
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


def json_lines(path, texts):
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))


def parquet_file(path, texts):
    parquet.write_table(pyarrow.table({"text": texts}), path)


def whole(**fields):
    return {"validation_fraction": 0.0, "test_fraction": 0.0, **fields}


ODD_NAMES = {
    b"plain.txt": "plain.txt",
    b"\xff.txt": r"\udcff.txt",
    rb"\udcff.txt": r"\\udcff.txt",
    b"line\nbreak.txt": r"line\nbreak.txt",
    rb"line\nbreak.txt": r"line\\nbreak.txt",
    b"\x1b[31mred\t.txt": r"\x1b[31mred\t.txt",
    "é 日本.txt".encode(): "é 日本.txt",
}


def test_file_names_may_be_any_bytes(tmp_path):
    for name in ODD_NAMES:
        (tmp_path / os.fsdecode(name)).write_bytes(b"the text of " + name.replace(b"\xff", b"ff"))
    data = TextData(**whole(files=[f"{tmp_path}/*"]), cache_dir=str(tmp_path / "cache"))
    corpus = open_corpus(data, ByteTokenizer())
    ids = [name.removeprefix(f"{tmp_path}/") for name in corpus.train.ids]
    assert sorted(ids) == sorted(ODD_NAMES.values())
    assert all(name.isprintable() and name.encode() for name in ids)


@pytest.mark.parametrize(
    ("schema", "write"), [(JsonLinesData, json_lines), (ParquetData, parquet_file)]
)
def test_rows_of_files_with_odd_names_have_printable_ids(tmp_path, schema, write):
    write(tmp_path / "made", ["text"])
    (tmp_path / "made").rename(tmp_path / "a\udcff\n")
    data = schema(**whole(files=[f"{tmp_path}/a*"]))
    (row,) = read_documents(matching_files(data).files["train"], data)
    number = 1 if schema is JsonLinesData else 0
    assert row == {"document": rf"{tmp_path}/a\udcff\n:{number}", "text": "text"}


def test_a_file_listed_twice_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in "abc":
        (texts / name).write_text(name)
    (tmp_path / "link").symlink_to(texts / "a")
    (tmp_path / "hard").hardlink_to(texts / "b")
    (tmp_path / "folder").symlink_to(texts)
    others = ["./texts/a", str(texts / "*"), "link", "hard", "folder/*", "texts/../texts/c"]
    once = TextData(files=["texts/*"])
    for twice in ([*once.files, other] for other in others):
        assert matching_files(TextData(files=twice)) == matching_files(once)
        assert cache_folder(TextData(files=twice), "") == cache_folder(once, "")
        by_split = TextData(files={"train": twice})
        assert cache_folder(by_split, "") == cache_folder(
            TextData(files={"train": ["texts/*"]}), ""
        )
    for other in others:
        data = TextData(files={"train": ["texts/*"], "test": [other]})
        with pytest.raises(UserError, match="is in both train and test; name it in one"):
            matching_files(data)
    more = TextData(files=["texts/a", "texts/*", "texts/c"])
    assert matching_files(more).files == {"train": [Path("texts") / name for name in "abc"]}
    assert matching_files(more).patterns == {"train": ["texts/a", "texts/*"]}


def test_a_file_that_disappears_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("rope_jax.data.files._matching", lambda _: [tmp_path / "gone"])
    with pytest.raises(UserError, match=r"^data\.files: cannot read .*gone: No such file"):
        matching_files(TextData(files=["gone"]))


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


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet", "snappy"])
def test_random_damage_gives_a_corpus_or_one_line(tmp_path, kind):
    texts = ["naïve 日本", 'a "quoted" text', "long " * 300, "x"]
    if kind == "text":
        (tmp_path / "file").write_text("\n".join(texts))
        data = TextData(**whole(files=[str(tmp_path / "file")]))
    elif kind == "jsonl":
        json_lines(tmp_path / "file", texts)
        data = JsonLinesData(**whole(files=[str(tmp_path / "file")]))
    else:
        table = pyarrow.table({"text": texts, "n": list(range(len(texts)))})
        compression = "snappy" if kind == "snappy" else "none"
        parquet.write_table(table, tmp_path / "file", compression=compression)
        data = ParquetData(**whole(files=[str(tmp_path / "file")]))
    raw = (tmp_path / "file").read_bytes()
    refused = []
    for seed in range(100):
        (tmp_path / "file").write_bytes(damaged(raw, seed))
        try:
            for row in read_documents([tmp_path / "file"], data):
                row["text"].encode()
                assert row["document"].isprintable()
        except UserError as error:
            refused.append(str(error))
    assert refused
    assert all(line.startswith(("data.files: ", "data.column: ")) for line in refused)
    assert all(line.isprintable() for line in refused)


def test_the_checksums_in_a_parquet_file_are_verified(tmp_path):
    path, table = tmp_path / "file", pyarrow.table({"text": ["some text"] * 9})
    parquet.write_table(
        table, path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    between = b"some text\x09\0\0\0some"  # the first text is that of the statistics
    path.write_bytes(path.read_bytes().replace(between, between.swapcase(), 1))
    with pytest.raises(UserError, match=r"^data\.files: cannot read .*file: .*CRC"):
        list(read_documents([path], ParquetData(**whole(files=[str(path)]))))
