"""Every source: exact text, the right splits, and one line for each kind of bad input."""

import json
import os

import pyarrow
import pytest
from pyarrow import parquet

from rope_jax.config.data import HubData, JsonLinesData, ParquetData, StdlibData, TextData
from rope_jax.data.corpora import document_batches, load_documents
from rope_jax.data.splits import Document
from rope_jax.errors import UserError

AWKWARD = [
    "",
    "no newline at the end",
    "dos\r\nmac\runix\n\n",
    "\ttabs and  spaces \n",
    "naïve 日本語 🙂 \u2028 \x00 \x85 \ufeff",
    "\ufeffa byte order mark",
    "2024-01-01T00:00:00",
    "17",
    "null",
    '{"text": "quoted \\" \\\\"}\n',
    "long " * 50_000,
]


def text_files(folder, texts, prefix="d"):
    for number, text in enumerate(texts):
        (folder / f"{prefix}{number:02}.txt").write_bytes(text.encode())
    return str(folder / f"{prefix}*.txt")


def json_lines(path, texts, column="text"):
    rows = (json.dumps({"at": "2024-01-01", column: text}, ensure_ascii=False) for text in texts)
    path.write_text("\n".join(rows), "utf-8", newline="")
    return str(path)


def parquet_file(path, texts, column="text"):
    parquet.write_table(pyarrow.table({"n": list(range(len(texts))), column: texts}), path)
    return str(path)


def rows_of(dataset):
    return [document for batch in document_batches(dataset) for document in batch]


def texts_of(dataset):
    return [text for _, text in rows_of(dataset)]


def whole(**fields):
    return {"validation_fraction": 0.0, "test_fraction": 0.0, **fields}


def test_text_is_read_exactly(tmp_path):
    data = TextData(**whole(files=[text_files(tmp_path, AWKWARD)]))
    splits = load_documents(data, tmp_path / "scratch").splits
    paths = [str(tmp_path / f"d{i:02}.txt") for i in range(len(AWKWARD))]
    assert rows_of(splits["train"]) == list(zip(paths, AWKWARD, strict=True))
    assert rows_of(splits["validation"]) == rows_of(splits["test"]) == []


