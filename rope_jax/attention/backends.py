"""The attention backends by name, what each can do, and what it needs.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, R after they are turned, V that of values. An axis marked # may have size 1.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.attention.blockwise import banded_blockwise, blockwise_attention
from rope_jax.attention.cpu import banded_cpu, cpu_attention
from rope_jax.attention.cudnn import cudnn_attention
from rope_jax.attention.linear import linear_attention
from rope_jax.attention.rounding import AnyAttention, in_bfloat16
from rope_jax.attention.whole import whole_attention
from rope_jax.attention.xla import xla_attention
from rope_jax.config.model import AttentionName, ModelConfig
from rope_jax.devices.collectives import ALONE, Collectives
from rope_jax.errors import UserError
from rope_jax.kernels.loading import load_kernels
from rope_jax.positions.encodings import Encoding
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.scores import capped
from rope_jax.positions.toeplitz import plus_by_distance
from rope_jax.positions.turning import Turn
from rope_jax.positions.visible import Visible
from rope_jax.positions.zigzag import ZigZag
from rope_jax.rope.geometry import Layout

# attention(queries, keys, values, documents, sliding_window, part) of one kind of kernel: causal,
# softmax of dot products over √H, within documents and the window if these are given. The queries
# are the last T tokens, or those of a device that shares the window with others.
Attention = Callable[
    [
        Float[Array, "B T N H"],
        Float[Array, "B S K H"],
        Float[Array, "B S K V"],
        Int[Array, "B S"] | None,
        int | None,
        ZigZag | None,
    ],
    Float[Array, "B T N V"],
]
# The same for several bands, and for scores other than dot products.
Interacting = Callable[
    [
        tuple[Float[Array, "B T N H"], ...],
        tuple[Float[Array, "B S K H"], ...],
        Float[Array, "B S K V"],
        Int[Array, "B S"] | None,
        Interaction,
        Any,
        ZigZag | None,
    ],
    Float[Array, "B T N V"],
]


def _splash(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
    part: ZigZag | None = None,
) -> Float[Array, "B T N H"]:
    from rope_jax.attention.splash import splash_attention  # slow to import, TPU only

    return splash_attention(q, k, v, segment_ids, sliding_window, part)


BACKENDS: dict[AttentionName, Attention] = {
    "xla": xla_attention,
    "blockwise": blockwise_attention,
    "cpu": cpu_attention,
    "cudnn": cudnn_attention,
    "splash": _splash,
}
"""The attention functions, by the name that `model.attention` has for them."""


INTERACTING: dict[AttentionName, Interacting] = {
    "xla": whole_attention,
    "blockwise": banded_blockwise,
    "cpu": banded_cpu,
}


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    turns: tuple[Turn, ...],
    query_scale: Float[Array, "#B #S"],
    numbers: Any,
    segment_ids: Int[Array, "B S"] | None,
    bias: Float[Array, "#B N C"] | None = None,
    *,
    backend: AttentionName,
    encoding: Encoding,
    layout: Layout,
    visible: tuple[Visible, ...],
    sliding_window: int | None,
    softcap: float | None = None,
    rounded: bool = False,
    over: Collectives = ALONE,
) -> Float[Array, "B T N V"]:
    """Turn queries and keys, once for every band, and attend from each query to what it sees.

    Linear attention turns its features of queries and keys instead.

    The queries are the last T of the S tokens. Where devices share each window, q, k, v and what
    turns them are the S tokens of this device, and segment_ids has all tokens of the window; keys
    and values of the other devices are gathered.
    turns:       how far each band turns.
    query_scale: multiplies whole queries, after they are turned.
    numbers:     the layer's arrays of the encoding.
    bias:        added to the logits: by head, and distance from 0 to C − 1 and more; None: nothing.
    visible:     which keys each band holds.
    softcap:     c, which bounds the logits to c·tanh(logits/c) before the mask; None: nothing.
    rounded:     round the factors of the products of queries, keys, values and weights to bfloat16;
                 linear attention ignores it.
    over:        the devices that share each window.
    """
    length = q.shape[1]

    def turn_queries(q: Float[Array, "B T N H"], turn: Turn) -> Float[Array, "B T N R"]:
        cos, sin = turn.query_cos[:, -length:], turn.query_sin[:, -length:]
        return encoding.turn_queries(numbers, q, cos, sin, layout)

    def turn_keys(k: Float[Array, "B S K H"], turn: Turn) -> Float[Array, "B S K R"]:
        return encoding.turn_keys(numbers, k, turn.key_cos, turn.key_sin, layout)

    if backend == "linear":
        (turn,) = turns
        of_queries, of_keys = (functools.partial(f, turn=turn) for f in (turn_queries, turn_keys))
        return linear_attention(q, k, v, of_queries, of_keys, segment_ids)
    turned = []
    for turn in turns:
        scale = query_scale[:, -length:, None]
        if turn.query_scale is not None:
            scale = scale * turn.query_scale[:, -length:]
        turned_keys = over.all_tokens(turn_keys(k, turn), 1)
        turned.append((_scaled(turn_queries(q, turn), scale), turned_keys))
    v = over.all_tokens(v, 1)
    scores = encoding.scores
    if bias is not None:  # only beside plain dot products, see `check_map`
        scores, numbers = plus_by_distance, {"by_distance": bias}
    if softcap is not None:
        scores, numbers = capped(scores), numbers | {"softcap": jnp.float32(softcap)}
    interaction = Interaction(visible, scores, encoding.values)
    if interaction.is_plain:
        ((query, key),) = turned
        (band,) = interaction.within(sliding_window).visible
        attention = _rounding(BACKENDS[backend], backend) if rounded else BACKENDS[backend]
        return attention(query, key, v, segment_ids, band.beyond, over.part)
    queries, keys = zip(*turned, strict=True)
    interaction = interaction.within(sliding_window)
    banded = _rounding(INTERACTING[backend], backend) if rounded else INTERACTING[backend]
    return banded(queries, keys, v, segment_ids, interaction, numbers, over.part)


def _rounding(attention: AnyAttention, backend: AttentionName) -> AnyAttention:
    """Return a backend's attention with factors rounded to bfloat16."""
    # The kernel for CPUs rounds what it copies. Rounded by XLA, a step took 3 to 14% longer.
    if backend == "cpu":
        return functools.partial(attention, rounded=True)
    return in_bfloat16(attention)


