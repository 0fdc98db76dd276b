"""How tensors correspond to parameters: fused ones, grouped ones, and their names in order."""

from collections.abc import Sequence

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rope_jax.checkpoints.weights import Row, Tensor, tensors_of

QKV = ("self_attn/q_proj/kernel", "self_attn/k_proj/kernel", "self_attn/v_proj/kernel")


def numbered(*shape: int) -> NDArray[np.float32]:
    """Return an array whose numbers are all different."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@st.composite
def fused(draw: st.DrawFn) -> Tensor:
    groups = draw(st.integers(1, 4))
    outputs = draw(st.lists(st.integers(1, 5).map(lambda n: n * groups), min_size=1, max_size=4))
    kernel = draw(st.booleans())
    paths = tuple(f"{i}/{'kernel' if kernel else 'bias'}" for i in range(len(outputs)))
    inputs = (draw(st.integers(1, 5)),) if kernel else ()
    return Tensor(Row("fused", paths, groups), None, [(count, *inputs) for count in outputs])


@given(fused())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_joining_undoes_splitting(tensor: Tensor) -> None:
    array = numbered(*tensor.shape)
    parts = tensor.split(array)
    assert [part.shape for part in parts] == [(*inputs, out) for out, *inputs in tensor.shapes]
    joined = tensor.join(parts)
    assert joined.flags.c_contiguous  # safetensors writes other views wrongly, without an error
    np.testing.assert_array_equal(joined, array)
    for part, again in zip(parts, tensor.split(joined), strict=True):
        np.testing.assert_array_equal(part, again)


def test_a_single_kernel_is_a_transposed_weight() -> None:
    weight = numbered(3, 5)
    tensor = Tensor(Row("w", ("o_proj/kernel",)), None, [weight.shape])
    (kernel,) = tensor.split(weight)
    np.testing.assert_array_equal(kernel, weight.T)
    joined = tensor.join([kernel])
    assert joined.flags.c_contiguous
    np.testing.assert_array_equal(joined, weight)


def test_embeddings_and_norms_are_left_as_they_are() -> None:
    for path, array in (("embed_tokens/embedding", numbered(7, 4)), ("norm/scale", numbered(4))):
        (part,) = Tensor(Row("t", (path,)), None, [array.shape]).split(array)
        np.testing.assert_array_equal(part, array)


def test_phi3s_qkv_has_all_queries_then_all_keys_then_all_values() -> None:
    """As in Phi3Attention.forward: 4 query heads and 2 key-value heads of 3 dimensions."""
    heads, kv_heads, head_dim, inputs = 4, 2, 3, 5
    tensor = numbered((heads + 2 * kv_heads) * head_dim, inputs)
    shapes = [(outputs, inputs) for outputs in (12, 6, 6)]
    q, k, v = Tensor(Row("qkv", QKV), None, shapes).split(tensor)
    query_end = heads * head_dim
    key_end = query_end + kv_heads * head_dim
    np.testing.assert_array_equal(q.T, tensor[:query_end])
    np.testing.assert_array_equal(k.T, tensor[query_end:key_end])
    np.testing.assert_array_equal(v.T, tensor[key_end:])


@pytest.mark.parametrize("inputs", [(5,), ()], ids=["weight", "bias"])
def test_gpt_neox_has_query_key_and_value_of_one_head_after_the_other(
    inputs: tuple[int, ...],
) -> None:
    """As in GPTNeoXAttention.forward: view [heads, 3·head_dim], then chunk the last axis by 3."""
    heads, head_dim = 4, 3
    tensor = numbered(heads * 3 * head_dim, *inputs)
    kind = "kernel" if inputs else "bias"
    row = Row("qkv", tuple(f"{name}/{kind}" for name in ("q", "k", "v")), groups=heads)
    parts = Tensor(row, None, [(heads * head_dim, *inputs)] * 3).split(tensor)
    for which, part in enumerate(parts):
        for head in range(heads):
            for dim in range(head_dim):
                np.testing.assert_array_equal(
                    part[..., head * head_dim + dim],
                    tensor[head * 3 * head_dim + which * head_dim + dim],
                )


def rows() -> Sequence[Row]:
    return (
        Row("model.embed_tokens.weight", ("embed_tokens/embedding",)),
        Row("model.layers.{}.input_layernorm.weight", ("layers/input_layernorm/scale",)),
        Row("model.layers.{}.self_attn.qkv_proj.weight", tuple(f"layers/{p}" for p in QKV)),
        Row("model.layers.{}.self_attn.qkv_proj.bias", ("layers/self_attn/q_proj/bias",)),
        Row("model.norm.weight", ("norm/scale",)),
    )


def parameters() -> dict:
    """Two layers of width 6: 4 query heads and 2 key-value heads of 3 dimensions; no biases."""
    widths = {QKV[0]: 12, QKV[1]: 6, QKV[2]: 6}
    return unflatten_dict(
        {
            "embed_tokens/embedding": np.zeros((9, 6)),
            "layers/input_layernorm/scale": np.zeros((2, 6)),
            "norm/scale": np.zeros(6),
        }
        | {f"layers/{path}": np.zeros((2, 6, width)) for path, width in widths.items()},
        sep="/",
    )


def test_names_and_shapes_by_hand() -> None:
    tensors = tensors_of(rows(), parameters())
    assert [(name, tensor.shape) for name, tensor in tensors.items()] == [
        ("model.embed_tokens.weight", (9, 6)),
        ("model.norm.weight", (6,)),
        ("model.layers.0.input_layernorm.weight", (6,)),
        ("model.layers.0.self_attn.qkv_proj.weight", (24, 6)),
        ("model.layers.1.input_layernorm.weight", (6,)),
        ("model.layers.1.self_attn.qkv_proj.weight", (24, 6)),
    ]
    found = tensors["model.layers.1.self_attn.qkv_proj.weight"]
    assert found == Tensor(rows()[2], 1, [(12, 6), (6, 6), (6, 6)])


def test_a_parameter_without_a_tensor_is_named() -> None:
    with pytest.raises(ValueError, match=r"^the parameter norm/scale has no tensor in this family"):
        tensors_of(rows()[:-1], parameters())