def test_json_lines_are_read_exactly(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", AWKWARD, column="body")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"body": "x"}\r\n\r\n  {"body": "\\u00e9"}\n')
    data = JsonLinesData(**whole(files=[path, str(tmp_path / "b.jsonl")], column="body"))
    rows = rows_of(load_documents(data, tmp_path / "scratch").splits["train"])
    assert [text for _, text in rows] == [*AWKWARD, "x", "é"]
    assert [d for d, _ in rows][-2:] == [f"{tmp_path}/b.jsonl:1", f"{tmp_path}/b.jsonl:3"]


def test_parquet_is_read_exactly(tmp_path):
    texts = AWKWARD + [str(i) for i in range(300)]  # more rows than are read at once
    data = ParquetData(**whole(files=[parquet_file(tmp_path / "a.parquet", texts)]))
    rows = rows_of(load_documents(data, tmp_path / "scratch").splits["train"])
    assert rows == [(f"{tmp_path}/a.parquet:{i}", text) for i, text in enumerate(texts)]


def test_stdlib_has_three_splits_each_with_the_cap(tmp_path, monkeypatch):
    for number in range(30):
        (tmp_path / f"m{number}.py").write_bytes(b"# \r\n" + f"name{number} ".encode() * 20)
    monkeypatch.setattr("rope_jax.data.corpora.stdlib_root", lambda: tmp_path)
    documents = load_documents(StdlibData(), tmp_path)
    texts = {d: t for split in documents.splits.values() for d, t in rows_of(split)}
    assert texts == {p.name: p.read_bytes().decode() for p in tmp_path.glob("*.py")}
    assert len(documents.notes) == 3
    for only, sizes in ((None, [1, 1, 1]), ("test", [0, 0, 1])):
        splits = load_documents(StdlibData(max_documents=1), tmp_path, only).splits
        assert [len(rows_of(split)) for split in splits.values()] == sizes


def test_given_splits_are_kept_and_missing_ones_come_from_train(tmp_path):
    files = {
        "train": [text_files(tmp_path, [f"train {i}" for i in range(40)], "t")],
        "validation": [text_files(tmp_path, ["one", "two"], "v")],
    }
    data = TextData(files=files, validation_fraction=0.5, test_fraction=0.2)
    splits = load_documents(data, tmp_path / "scratch").splits
    assert list(splits) == ["train", "validation", "test"]
    assert texts_of(splits["validation"]) == ["one", "two"]
    train, test = texts_of(splits["train"]), texts_of(splits["test"])
    assert sorted(train + test) == sorted(f"train {i}" for i in range(40))
    assert 2 <= len(test) <= 16


def test_a_document_keeps_its_split_wherever_it_is(tmp_path):
    texts = [f"text {i}" for i in range(100)]
    first = ParquetData(files=[parquet_file(tmp_path / "a.parquet", texts)])
    second = JsonLinesData(files=[json_lines(tmp_path / "b.jsonl", ["new", *reversed(texts)])])
    a, b = (load_documents(d, tmp_path / d.type).splits for d in (first, second))
    for name in ("validation", "test"):
        assert texts_of(a[name])
        assert set(texts_of(a[name])) == set(texts_of(b[name])) - {"new"}


def test_long_texts_are_read_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr("rope_jax.data.corpora._BATCH_CHARACTERS", 40)
    documents = [Document(str(n), "x" * n) for n in (30, 5, 0, 100, 20, 20)]
    batches = list(document_batches(lambda: iter(documents)))
    assert [len(batch) for batch in batches] == [4, 2]
    assert [document for batch in batches for document in batch] == documents


# The hub


def fake_hub(monkeypatch, found, folder=None, **fields):
    """Serve a data set's splits; from Parquet files in `folder`, by the real loader, if given."""
    import datasets

    real = datasets.load_dataset

    def load_dataset(path, name=None, *, revision=None, streaming=False):
        assert (path, name, revision) == ("someone/books", "small", "v1")
        if isinstance(found, Exception):
            raise found
        if folder is None:
            return datasets.DatasetDict(
                {split: datasets.Dataset.from_dict(rows) for split, rows in found.items()}
            )
        files = {split: str(folder / f"{split}.parquet") for split in found}
        for split, rows in found.items():
            parquet.write_table(pyarrow.table(rows), files[split], row_group_size=3)
        cache = str(folder / "cache")
        return real("parquet", data_files=files, streaming=streaming, cache_dir=cache)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    given = {"id": "someone/books", "subset": "small", "revision": "v1", "column": "book"}
    return HubData(**given | fields)


def fake_stream(monkeypatch, rows, **fields):
    import datasets

    found = datasets.IterableDatasetDict(test=datasets.IterableDataset.from_generator(rows))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: found)
    return HubData(id="a/b", streaming=True, **fields)


def test_hub_splits_are_kept_and_a_missing_one_comes_from_train(tmp_path, monkeypatch):
    found = {
        "test": {"text": ["t\r\n"], "year": [1]},
        "train": {"text": [f"b{i}" for i in range(30)], "year": list(range(30))},
        "unlabelled": {"text": ["u"], "year": [1]},
    }
    splits = load_documents(fake_hub(monkeypatch, found, column="text"), tmp_path).splits
    assert list(splits) == ["train", "validation", "test"]
    assert rows_of(splits["test"]) == [("test:0", "t\r\n")]
    rest = rows_of(splits["train"]) + rows_of(splits["validation"])
    assert sorted(rest) == sorted((f"train:{i}", f"b{i}") for i in range(30))


