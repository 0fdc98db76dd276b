"""The learning rate against hand formulas, and the optimizer against AdamW in numpy."""

import jax
import numpy as np
import optax
import pytest

from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import resolve_model
from rope_jax.config.sections import OptimConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.model.decoder import LanguageModel
from rope_jax.training.optimizer import decayed, learning_rate, optimizer


def config(*stages, **optim):
    """Make a config of stages given as numbers of steps, or as (steps, learning rate)."""
    stages = [stage if isinstance(stage, tuple) else (stage, None) for stage in stages]
    return TrainingConfig(
        name="test",
        stages=[
            {"steps": steps, "seq_len": 8, "batch_size": 1, "learning_rate": peak}
            for steps, peak in stages
        ],
        optim=optim,
    )


def rates(config, steps):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its integer steps with floats
        return np.array(jax.jit(jax.vmap(learning_rate(config)))(np.array(list(steps))))


# Learning rate


def test_warm_up_is_a_tenth_of_a_schedule_unless_it_is_given():
    for steps, warmup in ((1, 0), (9, 0), (10, 1), (300, 30)):
        assert config(steps).optim.warmup(steps) == warmup
        assert config(steps, warmup_steps=0).optim.warmup(steps) == 0
    peak = config(1).optim.learning_rate
    assert rates(config(1), [0])[0] == pytest.approx(peak)
    # each schedule has a tenth of its own
    two = rates(config(20, (100, 1e-2)), [2, 20, 25, 30])
    np.testing.assert_allclose(two, [peak, 0, 5e-3, 1e-2], rtol=1e-6, atol=1e-9)


def by_hand(optim, steps, step, peak=None):
    """Return the learning rate at a step of a schedule of so many steps."""
    peak = peak or optim.learning_rate
    if step < optim.warmup_steps:
        return peak * step / optim.warmup_steps
    done = (step - optim.warmup_steps) / (steps - optim.warmup_steps)
    if optim.schedule == "wsd":  # its decay ends at the last step
        done += 1 / (steps - optim.warmup_steps)
        done = max(0, (done - (1 - optim.decay_fraction)) / optim.decay_fraction)
    if optim.schedule == "cosine":
        done = (1 - np.cos(np.pi * done)) / 2
    return peak * (1 - done * (1 - optim.final_lr_fraction))


@pytest.mark.parametrize(
    ("first", "settings"),
    [
        (None, {"schedule": "cosine"}),
        (7e-3, {"schedule": "linear"}),
        (None, {"schedule": "wsd"}),
        (None, {"schedule": "wsd", "decay_fraction": 0.4}),
        (7e-3, {"schedule": "cosine", "final_lr_fraction": 0}),
        (None, {"schedule": "linear", "final_lr_fraction": 1}),
        (None, {"schedule": "linear", "warmup_steps": 0}),
    ],
)
def test_stages_share_a_schedule_until_one_has_its_own(first, settings):
    # Schedules of 60 + 40, 50 and 50 + 30 steps, each with its own warm-up.
    stages = ((60, first), 40, (50, 2e-3), (50, 5e-3), 30)
    settings = {"learning_rate": 1e-2, "warmup_steps": 10} | settings
    chosen = config(*stages, **settings)
    wanted = [
        by_hand(chosen.optim, steps, step, peak)
        for peak, steps in ((first, 100), (2e-3, 50), (5e-3, 80))
        for step in range(steps)
    ]
    wanted += [5e-3 * chosen.optim.final_lr_fraction] * 10  # after the end it is constant
    np.testing.assert_allclose(rates(chosen, range(240)), wanted, rtol=1e-5, atol=1e-9)


# AdamW


