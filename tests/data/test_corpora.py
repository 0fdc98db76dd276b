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


def read(data, folder, only=None):
    """Return the documents of each split."""
    splits = load_documents(data, folder / "scratch", only).splits
    return {name: rows_of(split) for name, split in splits.items()}


def texts_of(rows):
    return [text for _, text in rows]


def whole(**fields):
    return {"validation_fraction": 0.0, "test_fraction": 0.0, **fields}


def test_text_is_read_exactly(tmp_path):
    splits = read(TextData(**whole(files=[text_files(tmp_path, AWKWARD)])), tmp_path)
    paths = [str(tmp_path / f"d{i:02}.txt") for i in range(len(AWKWARD))]
    expected = list(zip(paths, AWKWARD, strict=True))
    assert splits == {"train": expected, "validation": [], "test": []}


def test_json_lines_are_read_exactly(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", AWKWARD, column="body")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"body": "x"}\r\n\r\n  {"body": "\\u00e9"}\n')
    data = JsonLinesData(**whole(files=[path, str(tmp_path / "b.jsonl")], column="body"))
    rows = read(data, tmp_path)["train"]
    assert texts_of(rows) == [*AWKWARD, "x", "é"]
    assert [d for d, _ in rows][-2:] == [f"{tmp_path}/b.jsonl:1", f"{tmp_path}/b.jsonl:3"]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_objects_is_read_exactly(tmp_path, indent):
    rows = [{"id": number, "text": text} for number, text in enumerate(AWKWARD)]
    path = tmp_path / "a.json"
    path.write_text("\ufeff " + json.dumps([*rows, "a text"], indent=indent), "utf-8")
    found = read(JsonLinesData(**whole(files=[str(path)])), tmp_path)["train"]
    assert texts_of(found) == [*AWKWARD, "a text"]
    assert [d for d, _ in found] == [f"{path}:{number}" for number in range(len(AWKWARD) + 1)]


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image"}]},
    {"role": "assistant", "content": None},
]


@pytest.mark.parametrize("kind", [JsonLinesData, ParquetData])
def test_conversations_are_read_in_a_plain_form(tmp_path, kind):
    path = tmp_path / "chats"
    if kind is ParquetData:
        chat = [{"role": m["role"], "content": "Hi" if i else "Be brief."}
                for i, m in enumerate(CHAT[:2])]  # fmt: skip
        parquet.write_table(pyarrow.table({"messages": [chat, None]}), path)
    else:
        path.write_text(json.dumps({"messages": CHAT}))
    data = kind(**whole(files=[str(path)], column="messages"))
    (text,) = texts_of(read(data, tmp_path)["train"])
    assert text == "system: Be brief.\n\nuser: Hi" + "\n\nassistant: " * (kind is JsonLinesData)


def test_parquet_is_read_exactly(tmp_path):
    texts = AWKWARD + [str(i) for i in range(300)]  # more rows than are read at once
    data = ParquetData(**whole(files=[parquet_file(tmp_path / "a.parquet", texts)]))
    expected = [(f"{tmp_path}/a.parquet:{i}", text) for i, text in enumerate(texts)]
    assert read(data, tmp_path)["train"] == expected


def test_stdlib_has_three_splits_each_with_the_cap(tmp_path, monkeypatch):
    for number in range(30):
        (tmp_path / f"m{number}.py").write_bytes(b"# \r\n" + f"name{number} ".encode() * 20)
    monkeypatch.setattr("rope_jax.data.corpora.stdlib_root", lambda: tmp_path)
    texts = {d: t for rows in read(StdlibData(), tmp_path).values() for d, t in rows}
    assert texts == {p.name: p.read_bytes().decode() for p in tmp_path.glob("*.py")}
    for only, sizes in ((None, [1, 1, 1]), ("test", [0, 0, 1])):
        splits = read(StdlibData(max_documents=1), tmp_path, only)
        assert [len(rows) for rows in splits.values()] == sizes


def test_given_splits_are_kept_and_missing_ones_come_from_train(tmp_path):
    files = {
        "train": [text_files(tmp_path, [f"train {i}" for i in range(40)], "t")],
        "validation": [text_files(tmp_path, ["one", "two"], "v")],
    }
    splits = read(TextData(files=files, validation_fraction=0.5, test_fraction=0.2), tmp_path)
    assert list(splits) == ["train", "validation", "test"]
    assert texts_of(splits["validation"]) == ["one", "two"]
    together = texts_of(splits["train"] + splits["test"])
    assert sorted(together) == sorted(f"train {i}" for i in range(40))
    assert 2 <= len(splits["test"]) <= 16


def test_a_document_keeps_its_split_wherever_it_is(tmp_path):
    texts = [f"text {i}" for i in range(100)]
    first = ParquetData(files=[parquet_file(tmp_path / "a.parquet", texts)])
    second = JsonLinesData(files=[json_lines(tmp_path / "b.jsonl", ["new", *reversed(texts)])])
    a, b = (read(data, tmp_path) for data in (first, second))
    for name in ("validation", "test"):
        assert a[name]
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