BOOKS = [f"book {i}\r\n" + "é" * i for i in range(8)]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_long_document_set_with_only_a_test_split(tmp_path, monkeypatch, streaming):
    # as of the tokenized test sets that YaRN is evaluated on: texts, token ids, their number
    rows = {"book": BOOKS, "input_ids": [[1, 2]] * 8, "tokenized_len": [2] * 8}
    data = fake_hub(monkeypatch, {"test": rows}, tmp_path, streaming=streaming)
    expected = [(f"test:{i}", text) for i, text in enumerate(BOOKS)]
    for only in (None, "test"):
        splits = load_documents(data, tmp_path / f"{only}", only).splits
        assert rows_of(splits["test"]) == expected
        assert rows_of(splits["train"]) == rows_of(splits["validation"]) == []
    splits = load_documents(data.model_copy(update={"max_documents": 5}), tmp_path).splits
    assert rows_of(splits["test"]) == expected[:5]
    ids = data.model_copy(update={"column": "input_ids"})
    says = "data.column: 'input_ids' of someone/books, test:0 holds token ids, not text; name a"
    assert_message(ids, tmp_path, says)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_with_only_a_train_split(tmp_path, monkeypatch, streaming):
    data = fake_hub(monkeypatch, {"train": {"book": BOOKS}}, tmp_path, streaming=streaming)
    expected = [(f"train:{i}", text) for i, text in enumerate(BOOKS)]
    found = load_documents(data, tmp_path / "whole", "test")
    assert rows_of(found.splits["test"]) == expected  # nothing is trained on the rest
    assert found.notes == ["test: all documents of the source"]
    # for training, the same documents are split off whether they are streamed or not
    splits = load_documents(data.model_copy(update={"max_documents": 7}), tmp_path / "x").splits
    assert sorted(row for split in splits.values() for row in rows_of(split)) == expected[:7]
    assert [name for name, text in rows_of(splits["test"])] == ["train:1"]


def test_streaming_reads_no_more_documents_than_are_used(tmp_path, monkeypatch):
    read = []

    def rows():
        for number in range(10**6):
            read.append(number)
            yield {"text": f"b{number}"}

    data = fake_stream(monkeypatch, rows, max_documents=40)
    documents = load_documents(data, tmp_path, "test").splits["test"]
    assert read == []
    batches = document_batches(documents)
    next(batches)
    assert len(read) == 16  # tokens can be written while the rest is still to be read
    assert [d for batch in batches for d, _ in batch] == [f"test:{i}" for i in range(16, 40)]
    assert len(read) <= 41


def test_a_list_of_files_may_be_read_as_one_split_with_a_cap(tmp_path):
    data = TextData(files=[text_files(tmp_path, BOOKS)], max_documents=3)
    splits = load_documents(data, tmp_path / "scratch", "validation").splits
    assert texts_of(splits["validation"]) == BOOKS[:3]
    assert rows_of(splits["train"]) == rows_of(splits["test"]) == []


WITH_NULLS = [None, "a", "b", None, "c", "d"]
SKIPPED = "skipped 2 records whose text is null, the first at "


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_nulls_among_the_texts_of_a_file_are_skipped_and_counted(tmp_path, kind):
    write, schema = (json_lines, JsonLinesData) if kind == "jsonl" else (parquet_file, ParquetData)
    good, path = write(tmp_path / "g", ["x"]), write(tmp_path / "n", WITH_NULLS)
    data = schema(**whole(files=[good, path]), max_documents=4)
    found = load_documents(data, tmp_path / "some")
    first = kind == "jsonl"
    assert rows_of(found.splits["train"]) == [
        (f"{good}:{0 + first}", "x"),
        *((f"{path}:{row + first}", WITH_NULLS[row]) for row in (1, 2, 4)),
    ]
    assert found.notes == [f"{SKIPPED}{path}:{0 + first}"]
    # a file without any text is wrong
    none = write(tmp_path / "none", [None, None])
    says = f"data.column: 'text' of {none} is null in all 2 records; name a text column"
    assert_message(schema(files=[good, none]), tmp_path, says)


@pytest.mark.parametrize("streaming", [False, True])
def test_nulls_among_the_texts_of_the_hub_are_skipped_and_counted(tmp_path, monkeypatch, streaming):
    rows = {"test": {"book": WITH_NULLS}, "train": {"book": ["x", "y"]}}
    data = fake_hub(monkeypatch, rows, tmp_path, streaming=streaming)
    data = data.model_copy(update=whole(max_documents=3))
    found = load_documents(data, tmp_path / "scratch")
    for _ in range(2):  # a stream is read again, and counted once
        assert rows_of(found.splits["test"]) == [("test:1", "a"), ("test:2", "b"), ("test:4", "c")]
        assert rows_of(found.splits["train"]) == [("train:0", "x"), ("train:1", "y")]
        assert found.notes == [SKIPPED + "test:0"]


# Bad input


def assert_message(data, folder, start, only=None):
    with pytest.raises(UserError) as caught:
        [*map(rows_of, load_documents(data, folder / "scratch", only).splits.values())]
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


