"""Mixtures of experts: routing and products against a reference in numpy, settings, and costs.

Whole models with experts are in test_decoder.py, on meshes in test_split_programs.py.
"""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pydantic import ValidationError

from rope_jax.blocks import Experts
from rope_jax.blocks.dispatch import order_by_expert
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import resolve_model
from rope_jax.kernels.loading import load_kernels
from rope_jax.kernels.projections import project
from rope_jax.model.decoder import LanguageModel
from tests.model import reference

SIZES = {"hidden_size": 16, "intermediate_size": 12, "num_attention_heads": 2}
KINDS = {"grouped": reference.GROUPED, "clamped": reference.CLAMPED, "single": reference.SINGLE}
EXPERTS = Experts.Config(num_experts=4, num_experts_per_tok=2)


def draw(settings, tokens=40):
    """Return a model's config, tokens, and the parameters of its feed-forward."""
    config = ModelConfig(**SIZES, num_hidden_layers=1, feed_forward=settings)
    rng = np.random.default_rng(0)
    state = nnx.to_pure_dict(nnx.state(fresh(config)))
    params = jax.tree.map(lambda p: rng.standard_normal(p.shape).astype(np.float32) / 2, state)
    return config, rng.standard_normal((tokens, 16)).astype(np.float32), params


def applied(config, params, x):
    """Return the feed-forward's output and its auxiliary loss."""
    return nnx.merge(nnx.graphdef(fresh(config)), params)(jnp.asarray(x))


def fresh(config):
    """Return the model's feed-forward without numbers."""
    spec = resolve_model(config).spec()
    return nnx.eval_shape(lambda: config.feed_forward.build(spec, nnx.Rngs(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_all_experts_for_every_token(kind):
    config, x, params = draw(KINDS[kind] | {"balance": 3.0})
    by = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)

    def total(params, x):
        out, auxiliary = applied(config, params, x)
        return (out * by).sum() + auxiliary, (out, auxiliary)

    gradient, (out, auxiliary) = jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, x)
    wide = jax.tree.map(np.float64, (params, x))
    wanted = reference.experts(config, wide[1], wide[0])
    np.testing.assert_allclose(out, wanted[0], atol=1e-4)
    assert float(auxiliary) == pytest.approx(wanted[1], rel=1e-5)

    def slope(path, leaf, derivative):
        """Compare the derivative along a random direction of one array."""
        along = np.random.default_rng(2).standard_normal(leaf.shape) * 1e-6
        sums = []
        for sign in (1, -1):
            moved = jax.tree_util.tree_map_with_path(
                lambda p, a, s=sign: a + s * along if p == path else a, wide
            )
            out, more = reference.experts(config, moved[1], moved[0])
            sums.append((out * by).sum() + more)
        found = (np.float64(derivative) * along).sum() * 2
        name = jax.tree_util.keystr(path)
        assert found == pytest.approx(sums[0] - sums[1], rel=2e-3, abs=1e-10), name

    jax.tree_util.tree_map_with_path(slope, wide, gradient)


@pytest.mark.parametrize("low_precision", [False, True])
@pytest.mark.parametrize(
    "sizes", [(9, 0, 200, 31), (0, 0, 240, 0), (60, 60, 60, 60), (0, 0, 0, 240)]
)
def test_products_by_group_and_their_gradients_are_those_of_each_group(sizes, low_precision):
    rng = np.random.default_rng(3)
    x, kernel, by = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((240, 18), (4, 18, 14), (240, 14))
    )
    rounded = (
        jnp.asarray(a).astype("bfloat16" if low_precision else "float32") for a in (x, kernel, by)
    )
    wide = [np.asarray(a, np.float64) for a in rounded]

    def total(x, kernel):
        y = project(x, kernel, low_precision, jnp.asarray(sizes))
        return (y * by).sum(), y

    (dx, dkernel), y = jax.jit(jax.grad(total, (0, 1), has_aux=True))(x, kernel)
    ends = np.cumsum(sizes)
    for g, (first, last) in enumerate(zip(ends - sizes, ends, strict=True)):
        rows, weights, by_rows = wide[0][first:last], wide[1][g], wide[2][first:last]
        # float32's rounding, times the length of sums
        close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
        close(y[first:last], rows @ weights)
        close(dx[first:last], by_rows @ weights.T)
        close(dkernel[g], rows.T @ by_rows)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_accelerators_multiply_by_ragged_products(platform):
    config, x, params = draw(EXPERTS)

    def total(params, x):
        return applied(config, params, x)[0].sum()

    exported = jax.export.export(jax.jit(jax.grad(total)), platforms=[platform])
    assert "ragged_dot" in exported(params, x).mlir_module()


def test_a_cpu_multiplies_by_our_kernels_if_it_has_them():
    config, x, params = draw(EXPERTS)
    text = jax.jit(lambda *a: applied(config, *a)[0]).lower(params, x).as_text()
    assert ("rope_jax_gated_forward" in text) == (load_kernels() is not None)