BOOKS = [f"book {i}\r\n" + "é" * i for i in range(8)]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_long_document_set_with_only_a_test_split(tmp_path, monkeypatch, streaming):
    # as of the tokenized test sets that YaRN is evaluated on: texts, token ids, their number
    rows = {"book": BOOKS, "input_ids": [[1, 2]] * 8, "tokenized_len": [2] * 8}
    data = fake_hub(monkeypatch, {"test": rows}, tmp_path, streaming=streaming)
    expected = [(f"test:{i}", text) for i, text in enumerate(BOOKS)]
    for only in (None, "test"):
        assert read(data, tmp_path, only) == {"train": [], "validation": [], "test": expected}
    fewer = data.model_copy(update={"max_documents": 5})
    assert read(fewer, tmp_path)["test"] == expected[:5]
    ids = data.model_copy(update={"column": "input_ids"})
    says = "data.column: 'input_ids' of someone/books, test:0 is of type list, not text; name a"
    assert_message(ids, tmp_path, says)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_with_only_a_train_split(tmp_path, monkeypatch, streaming):
    data = fake_hub(monkeypatch, {"train": {"book": BOOKS}}, tmp_path, streaming=streaming)
    expected = [(f"train:{i}", text) for i, text in enumerate(BOOKS)]
    found = load_documents(data, tmp_path / "whole", "test")
    assert rows_of(found.splits["test"]) == expected  # nothing is trained on the rest
    assert found.notes == ["test: all documents of the source"]
    # for training, the same documents are split off whether they are streamed or not
    splits = read(data.model_copy(update={"max_documents": 7}), tmp_path)
    assert sorted(row for rows in splits.values() for row in rows) == expected[:7]
    assert [name for name, text in splits["test"]] == ["train:1"]


def test_streaming_reads_no_more_documents_than_are_used(tmp_path, monkeypatch):
    asked = []

    def rows():
        for number in range(10**6):
            asked.append(number)
            yield {"text": f"b{number}"}

    data = fake_stream(monkeypatch, rows, max_documents=40)
    documents = load_documents(data, tmp_path, "test").splits["test"]
    assert asked == []
    batches = document_batches(documents)
    next(batches)
    assert len(asked) == 16  # tokens can be written while the rest is still to be read
    assert [d for batch in batches for d, _ in batch] == [f"test:{i}" for i in range(16, 40)]
    assert len(asked) <= 41


WITH_NULLS = [None, "a", "b", None, "c", "d"]
SKIPPED = "skipped 2 records without text, the first at "


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_nulls_among_the_texts_of_a_file_are_skipped_and_counted(tmp_path, kind):
    write, schema = (json_lines, JsonLinesData) if kind == "jsonl" else (parquet_file, ParquetData)
    good, path = write(tmp_path / "g", ["x"]), write(tmp_path / "n", WITH_NULLS)
    found = load_documents(schema(**whole(files=[good, path]), max_documents=4), tmp_path / "some")
    first = int(kind == "jsonl")
    assert rows_of(found.splits["train"]) == [
        (f"{good}:{first}", "x"),
        *((f"{path}:{row + first}", WITH_NULLS[row]) for row in (1, 2, 4)),
    ]
    assert found.notes == [f"{SKIPPED}{path}:{first}"]
    # a file without any text is wrong
    none = write(tmp_path / "none", [None, None])
    says = f"data.column: 'text' of {none} has no text in all 2 records; name a text column"
    assert_message(schema(files=[good, none]), tmp_path, says)


@pytest.mark.parametrize("streaming", [False, True])
def test_nulls_among_the_texts_of_the_hub_are_skipped_and_counted(tmp_path, monkeypatch, streaming):
    rows = {"test": {"book": WITH_NULLS}, "train": {"book": ["x", "y"]}, "other": {"book": ["z"]}}
    data = fake_hub(monkeypatch, rows, tmp_path, streaming=streaming)
    found = load_documents(data.model_copy(update=whole(max_documents=3)), tmp_path / "scratch")
    for _ in range(2):  # a stream is read again, and counted once
        assert rows_of(found.splits["test"]) == [("test:1", "a"), ("test:2", "b"), ("test:4", "c")]
        assert rows_of(found.splits["train"]) == [("train:0", "x"), ("train:1", "y")]
        assert found.notes == [SKIPPED + "test:0"]


# Bad input, where tests/bad_input.yaml has no case


def assert_message(data, folder, start, only=None):
    with pytest.raises(UserError) as caught:
        read(data, folder, only)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


NULL = pyarrow.array([None], pyarrow.string())


@pytest.mark.parametrize(
    ("found", "only", "message"),
    [
        (ValueError("Config\nis missing"), None, "id: cannot load someone/books: Config is mis"),
        ({"train": {"text": ["b"]}}, None,
         "column: someone/books, train:0 has no 'book'; its columns: text"),
        ({"train": {"book": ["a"]}, "test": {"book": NULL}}, None,
         "column: 'book' of the test split of someone/books has no text in its only record"),
        ({"train": {"book": ["a"]}, "test": {"book": []}}, None,
         "id: the test split of someone/books has no documents"),
        ({"train": {"book": BOOKS}, "validation": {"book": BOOKS}}, "test",
         "id: there is no split test, only train, validation"),
    ],
)  # fmt: skip
def test_bad_hub_data_is_explained(tmp_path, monkeypatch, found, only, message):
    assert_message(fake_hub(monkeypatch, found), tmp_path, f"data.{message}", only)


def test_a_hub_that_cannot_be_read_is_reported(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("json", "./here", "a/b/c", "hf://datasets/a/b", "a/b"):  # the last is a folder
        says = f"data.id: {name!r} is not the id (owner/name)"
        assert_message(HubData(id=name), tmp_path, says)

    def broken():
        yield {"text": "a"}
        raise ConnectionError("the connection\nbroke off")

    data = fake_stream(monkeypatch, broken).model_copy(update={"id": "c/d"})
    assert_message(data, tmp_path, "data.id: cannot read c/d: the connection broke off")


def test_bad_patterns_are_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    two = {name: [text_files(tmp_path, "a", name)] for name in ("train", "test")}
    for files, only, message in (
        (["pipe*"], None, "no file matches pipe*"),  # which takes only regular files
        ({}, None, "there is no split train, validation or test, only none"),
        (two, "validation", "there is no split validation, only train, test"),
    ):
        assert_message(TextData(files=files), tmp_path, f"data.files: {message}", only)