NULL = pyarrow.array([None], pyarrow.string())


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (ValueError("Config\nis missing"), "data.id: cannot load someone/books: Config is missing"),
        (
            {"train": {"text": ["b"]}},
            "data.column: someone/books, train:0 has no 'book'; its columns: text",
        ),
        (
            {"train": {"book": ["a"]}, "test": {"book": NULL}},
            "data.column: 'book' of the test split of someone/books is null in its only record; na",
        ),
        (
            {"train": {"book": ["a"]}, "test": {"book": []}},
            "data.id: the test split of someone/books has no documents",
        ),
    ],
)
def test_bad_hub_data_is_explained(tmp_path, monkeypatch, found, message):
    assert_message(fake_hub(monkeypatch, found), tmp_path, message)


def test_a_stream_that_breaks_off_and_an_unreachable_hub_are_reported(tmp_path, monkeypatch):
    def broken():
        yield {"text": "a"}
        raise ConnectionError("the connection\nbroke off")

    unreachable = "data.id: cannot load someone/books: Couldn't reach"
    assert_message(HubData(id="someone/books"), tmp_path, unreachable)
    data = fake_stream(monkeypatch, broken)
    assert_message(data, tmp_path, "data.id: cannot read a/b: the connection broke off")


def test_a_hub_id_must_be_owner_and_name_and_no_folder(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("json", "./here", "a/b/c", "hf://datasets/a/b", "a/b"):
        says = f"data.id: {name!r} is not the id (owner/name)"
        assert_message(HubData(id=name), tmp_path, says)


def test_the_split_to_read_has_to_be_there(tmp_path, monkeypatch):
    data = fake_hub(monkeypatch, {"train": {"book": BOOKS}, "validation": {"book": BOOKS}})
    says = "data.id: there is no split test, only train, validation"
    assert_message(data, tmp_path, says, "test")
    files = {name: [text_files(tmp_path, ["a"], name)] for name in ("train", "test")}
    says = "data.files: there is no split validation, only train, test"
    assert_message(TextData(files=files), tmp_path, says, "validation")


LINE = '{"text": "fine"}\n'


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (TextData, b"ab\xe9", "data.files: {} is not UTF-8 (byte 2); save it as UTF-8"),
        (JsonLinesData, LINE + "{oops", "data.files: {}:2 is not JSON ("),
        (JsonLinesData, LINE.encode() + b'{"text": "\xe9"}', "data.files: {}:2 is not UTF-8"),
        (JsonLinesData, '["text"]', "data.files: {}:1 is not a JSON object"),
        (JsonLinesData, '{"a": 1, "b": 2}', "data.column: {}:1 has no 'text'; its columns: a, b"),
        (JsonLinesData, '{"text": 5}', "data.column: 'text' of {}:1 is of type int, not text"),
        (JsonLinesData, '{"text": "\\ud800"}', "data.column: 'text' of {}:1 has a lone surrogate"),
        (JsonLinesData, "\n\n", "data.files: no documents in {}"),
        (ParquetData, b"PAR1 no", "data.files: {} is not readable as Parquet: "),
    ],
)
def test_bad_files_are_explained(tmp_path, kind, content, message):
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_message(kind(files=[str(path)]), tmp_path, message.format(path))


def test_bad_patterns_are_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pattern = text_files(tmp_path, "abcd")
    os.mkfifo("pipe[1]")
    special = "is not a regular file; copy its text to one"
    for files, message in (
        (["no/*.txt"], f"data.files: no file matches no/*.txt in {tmp_path}"),
        (["."], "data.files: . is a folder; give a pattern such"),
        (["pipe[1]"], f"data.files: pipe[1] {special}"),
        (["/dev/zero"], f"data.files: /dev/zero {special}"),
        (["pipe*"], "data.files: no file matches pipe*"),  # which takes only regular files
        ({}, "data.files: there is no split train, validat"),
        ({"train": []}, "data.files: train has no files"),
        (
            {"train": [pattern], "test": [str(tmp_path / "d01.txt")]},
            f"data.files: {tmp_path}/d01.txt is in both train and test; name it in one",
        ),
    ):
        assert_message(TextData(files=files), tmp_path, message)
    few = TextData(files=[pattern], test_fraction=0.98, validation_fraction=0.01)
    assert_message(few, tmp_path, "data: too few documents (4 distinct): none are left to train on")
