"""Runs whose tokenizer is not the bytes, and sweeps of texts that are not the run's own."""

import json
import math
import shutil

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer

from results.costs import costs_of
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.tokenizer import START_TOKEN
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import train_bpe
from rope_jax.errors import UserError
from rope_jax.protocols.base import make_streams
from rope_jax.protocols.same_tokens import SameTokens
from rope_jax.results.files import read_rows
from rope_jax.runs.directory import RunDirectory
from tests.sweeps.conftest import SMALL, Run, trained
from tests.sweeps.conftest import swept as swept_to

pytestmark = pytest.mark.usefixtures("blank_figures")

SWEEP = {"lengths": [8, 16], "scalings": ["trained"], "max_blocks": 2, "resamples": 10}


def texts(seed, count=12):
    rng = np.random.default_rng(seed)
    words = ["rope ", "turns ", "slow ", "fast ", "pair\n", "é "]
    return ["".join(rng.choice(words, 150)) for _ in range(count)]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> Run:
    tokenizer = {"type": "bpe", "vocab_size": 270}
    return trained(tmp_path_factory.mktemp("bpe"), texts=texts(0), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def without_bos(tmp_path_factory) -> Run:
    """A run with a tokenizer.json that has no document start, which is changed afterwards."""
    folder = tmp_path_factory.mktemp("file")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(train_bpe([texts(0)], 270)) | {"post_processor": None}))
    run = trained(
        folder,
        texts=texts(0),
        tokenizer={"type": "file", "path": str(path)},
        model=SMALL | {"vocab_size": 300},
        sweep={"lengths": [8, 16], "every_steps": 2},
    )
    path.write_text("changed")
    return run


def swept(run, **settings):
    """Sweep; return the rows of the results and what was printed."""
    folder, printed = swept_to(run, **SWEEP | settings)
    return read_rows(folder), printed


def same_tokens(streams):
    return SameTokens(streams, lengths=[8, 16], targets=4, max_blocks=2, stride=4, seed=0)


def test_a_run_keeps_its_tokenizer_and_reads_with_it(bpe):
    run, config = bpe
    tokenizer = run.open_tokenizer(config)
    assert run.tokenizer_file.read_text("utf-8") == tokenizer.json()
    corpus = open_corpus(config.data, tokenizer)
    assert run.recorded_corpus() == corpus.fingerprint
    rows, printed = swept(bpe)
    streams = make_streams(
        corpus.test.texts(), longest=16, max_documents=64, bos="document", bos_ids=(0,), seed=0
    )
    library = Tokenizer.from_str(tokenizer.json())
    for row in rows:
        assert row.bos == "document"
        windows = same_tokens(streams).windows(row.length)
        scored = [
            streams.tokens[document][start + row.length - 3 : start + row.length + 1]
            for document, start in zip(windows.document, windows.start, strict=True)
        ]
        # a character for each byte
        size = sum(len(library.id_to_token(int(token))) for window in scored for token in window)
        assert size > 1.5 * row.tokens
        assert row.bpb == pytest.approx(row.nll * row.tokens / size / math.log(2), rel=1e-12)
        assert row.bpb_low < row.bpb < row.bpb_high
        assert 0.5 < row.nll < math.log(270) + 0.5
    shown = f"bpe, 270 tokens; document start: {START_TOKEN} (token 0)"
    assert shown in printed
    (cost,) = costs_of(run)
    width, attention, mlp, norms = 16, 4 * 16 * 16, 3 * 16 * 24, 3 * 16
    ends = (1 if config.model.tie_word_embeddings else 2) * 270 * width
    assert cost.numbers == ends + attention + mlp + norms


def test_without_a_document_start_windows_begin_with_text(without_bos):
    run, config = without_bos
    tokenizer = run.open_tokenizer(config)  # from the run's copy
    assert (tokenizer.bos_ids, tokenizer.vocab_size) == ((), 270)
    rows, printed = swept(without_bos, name="plain")
    assert {row.bos for row in rows} == {"none"}
    assert "document start: none" in printed
    assert load(SweepConfig, run.evals / "plain" / "sweep.yaml").bos == "none"
    split = open_corpus(config.data, tokenizer).test
    streams = make_streams(
        split.texts(), longest=16, max_documents=64, bos="none", bos_ids=(), seed=0
    )
    windows = same_tokens(streams).windows(16)
    assert rows[-1].targets == streams.fingerprint(windows, 16)
    with pytest.raises(UserError, match=r"^bos: there is no document-start token; give bos_id, or"):
        swept(without_bos, bos="document")
    # training has swept itself, too
    metrics = run.metrics_file.read_text()
    assert "sweep/trained/nll_16" in metrics


def test_a_sweep_may_read_other_texts_without_those_of_the_run(bpe, tmp_path):
    run, config = bpe
    path = tmp_path / "books.parquet"
    parquet.write_table(pyarrow.table({"book": texts(7, 9), "year": list(range(9))}), path)
    data = {"type": "parquet", "files": [str(path)], "column": "book", "max_documents": 8,
            "cache_dir": str(tmp_path / "tokens")}  # fmt: skip
    elsewhere = config.data.model_copy(update={"files": ["no/such/file"]})
    hidden = config.model_copy(update={"data": elsewhere})
    moved = shutil.copytree(run.path, tmp_path / "tiny")
    (moved / "config.yaml").write_text(dump(hidden))
    with pytest.raises(UserError, match=r"has another data\.files\.0 than the one that the checkp"):
        swept((RunDirectory(moved), hidden), data=data)  # its config is still checked
    shutil.move(config.data.cache_dir, tmp_path / "away")
    try:
        rows, printed = swept(bpe, name="books", data=data)
    finally:
        shutil.move(tmp_path / "away", config.data.cache_dir)
    written = load(SweepConfig, run.evals / "books" / "sweep.yaml")
    corpus = open_corpus(written.data, run.open_tokenizer(config), only="test")
    assert {row.corpus for row in rows} == {corpus.fingerprint[:16]}
    read = map(run.open_tokenizer(config).decode, corpus.test.texts())
    assert list(read) == texts(7, 9)[:8]
    assert (len(corpus.train), len(corpus.validation), rows[0].documents) == (0, 0, 8)
    assert "test" in printed
    assert f"data: whether {run.path} was trained on these texts cannot be checked" in printed
    # the config of the sweep's folder gives the same sweep again
    again, _ = swept(bpe, **written.model_dump(mode="json") | {"name": "again"})
    assert [row.nll for row in again] == [row.nll for row in rows]


def test_the_runs_own_corpus_is_not_read_whole(bpe):
    data = bpe[1].data.model_dump(mode="json", exclude={"validation_fraction", "test_fraction"})
    with pytest.raises(UserError, match=r"^test: data\.test_fraction: all of"):
        swept(bpe, data=data | {"test_fraction": 0.4})
    own = bpe[1].model_copy(update={"data": type(bpe[1].data).model_validate(data)})
    with pytest.raises(UserError, match=r"^data: is what the run was trained on; leave it out"):
        swept((bpe[0], own), data=data)


def test_a_changed_copy_of_the_tokenizer_is_refused(bpe, tmp_path):
    run, config = bpe
    moved = RunDirectory(shutil.copytree(run.path, tmp_path / "tiny"))
    moved.tokenizer_file.write_text(train_bpe([texts(5)], 270))
    with pytest.raises(UserError, match=r"/tiny/tokenizer\.json: is not the tokenizer that the r"):
        moved.open_tokenizer(config)
    moved.tokenizer_file.unlink()  # then it is made again, from the same texts
    assert moved.open_tokenizer(config).name == run.open_tokenizer(config).name
