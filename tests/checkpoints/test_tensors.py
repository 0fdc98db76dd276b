"""How tensors correspond to parameters: fused ones, grouped ones, and their names in order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rope_jax.checkpoints.tensors import Row, Tensor, tensors_of

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
    experts = draw(st.sampled_from([(), (1,), (3,)]))
    shapes = [(*experts, count, *inputs) for count in outputs]
    return Tensor(Row("fused", paths, groups), paths, (), shapes)


@given(fused())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_joining_undoes_splitting(tensor: Tensor) -> None:
    array = numbered(*tensor.shape)
    parts = tensor.split(array)
    is_kernel = tensor.paths[0].endswith("kernel")
    transposed = [(*s[:-2], s[-1], s[-2]) if is_kernel else s for s in tensor.shapes]
    assert [part.shape for part in parts] == transposed
    joined = tensor.join(parts)
    assert joined.flags.c_contiguous  # safetensors writes other views wrongly, without an error
    np.testing.assert_array_equal(joined, array)


ROWS = (
    Row("model.embed_tokens.weight", ("embed_tokens/embedding",)),
    Row("model.layers.{}.input_layernorm.weight", ("layers/input_layernorm/scale",)),
    Row("model.layers.{}.self_attn.qkv_proj.weight", tuple(f"layers/{p}" for p in QKV)),
    Row("model.layers.{}.self_attn.qkv_proj.bias", ("layers/self_attn/q_proj/bias",)),
    Row("model.norm.weight", ("norm/scale",)),
)
# Two layers of width 6: 4 query heads and 2 key-value heads of 3 dimensions; no biases.
SHAPES = {
    "embed_tokens/embedding": (9, 6),
    "layers/input_layernorm/scale": (2, 6),
    "norm/scale": (6,),
    **{f"layers/{p}": (2, 6, n) for p, n in zip(QKV, (12, 6, 6), strict=True)},
}
LAYERS = {"layers": [0, 1]}


def test_names_and_shapes_by_hand() -> None:
    tensors = tensors_of(ROWS, SHAPES, LAYERS)
    assert [(name, tensor.shape) for name, tensor in tensors.items()] == [
        ("model.embed_tokens.weight", (9, 6)),
        ("model.norm.weight", (6,)),
        ("model.layers.0.input_layernorm.weight", (6,)),
        ("model.layers.0.self_attn.qkv_proj.weight", (24, 6)),
        ("model.layers.1.input_layernorm.weight", (6,)),
        ("model.layers.1.self_attn.qkv_proj.weight", (24, 6)),
    ]
    last = tensors["model.layers.1.self_attn.qkv_proj.weight"]
    assert last == Tensor(ROWS[2], ROWS[2].paths, (1,), [(12, 6), (6, 6), (6, 6)])
    by_head = Row("model.layers.{}.self_attn.norms.{}.weight", ("layers/norms/scale",))
    found = tensors_of([by_head], {"layers/norms/scale": (2, 3, 5)}, LAYERS)
    names = [
        f"model.layers.{layer}.self_attn.norms.{i}.weight" for layer in (0, 1) for i in (0, 1, 2)
    ]
    assert list(found) == names
    assert found[names[4]] == Tensor(by_head, by_head.paths, (1, 1), [(5,)])
    with pytest.raises(ValueError, match=r"^the parameter norm/scale has no tensor in this family"):
        tensors_of(ROWS[:-1], SHAPES, LAYERS)