@pytest.mark.parametrize("experts", [4, 2**30])  # so many that a number for both would not fit
def test_rows_are_ordered_by_expert_and_token(experts):
    chosen = jnp.asarray([[3, 0], [0, 2], [3, 2]])
    order = jax.jit(lambda c: order_by_expert(c, experts)[0])(chosen)  # not how many each has
    assert order.choice.tolist() == [1, 2, 3, 5, 0, 4]
    assert order.row.tolist() == [[4, 0], [1, 2], [5, 3]]


def test_gradients_of_biases_are_summed_in_float32():
    config, x, params = draw(EXPERTS.model_copy(update={"expert_bias": True}), tokens=4096)
    narrow = config.model_copy(update={"dtype": "bfloat16"})

    def total(params, config):
        return applied(config, params, x)[0].astype(jnp.float32).sum()

    found, wanted = (jax.grad(total)(params, each) for each in (narrow, config))
    for name in ("up_proj", "down_proj"):
        a, b = (np.asarray(each["experts"][name]["bias"], np.float64) for each in (found, wanted))
        # thousands of rows: sums in bfloat16 would stop growing at 256 times a row
        assert np.linalg.norm(a - b) < 2e-2 * np.linalg.norm(b)


# By setting: another value. Every one changes the program.
OTHERS = {
    "num_experts": 6,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 20,
    "scores": "sigmoid",
    "norm_topk_prob": False,
    "routed_scaling_factor": 2.0,
    "choice_bias": True,
    "n_group": 2,
    "topk_group": 3,
    "group_score": "best_two",
    "scaled": "inputs",
    "router_bias": True,
    "expert_bias": True,
    "swiglu_limit": 7.0,
    "shared_expert_intermediate_size": 8,
    "shared_expert_gate": True,
    "balance": 0.5,
}
TOGETHER = {  # with which others a setting counts
    **{key: {"n_group": 4, "topk_group": 2} for key in ("n_group", "topk_group")},
    "group_score": {"n_group": 2},
    "shared_expert_gate": {"shared_expert_intermediate_size": 8},
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_setting_changes_the_program(name):
    def program(**settings):
        config, x, params = draw(EXPERTS.model_copy(update=TOGETHER.get(name, {}) | settings))
        return str(jax.make_jaxpr(lambda p, x: applied(config, p, x))(params, x))

    assert program() != program(**{name: OTHERS[name]})


def test_every_setting_has_a_case():
    assert {"type", *OTHERS} == set(Experts.Config.model_fields)


def test_dense_layers_have_no_experts_and_cost_what_an_mlp_does():
    config = ModelConfig(**SIZES, num_hidden_layers=3, feed_forward=EXPERTS, dense_layers=2)
    model = LanguageModel(resolve_model(config).spec(), 61)
    shapes = model.abstract_params()
    assert shapes["dense_layers"]["mlp"]["up_proj"]["kernel"].shape == (2, 16, 12)
    assert shapes["layers"]["mlp"]["experts"]["up_proj"]["kernel"].shape == (1, 4, 16, 12)
    # a router, and two of four experts
    assert EXPERTS.flops_per_token(config.spec()) == 2 * (16 * 4 + 2 * 3 * 16 * 12)


DELTA_NET = {"type": "gated_delta_net"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dense_layers": 3}, "dense_layers: should be some of the 3 layers, from 0, and not all"),
        ({"dense_layers": [0, 1, 2]}, "dense_layers: should be some of the 3 layers"),
        ({"dense_layers": [3]}, "dense_layers: should be some of the 3 layers"),
        ({"alternate_mixer": {"type": "grouped_query", "kv_heads": 3}}, "kv_heads: 3 does not"),
        (
            {"alternate_mixer": DELTA_NET, "alternate_layers": [True]},
            "leaves no layer with",
        ),
        (
            {"alternate_mixer": DELTA_NET, "shared_kv_layers": 1},
            "gated_delta_net has no keys",
        ),
        ({"attention": "linear", "shared_kv_layers": 1}, "attention linear has no keys to share"),
        (
            {"activation": "gelu", "feed_forward": Experts.Config(swiglu_limit=7.0)},
            "feed_forward.swiglu_limit: needs gated_mlp true and activation silu",
        ),
    ],
)
def test_models_whose_parts_do_not_fit(settings, message):
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**SIZES, num_hidden_layers=3, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_group": 3}, "n_group: 8 experts cannot be split into 3 groups"),
        ({"topk_group": 2}, "topk_group: 2 is above n_group 1"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is above 8, the number of experts"),
        ({"n_group": 8}, "num_experts_per_tok: 2 is above 1, the number of experts to choose"),
        ({"shared_expert_gate": True}, "shared_expert_gate: has no effect without shared_expert"),
    ],
)
def test_choices_that_cannot_be_made(settings, message):
    with pytest.raises(ValidationError, match=message):
        Experts.Config(**settings)