def test_only_kernels_decay():
    model = ModelConfig(
        **{"norm": "layer_norm", "qk_norm": True, "tie_word_embeddings": False},
        **{"qkv_bias": True, "o_bias": True, "mlp_bias": True},
    )
    params = jax.eval_shape(lambda: LanguageModel(resolve_model(model).spec(), 61).init(0))
    flags = {
        jax.tree_util.keystr(path, simple=True, separator="."): flag
        for path, flag in jax.tree_util.tree_leaves_with_path(decayed(params))
    }
    kernels = {
        "lm_head.kernel",
        *(f"layers.self_attn.{name}_proj.kernel" for name in "qkvo"),
        *(f"layers.mlp.{name}_proj.kernel" for name in ("gate", "up", "down")),
    }
    assert {name for name, flag in flags.items() if flag} == kernels
    # the embedding, biases of projections, and scales and biases of norms
    assert len(flags) - len(kernels) == 1 + 7 + 2 * 5


# All of one shape, for speed: operations compile once, and nothing depends on the shape.
SHAPES = {
    "embed_tokens": {"embedding": (4, 6)},
    "layers": {"up_proj": {"kernel": (4, 6)}, "input_layernorm": {"scale": (4, 6)}},
}
# Norms of the gradient at each step: clipped, not clipped, clipped.
NORMS = (50.0, 0.3, 2.0)


def drawn(seed, norm=None):
    rng = np.random.default_rng(seed)
    tree = jax.tree.map(rng.standard_normal, SHAPES, is_leaf=lambda x: isinstance(x, tuple))
    size = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(tree)))
    return jax.tree.map(lambda leaf: np.float32(leaf * (norm / size if norm else 1)), tree)


def trained(**optim):
    """Return the parameters after one step for each of NORMS."""
    params, transform = drawn(0), optimizer(config(10, **optim))
    state = transform.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for step, norm in enumerate(NORMS):
            updates, state = transform.update(drawn(step + 1, norm), state, params)
            params = optax.apply_updates(params, updates)
    return jax.tree.leaves(params)


def trained_by_hand(**optim):
    """Clipping and AdamW (arXiv 1412.6980 and 1711.05101), written out in float64."""
    o = OptimConfig(**optim)
    params = [np.float64(leaf) for leaf in jax.tree.leaves(drawn(0))]
    decays = [path[-1].key == "kernel" for path, _ in jax.tree_util.tree_leaves_with_path(drawn(0))]
    first, second = ([np.zeros_like(p) for p in params] for _ in range(2))
    for t, norm in enumerate(NORMS, 1):
        gradients = jax.tree.leaves(drawn(t, norm))
        rate = by_hand(o, 10, t - 1)
        for i, gradient in enumerate(gradients):
            gradient = np.float64(gradient) * min(1, o.clip_norm / norm)
            first[i] = o.b1 * first[i] + (1 - o.b1) * gradient
            second[i] = o.b2 * second[i] + (1 - o.b2) * gradient**2
            step = first[i] / (1 - o.b1**t) / (np.sqrt(second[i] / (1 - o.b2**t)) + o.eps)
            params[i] = params[i] - rate * (step + decays[i] * o.weight_decay * params[i])
    return params


BASIS = {"warmup_steps": 1, "learning_rate": 0.02}
# Another value for every field: each must change the result as the formulas do.
OTHERS = {
    "learning_rate": {"learning_rate": 0.05},
    "schedule": {"schedule": "linear"},
    "warmup_steps": {"warmup_steps": 2},
    "final_lr_fraction": {"final_lr_fraction": 0.9},
    "decay_fraction": {"schedule": "wsd", "decay_fraction": 1.0},
    "weight_decay": {"weight_decay": 1.0},
    "b1": {"b1": 0.5},
    "b2": {"b2": 0.5},
    "eps": {"eps": 0.1},
    "clip_norm": {"clip_norm": 0.2},
}


@pytest.mark.parametrize("field", OTHERS)
def test_the_optimizer_matches_adamw_written_by_hand(field):
    other = BASIS | OTHERS[field]
    actual, expected = trained(**other), trained_by_hand(**other)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    without = BASIS | {key: value for key, value in OTHERS[field].items() if key != field}
    changes = (
        np.max(np.abs(a - b)) for a, b in zip(expected, trained_by_hand(**without), strict=True)
    )
    assert max(changes) > 1e-4  # by more than the tolerance above
