"""Tasks in a sweep: what is read, what is scored, and what comes out."""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.entries import Trained
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.metrics import TaskMetric, exact_answers
from rope_jax.evaluation.plan import SweepPlan, resolve_sweep
from rope_jax.evaluation.results import sample_rows, task_rows
from rope_jax.model.loss import Scores
from rope_jax.results.rows import Origin
from rope_jax.results.statistics import accuracy_interval
from rope_jax.rope import RotaryGeometry, RotaryLayers
from rope_jax.rope.strategies import NoScaling
from rope_jax.tasks import TokenizerView
from tests.evaluation.toy_model import assert_equal, run

BOS = 256
LENGTHS = [64, 128, 200]
GEOMETRY = RotaryGeometry(rotary_dim=8, base=100.0, train_length=64)
DOCUMENTS = [
    np.random.default_rng(size).integers(ord("a"), ord("z"), size) for size in range(220, 245)
]
WORDS = TokenizerView(
    lambda text: np.frombuffer(text.encode(), np.uint8), 257, (BOS,), has_words=False
)
ORIGIN = Origin(run="toy", step=5, seed=0, corpus="none")
PASSKEY = {"task": "passkey", "samples": 20, "depths": [0, 0.5, 1]}


def oracle(params, tokens, rotary):
    """A model that sees only the last 100 tokens, and copies a key that is in them."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    places = jnp.arange(inputs.shape[1] - 16)  # where a question can be, but for the last one
    marked = [inputs[:, places + k] == ord(letter) for k, letter in enumerate("<<PASS:")]
    seen = jnp.stack(marked).all(0) & (places >= inputs.shape[1] - 108)[None]
    is_found = seen.any(1)
    place = jnp.where(is_found, seen.argmax(1), 0)
    copied = inputs[jnp.arange(len(inputs))[:, None], place[:, None] + jnp.arange(7, 16)[None]]
    right = (copied == targets[:, -9:]) & is_found[:, None]
    is_top1 = jnp.zeros(targets.shape, bool).at[:, -9:].set(right)
    nll = jnp.where(is_top1, 0.125, 2.0) + 0 * rotary.frequencies.inv_freq.sum()
    return Scores(nll.astype(jnp.float32), is_top1)


def sweep_tasks(nll=oracle, **settings):
    defaults = {"tasks": [PASSKEY], "protocols": ["same_tokens"], "words": WORDS, "bos_id": BOS}
    defaults |= {"geometry": GEOMETRY, "lengths": LENGTHS, "documents": DOCUMENTS}
    return run(nll=nll, **(defaults | settings))


@pytest.fixture(scope="module")
def result():
    return sweep_tasks()


def test_a_model_that_sees_100_tokens_finds_what_lies_in_them(result):
    rows = task_rows(result, ORIGIN)
    exact = {(r.length, r.depth): r.value for r in rows if r.metric == "exact"}
    assert exact == {
        **{(64, depth): 1.0 for depth in (0, 0.5, 1)},
        **{(128, 0): 0.0, (128, 0.5): 1.0, (128, 1): 1.0},
        **{(200, 0): 0.0, (200, 0.5): 0.0, (200, 1): 1.0},
        **{(length, None): 0.0 for length in LENGTHS},  # the needle is taken out
    }
    nats = {(r.length, r.depth): r.value for r in rows if r.metric == "nats"}
    assert nats[128, 1] == 0.125
    assert nats[128, 0] == 2.0
    row = next(r for r in rows if (r.length, r.depth, r.metric) == (128, 1, "exact"))
    assert (row.task, row.samples, row.answers, row.tokens) == ("passkey", 20, 20, 180)
    assert row.chance == pytest.approx(1e-5)
    assert row.ci_low == pytest.approx(0.8389, abs=1e-4)  # Wilson's, 20 of 20
    assert row.ci_high == 1.0


def test_samples_have_the_same_keys_and_nested_texts_at_every_length_and_depth():
    read = {}
    raw = {"tasks": [PASSKEY], "lengths": LENGTHS, "scalings": ["trained"]}
    layers, trained = RotaryLayers(GEOMETRY), Trained(64, NoScaling(), None, 64)
    sweep = resolve_sweep(SweepConfig.model_validate(raw), layers, [trained])
    plan = SweepPlan(sweep, layers, trained, DOCUMENTS, (BOS,), words=WORDS)
    for job in plan.jobs():
        if isinstance(job.metric, TaskMetric):
            tokens, cell = job.batch.tokens(), (job.metric.depth, job.metric.ablated)
            assert tokens.shape == (20, job.length + 1)
            assert (tokens[:, 0] == BOS).all()
            read[job.length, cell] = ["".join(map(chr, row[1:])) for row in tokens]
    assert len(read) == 12
    (keys,) = {tuple(text[-9:] for text in texts) for texts in read.values()}
    assert len(set(keys)) == 20
    for (length, cell), texts in read.items():
        for text, longest in zip(texts, read[LENGTHS[-1], cell], strict=True):
            assert len(text) == length
            assert ("<<PASS" not in text[:-16]) == cell[1]
            shorter, rest = (x[:-16].replace(f"<<PASS:{x[-9:]}>>", "") for x in (text, longest))
            assert rest.endswith(shorter)


def test_equal_answers_need_all_their_targets():
    answers = np.int32([[-1, 0, 0, 1], [-1, -1, 0, 0], [0, 1, 2, -1]])
    is_top1 = np.array([[1, 1, 0, 1], [0, 0, 1, 1], [1, 0, 1, 0]], bool)
    assert exact_answers(answers, is_top1).tolist() == [1, 1, 2]
    assert exact_answers(answers, np.ones_like(is_top1)).tolist() == [2, 1, 3]


def test_intervals_of_shares():
    # Wilson: (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)
    for exact, answers, value, low, high in (
        ([1] * 32 + [0] * 32, 1, 0.5, 0.3810, 0.6190),
        ([2] * 64, 4, 0.5, 0.3810, 0.6190),  # all samples agree: Wilson's with so many trials
        ([4] * 64, 4, 1.0, 0.9434, 1.0),
        # many resamples leave out the only sample that differs, so the bootstrap has no interval
        ([4] + [5] * 63, 5, 319 / 320, 0.9167, 1.0),
        # 29 of 100, although 0.29 · 100 is less than 29 in floating point
        ([1] * 29 + [0] * 71, 1, 0.29, 0.2101, 0.3854),
    ):
        asked = np.full(len(exact), answers)
        found = accuracy_interval(np.array(exact), asked, resamples=2000, seed=0)
        assert found == pytest.approx((value, low, high), abs=1e-4)
    several = accuracy_interval(np.array([4, 0] * 32), np.full(64, 4), resamples=2000, seed=0)
    assert several.value == 0.5
    assert 0.36 < several.low < 0.40  # as wide as if each sample were one trial


def test_sums_by_sample_add_up_to_the_rows(result):
    rows = {(r.name, r.length, r.depth): r for r in task_rows(result, ORIGIN) if r.metric == "nats"}
    sums = {key: np.zeros(2) for key in rows}
    for sample in sample_rows(result, ORIGIN):
        sums[sample.name, sample.length, sample.depth] += sample.nll, sample.tokens
    for key, row in rows.items():
        assert (sums[key][0] / row.tokens, sums[key][1]) == pytest.approx((row.value, row.tokens))


def test_perplexity_beside_tasks_is_what_it_is_alone(result):
    alone = sweep_tasks(tasks=[])
    assert_equal(alone, result)
    assert not alone.task_measurements


def plain_nll(params, tokens, rotary):
    return tokens[:, 1:].astype(jnp.float32) + 0 * rotary.frequencies.inv_freq.sum()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nll": plain_nll}, "tasks: passkey: nll_fn returns only NLLs; it must return Scores"),
        ({"words": None}, "tasks: passkey: sweep() needs words"),
        ({"lengths": [32, 64]}, "tasks: passkey: digits: 5 need a window of 34 tokens, not 32"),
        ({"tasks": [PASSKEY, PASSKEY]}, "tasks: passkey occurs twice; give one a name"),
        ({"tasks": [PASSKEY | {"depths": [0.5, 0.2]}]}, "depths: [0.5, 0.2] must be ascending"),
        ({"tasks": [PASSKEY | {"name": "sliding"}]}, "tasks: sliding names a protocol"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(settings, message):
    with pytest.raises(UserError) as error:
        sweep_tasks(**settings)
    assert message in str(error.value)
