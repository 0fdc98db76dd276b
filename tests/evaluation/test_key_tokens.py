"""Key tokens: their file, and how a sweep scores them."""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.entries import Trained
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.metrics import (
    DocumentKeys,
    Evaluator,
    KeyTokens,
    key_blocks,
    read_key_tokens,
)
from rope_jax.evaluation.plan import SweepPlan, resolve_sweep
from rope_jax.evaluation.results import task_rows
from rope_jax.model.loss import Scores
from rope_jax.results.rows import Origin
from rope_jax.rope import RotaryLayers
from rope_jax.rope.strategies import NoScaling
from tests.evaluation.toy_model import BOS, GEOMETRY, run

LENGTHS = [16, 32, 64]
RNG = np.random.default_rng(0)
DOCUMENTS = [RNG.integers(0, 90, size) for size in (150, 40, *range(200, 223))]
KEYS = [np.sort(RNG.permutation(len(document))[: len(document) // 6]) for document in DOCUMENTS]
ORIGIN = Origin(run="toy", step=5, seed=0, corpus="none")


def test_blocks_hold_every_key_token_once_and_are_narrow():
    tokens = np.array([0, 1, 7, 8, 9, 40, 47, 48])
    blocks = key_blocks(tokens, 8)
    assert [block.tolist() for block in blocks] == [[0, 1, 7], [8, 9], [40, 47], [48]]
    assert key_blocks(tokens[:0], 8) == []


def mask(folder, keys=KEYS, **changed):
    """Write a file of key tokens, and return the task that scores them."""
    made = KeyTokens(
        **{"corpus": "c", "split": "test", "short": 16, "stride": 4, "alpha": 2.0, "beta": -2.0},
        **{"max_documents": 64, "seed": 0, "candidates": 1000},
        evaluator=Evaluator(run="long", step=1, window=64),
        documents=tuple(
            DocumentKeys(index=index, id=str(index), tokens=tuple(tokens.tolist()))
            for index, tokens in enumerate(keys)
        ),
    )
    path = folder / "mask.json"
    path.write_text(made.model_dump_json())
    assert read_key_tokens(str(path)) == made
    return {"task": "longppl", "mask": str(path)} | changed


def jobs_of(task, start=(BOS,), **settings):
    """Return the jobs that concern key tokens, by length."""
    raw = {"tasks": [task], "lengths": LENGTHS, "scalings": ["trained"]} | settings
    config = SweepConfig.model_validate(raw)
    layers, trained = RotaryLayers(GEOMETRY), Trained(16, NoScaling(), None, 16)
    sweep = resolve_sweep(config, layers, [trained])
    plan = SweepPlan(sweep, layers, trained, DOCUMENTS, start)
    return [job for job in plan.jobs() if job.metric.name == "longppl"]


def scores(params, tokens, rotary):
    """A model whose NLL of a target is the target plus its context's length."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    position = jnp.arange(inputs.shape[1], dtype=jnp.float32)[None] + 1
    nll = targets.astype(jnp.float32) + position + 0 * rotary.frequencies.inv_freq.sum()
    return Scores(nll, targets % 3 == 0)


@pytest.mark.parametrize("start", [(BOS,), (BOS, 5)], ids=["one", "two"])
@pytest.mark.parametrize("bos", ["document", "every_window", "none"])
def test_the_same_key_tokens_are_scored_at_every_length(tmp_path, bos, start):
    count = len(start) * (bos != "none")
    far = [tokens[tokens >= LENGTHS[-1]] for tokens in KEYS]
    read = [index for index, tokens in enumerate(far) if tokens.size]
    right = np.concatenate([text[tokens] for text, tokens in zip(DOCUMENTS, far, strict=True)])
    assert len(right) > 200
    for job in jobs_of(mask(tmp_path, samples=1000), start, bos=bos):
        tokens, windows = job.batch.tokens(), job.windows
        assert tokens.shape == (len(windows.start), job.length + 1)
        assert (tokens[:, : len(start)] == start).all() == (bos == "every_window")
        answers = job.answers(job.length)
        assert (answers[:, -1] >= 0).all()  # a window ends with a key token
        # of half the shortest length, so that context is at least as long
        assert (answers[:, : job.length - LENGTHS[0] // 2] == -1).all()
        rows, targets = np.nonzero(answers >= 0)
        assert job.last == job.length - targets.min()
        np.testing.assert_array_equal(tokens[rows, targets + 1], right)
        assert len(set(windows.unit.tolist())) == len(read)
        for row, document, begin in zip(tokens, windows.document, windows.start, strict=True):
            text = DOCUMENTS[read[document]][begin - count + 2 :]
            np.testing.assert_array_equal(row[2:], text[: job.length - 1])


def test_a_sweep_returns_the_mean_over_key_tokens(tmp_path):
    task = mask(tmp_path, name="far", samples=1000)
    result = run(nll=scores, lengths=LENGTHS, documents=DOCUMENTS, tasks=[task])
    rows = task_rows(result, ORIGIN)
    assert [(row.length, row.metric) for row in rows] == [(length, "nats") for length in LENGTHS]
    targets = np.concatenate([d[k[k >= 64]] for d, k in zip(DOCUMENTS, KEYS, strict=True)])
    for row in rows:
        assert (row.task, row.kind_of_task) == ("far", "longppl")
        assert (row.depth, row.taken_out, row.distance) == (None, False, None)
        assert row.tokens == row.answers == len(targets)
        assert row.samples == sum((k >= 64).any() for k in KEYS)
        # the last of a block has the whole length before it, the others less
        context = row.value - targets.mean()
        assert row.length - 8 < context <= row.length
    assert len({row.targets for row in rows}) == 1


def test_a_sweep_draws_blocks_with_its_seed(tmp_path):
    task = mask(tmp_path, samples=150)
    first, other = (jobs_of(task, seed=seed)[0].windows for seed in (0, 1))
    assert len(first.start) == 150
    assert first.start.tolist() != other.start.tolist()
    assert (np.diff(first.document) >= 0).all()


def test_few_documents_are_divided_into_stretches(tmp_path):
    keys = [np.arange(0, len(d), 3)[: 1000 * (i < 12)] for i, d in enumerate(DOCUMENTS)]
    windows = jobs_of(mask(tmp_path, keys))[0].windows
    ends = windows.start + LENGTHS[0]
    units = set(zip(windows.document.tolist(), (ends // 64).tolist(), strict=True))
    assert len(set(windows.unit.tolist())) == len(units) > 20


@pytest.mark.parametrize(
    ("keys", "changed", "says"),
    [
        ([k[k < 64] for k in KEYS], {}, r"tasks: longppl: mask: 0 of its \d+ key tokens have the "
         "64 tokens of the longest length before them, and fewer than 200 say little"),
        (KEYS, {"samples": 20}, r"tasks: longppl: samples: 20 blocks hold \d+ key tokens, and few"),
        ([*KEYS, KEYS[0]], {}, "has key tokens that are not in these documents"),
        ([np.array([500]), *KEYS[1:]], {}, "has key tokens that are not in these documents"),
    ],
)  # fmt: skip
def test_a_mask_that_cannot_be_measured(tmp_path, keys, changed, says):
    with pytest.raises(UserError, match=says):
        jobs_of(mask(tmp_path, keys, **changed))


@pytest.mark.parametrize("text", [None, "\0", '"tokens":[3,2]', '"tokens":[-1]'])
def test_a_file_that_is_no_mask(tmp_path, text):
    path = tmp_path / "mask.json"
    says = "is not a file of key tokens; rope-jax key-tokens writes them"
    if text is None:
        says = "cannot be read (No such file or directory)"
    else:
        mask(tmp_path, [np.array([5])])
        path.write_text(path.read_text().replace('"tokens":[5]', text))
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read_key_tokens(str(path))
    assert str(error.value) == f"mask: {path} {says}"
