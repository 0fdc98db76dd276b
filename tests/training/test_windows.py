"""Stages whose windows have positions that jump, short windows among long ones, or open borders.

Shapes: B rows, T tokens per window, S tokens per short window.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.backends import BACKENDS
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.data.batches import Batch, ShortRows, training_batch
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.model.decoder import DecoderInputs
from rope_jax.rope import Rotary
from rope_jax.training.program import Program
from rope_jax.training.step import loss_sums
from tests.data.test_batches import split_of

MODEL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
MODEL |= {"num_attention_heads": 2, "attention": "xla"}


def config_of(stage, **sections):
    """Return the config of a run with one stage of 32 tokens."""
    stage = {"steps": 5, "seq_len": 32, "batch_size": 8} | stage
    given = {"name": "windows", "model": MODEL, "optim": {"warmup_steps": 1}, "stages": [stage]}
    return TrainingConfig.model_validate(given | sections)


def batch_of(config):
    """Return the first batch of documents of 1 to 40 tokens, as `Trainer` makes it."""
    rng = np.random.default_rng(0)
    split = split_of(*(rng.integers(0, 256, n).tolist() for n in rng.integers(0, 40, 60)))
    stage, short = config.stages[0], None
    if stage.mixed is not None:
        rows = stage.mixed.rows_of(stage.batch_size)
        short = ShortRows(stage.mixed.seq_len, rows)
    size = {"seq_len": stage.seq_len, "batch_size": stage.batch_size, "short": short}
    windows = {"positions": stage.positions, "documents": stage.documents}
    return training_batch(split, seed=0, stage=0, step=0, **size, **windows)


def params_of(config):
    """Return parameters large enough for positions to matter."""
    params = language_model(resolve_run(config), ByteTokenizer.vocab_size).init(0)
    return jax.tree.map(lambda leaf: 6 * leaf if leaf.ndim > 1 else leaf, params)


def losses_by_hand(config, *rotaries):
    """Return the loss of a batch with each of these frequencies.

    rotaries: for some of the rows each, lists of (batch, scaling, length).
    """
    layers, params = config.rotary_layers, params_of(config)
    model = language_model(resolve_run(config), ByteTokenizer.vocab_size)

    @jax.jit
    def loss(params, parts):
        tokens = sum(batch.weights.sum() for batch, _ in parts)
        return sum(loss_sums(model, params, *part).nll.sum() for part in parts) / tokens

    losses = []
    for parts in rotaries:
        made = []
        for batch, scaling, length in parts:
            query_scale = layers.query_scale(scaling, jnp.asarray(batch.positions))
            made.append((batch, Rotary(layers.frequencies(scaling, length), query_scale)))
        losses.append(float(loss(params, made)))
    return losses


def test_a_mixed_step_is_the_sum_of_two_batches():
    """Short windows with their frequencies, and long ones with theirs, weighted by their tokens.

    The scaling of the long ones sees the length that is trained for.
    """
    config = config_of(
        {
            "scaling": {"type": "dynamic_ntk", "factor": 3.0, "query_scale": {"type": "logn"}},
            "positions": {"type": "randomized", "length": 128},
            "grad_accumulation": 2,
            "mixed": {
                "fraction": 0.25,
                "seq_len": 8,
                "scaling": {"type": "none", "query_scale": {"type": "llama4", "floor_scale": 4}},
            },
        },
        rope={
            "train_length": 8,
            "layer_pattern": [{"base": 100.0}, {"scaling": {"type": "pi", "factor": 2.0}}],
        },
        model=MODEL | {"num_hidden_layers": 2},
    )
    stage, batch = config.stages[0], batch_of(config)
    program = Program(resolve_run(config), ByteTokenizer.vocab_size, Placement(config.mesh))
    state = program.fresh_state()._replace(params=params_of(config))
    _, metrics = program.stages[0].train_step(state, Batch(*map(jnp.asarray, batch)))

    # The short windows as a batch of windows of S tokens.
    is_short = np.arange(8) < 2
    short = Batch(*(leaf[is_short].reshape(-1, 8) for leaf in batch))
    long = Batch(*(leaf[~is_short] for leaf in batch))
    assert short.tokens.shape == (8, 8)
    assert short.positions.max() < 8
    rows_of_short, rows_of_long = (short, stage.mixed.scaling, 8), (long, stage.scaling, 128)
    loss, *others = losses_by_hand(
        config,
        [rows_of_short, rows_of_long],
        [(short, stage.scaling, 128), rows_of_long],  # the long windows' frequencies for all
        [rows_of_short, (long, stage.scaling, 32)],  # of the windows' own length
    )
    assert metrics.sums.mean() == pytest.approx(loss, rel=1e-5)
    for other in others:
        assert abs(other - loss) > 3e-4


OPEN = {"documents": {"mask": "none", "positions": "continue"}}
MIX = {"mix": [{"task": "passkey", "share": 0.5}]}


@pytest.mark.parametrize(
    ("stage", "data", "has_ids"),
    [
        ({}, {}, True),
        (OPEN, {}, False),
        (OPEN | {"mixed": {"fraction": 0.5, "seq_len": 8}}, {}, True),
        (OPEN, MIX, True),
    ],
)
def test_attention_gets_document_ids_unless_each_row_is_one_document(
    stage, data, has_ids, monkeypatch
):
    given, attend_bands = [], BACKENDS["xla"].attend_bands

    def recorded(interaction, inputs, low_precision):
        given.append(inputs.segment_ids is not None)
        return attend_bands(interaction, inputs, low_precision)

    monkeypatch.setattr(BACKENDS["xla"], "attend_bands", recorded)
    config = config_of(stage, data=data)
    program = Program(resolve_run(config), ByteTokenizer.vocab_size, Placement(config.mesh))
    batch = Batch(*map(jnp.asarray, batch_of(config)))
    program.stages[0].loss_sums(program.fresh_state().params, batch)
    program.stages[0].train_step(program.fresh_state(), batch)
    assert given
    assert set(given) == {has_ids}


def test_a_learned_table_has_all_positions_that_are_trained():
    model = MODEL | {"position": {"type": "learned"}}
    config = config_of({"positions": {"type": "pose", "length": 200}}, model=model)
    assert config.encoding.longest == 200


STAGES = {
    "pose": {"positions": {"type": "pose", "length": 200}},
    "open": OPEN,
    "mixed": {"mixed": {"fraction": 0.5, "seq_len": 8}},
}


@pytest.mark.parametrize(
    ("attention", "kind"), [("xla", "pose"), ("blockwise", "mixed"), ("linear", "open")]
)
def test_a_token_depends_on_what_it_sees_and_on_nothing_else(attention, kind):
    """By the gradient of every loss with respect to every embedding: exactly 0 if it is hidden."""
    stage = STAGES[kind]
    model = MODEL | {"attention": attention, "tie_word_embeddings": False}
    config = config_of(stage, model=model)
    params, model = params_of(config), language_model(resolve_run(config), ByteTokenizer.vocab_size)
    row = Batch(*(jnp.asarray(leaf[:1]) for leaf in batch_of(config)))
    tokens = jnp.arange(32)[None]  # every token has an embedding of its own
    frequencies = config.rotary_layers.frequencies(config.rope.scaling, 32)
    rotary = Rotary.unscaled_queries(frequencies)

    @jax.jit
    @jax.jacrev
    def influence(embedding):
        own = params | {"embed_tokens": {"embedding": embedding}}
        windows = DecoderInputs(tokens, row.targets, row.positions, row.segment_ids, rotary)
        return model.nll(own, windows)[0]

    found = np.abs(influence(params["embed_tokens"]["embedding"])).sum(-1)[:, :32]
    segments = np.asarray(row.segment_ids[0])
    visible = (segments[:, None] == segments[None]) & np.tri(32, dtype=bool)
    np.testing.assert_array_equal(found > 0, visible)
    assert (segments[-1] == 0) == ("documents" in stage)
