"""The training step: golden losses; sums and gradients do not depend on gradient accumulation.

Shapes: B batch, T length, V vocabulary.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rope_jax.config.resolve import resolve_model
from rope_jax.config.training import TrainingConfig
from rope_jax.data.batches import Batch, training_batch
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.model.decoder import LanguageModel
from rope_jax.rope import Rotary
from rope_jax.training.optimizer import optimizer
from rope_jax.training.step import TrainState, bucket_edges, loss_sums, make_train_step
from tests.data.test_batches import split_of

CONFIG = TrainingConfig(
    name="golden",
    seed=7,
    model={
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    rope={"scaling": {"type": "yarn", "factor": 2.0}},
    optim={"learning_rate": 1e-2, "warmup_steps": 2},
    stages=[{"steps": 5, "seq_len": 48, "batch_size": 8}],
)
STAGE = CONFIG.stages[0]
ROTARY = Rotary.shared(CONFIG.rope.scaling.frequencies(CONFIG.geometry))

GOLDEN_LOSSES = [5.55342770, 5.53850031, 5.30289459, 4.83631659, 4.53525591]
WHEN_TO_UPDATE = """
The losses of the first training steps have changed. Update GOLDEN_LOSSES only if the change was
meant to alter the numbers: the order of the data, the initial parameters, the model, the loss or
the optimizer. Changes of speed, memory, names or structure do not alter them. Give the reason in
the commit message. The losses are now:
"""


@pytest.fixture(scope="module")
def split():
    """The paragraphs of the fixture text, one document each."""
    text = (Path(__file__).parents[1] / "fixtures" / "text.txt").read_text("utf-8")
    return split_of(*(ByteTokenizer().encode(part) for part in text.strip().split("\n\n")))


def batch_of(split, step=0):
    size = {"seq_len": STAGE.seq_len, "batch_size": STAGE.batch_size}
    return training_batch(split, seed=CONFIG.seed, stage=0, step=step, **size)


def test_golden_losses(split):
    model = LanguageModel(resolve_model(CONFIG.model).spec(), ByteTokenizer.vocab_size)
    transform, params = optimizer(CONFIG), model.init(CONFIG.seed)
    state = TrainState(params, transform.init(params))
    train_step = make_train_step(model, transform)
    losses = []
    for step in range(STAGE.steps):
        state, metrics = train_step(state, batch_of(split, step), ROTARY)
        losses.append(float(metrics.sums.mean()))
    found = ", ".join(f"{loss:.8f}" for loss in losses)
    np.testing.assert_allclose(losses, GOLDEN_LOSSES, rtol=1e-5, err_msg=WHEN_TO_UPDATE + found)


# Gradients and sums, with a model small enough to differentiate by hand


class Line(LanguageModel):
    """A model whose NLL is half the squared distance to a line: (a·x + c_token − target)²/2."""

    def __init__(self):
        """Build nothing: there are no layers."""

    def nll_and_auxiliary(self, params, windows):
        return self.nll(params, windows), None

    def nll(self, params, windows):
        tokens, targets, positions, *_ = windows
        x = positions.astype(jnp.float32) / 10
        line = params["a"] * x + params["c"][tokens]
        return (line - targets.astype(jnp.float32)) ** 2 / 2


PARAMS = {"a": np.float32(3), "c": np.random.default_rng(0).normal(100, 20, 257).astype(np.float32)}


def line_by_hand(batch):
    """Return the loss of every target in nats and the gradient of their weighted mean, float64."""
    x, weights = batch.positions / 10, np.float64(batch.weights)
    error = np.float64(PARAMS["a"]) * x + PARAMS["c"][batch.tokens] - batch.targets
    of_c = np.bincount(batch.tokens.ravel(), (error * weights).ravel(), 257)
    gradient = {"a": np.sum(error * x * weights), "c": of_c}
    return error**2 / 2, jax.tree.map(lambda g: g / weights.sum(), gradient)


@pytest.fixture
def batch(split):
    """Micro-batches with different numbers of counted targets: a mean of means would differ."""
    batch = batch_of(split)
    weights = batch.weights.copy()
    weights[0] = 0
    weights[3, 10:] = 0
    assert len(set(weights.reshape(4, -1).sum(1))) > 2
    return batch._replace(weights=weights)


def gradient_of_step(batch, grad_accumulation=1, model=None):
    """Return what a step of plain gradient descent with rate 1 subtracts: the gradient."""
    descent = optax.sgd(1.0)
    step = make_train_step(model or Line(), descent, grad_accumulation)
    after, metrics = step(TrainState(PARAMS, descent.init(PARAMS)), batch, ROTARY)
    return jax.tree.map(np.subtract, PARAMS, jax.device_get(after.params)), metrics


@pytest.mark.parametrize("grad_accumulation", [1, 4])
def test_the_loss_is_the_mean_over_counted_targets(batch, grad_accumulation):
    gradient, metrics = gradient_of_step(batch, grad_accumulation)
    nll, expected = line_by_hand(batch)
    assert gradient["a"] == pytest.approx(expected["a"], rel=1e-5)
    np.testing.assert_allclose(gradient["c"], expected["c"], atol=2e-5)
    norm = np.sqrt(expected["a"] ** 2 + np.sum(expected["c"] ** 2))
    assert metrics.grad_norm == pytest.approx(norm, rel=1e-5)
    assert metrics.sums.mean() == pytest.approx(np.average(nll, weights=batch.weights), rel=1e-5)
    assert metrics.sums.tokens.sum() == batch.weights.sum()


def test_the_auxiliary_loss_is_added_and_measured_by_itself(batch):
    class Balanced(Line):
        def nll_and_auxiliary(self, params, windows):
            tokens = windows.tokens
            used = jnp.mean(tokens == tokens[0, 0], dtype=jnp.float32)
            return self.nll(params, windows), 3 * used**2 * params["a"] ** 2

    gradient, metrics = gradient_of_step(batch, 4, Balanced())
    nll, expected = line_by_hand(batch)
    micro_batches = zip(np.split(batch.tokens, 4), np.split(batch.weights, 4), strict=True)
    squares, counts = zip(
        *((np.mean(tokens == tokens[0, 0]) ** 2, w.sum()) for tokens, w in micro_batches),
        strict=True,
    )
    a, used = float(PARAMS["a"]), np.average(squares, weights=counts)
    assert gradient["a"] == pytest.approx(expected["a"] + 6 * a * used, rel=1e-5)
    assert metrics.auxiliary == pytest.approx(3 * a**2 * used, rel=1e-5)
    assert metrics.sums.mean() == pytest.approx(np.average(nll, weights=batch.weights), rel=1e-5)
    assert gradient_of_step(batch)[1].auxiliary is None


# Sums by position


@pytest.mark.parametrize(
    ("seq_len", "edges"), [(1, [0]), (16, [0]), (17, [0, 16]), (129, [0, 16, 32, 64, 128])]
)
def test_bucket_edges_are_powers_of_two_below_the_window(seq_len, edges):
    assert bucket_edges(seq_len) == edges


def test_bucket_sums_match_numpy():
    rng = np.random.default_rng(0)
    places = np.stack([np.arange(200), np.arange(200) % 70, np.arange(200) % 130])
    segment_ids = np.cumsum(places == 0, axis=1) - 1
    positions = places + 5000 * (places > 20)  # jumps move no token to another bucket
    tokens, targets = rng.integers(0, 256, (2, *positions.shape))
    as_int = (x.astype(np.int32) for x in (tokens, targets, segment_ids, positions))
    weights = (rng.random(positions.shape) < 0.8).astype(np.float32)
    batch = Batch(*as_int, weights)
    sums = jax.jit(functools.partial(loss_sums, Line()))(PARAMS, batch, ROTARY)
    edges = [0, 16, 32, 64, 128, np.inf]
    nll, _ = line_by_hand(batch)
    counted, _ = np.histogram(places, edges, weights=weights)
    expected, _ = np.histogram(places, edges, weights=weights * nll)
    np.testing.assert_array_equal(sums.tokens, counted)
    np.testing.assert_allclose(sums.nll, expected, rtol=1e-5)
    assert sums.tokens.sum() == weights.sum()
    assert sums.mean() == pytest.approx(np.average(nll, weights=weights), rel=1e-5)