def _scaled(q: Float[Array, "B T N H"], scale: Float[Array, "#B #T #N"]) -> Float[Array, "B T N H"]:
    """Scale queries in float32: in bfloat16 the scale itself would be off by up to 0.4%."""
    return (q.astype(jnp.float32) * scale[..., None]).astype(q.dtype)


def choose_backend(
    model: ModelConfig, platform: str | None = None, otherwise: AttentionName = "xla"
) -> ModelConfig:
    """Return a model's config with a backend in place of `auto`: cpu where that can run.

    platform: as in `check_backend`. otherwise: the backend where it cannot.
    """
    if model.attention != "auto":
        return model
    on_cpu = model.model_copy(update={"attention": "cpu"})
    if _obstacle(on_cpu, platform or jax.default_backend()) is None:
        return on_cpu
    return model.model_copy(update={"attention": otherwise})


def check_backend(model: ModelConfig, platform: str | None = None) -> None:
    """Raise UserError if the model's backend cannot run; another is never substituted.

    platform: "cpu", "tpu" or "gpu"; None: that of this machine.
    """
    reason = _obstacle(model, platform or jax.default_backend())
    if reason:
        raise UserError(
            f"model.attention: {model.attention} {reason}; blockwise and xla run everywhere"
        )


def _obstacle(model: ModelConfig, platform: str) -> str | None:
    """Return why the model's backend cannot run on a platform, or None if it can."""
    if model.attention == "cpu":
        if platform != "cpu":
            return f"needs a CPU, but the platform is {platform}"
        if load_kernels() is None:
            return "was not compiled; install rope-jax again where there is a C++ compiler"
    if model.attention == "splash" and platform != "tpu":
        return f"needs a TPU, but the platform is {platform}"
    if model.attention == "cudnn":
        if platform != "gpu" or "rocm" in jax.devices()[0].client.platform_version:
            return f"needs an NVIDIA GPU, but the platform is {platform}"
        if model.dtype == "float32" and model.product_dtype != "bfloat16":
            return (
                "computes in 16 bits, but model.dtype is float32; set model.dtype=bfloat16 or "
                "model.product_dtype=bfloat16"
            )
        if model.heads_width % 8 or model.heads_width > 256:
            return (
                f"needs a head width that is a multiple of 8, at most 256, not {model.heads_width}"
            )
    return None
