"""`fire`: a bias that a small network computes from the distance over the query's position."""

import math
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from pydantic import Field

from rope_jax.positions.encodings.base import Encoding, Positions, Sizes
from rope_jax.positions.interaction import Block, Logits, Params, dot_product
from rope_jax.rope.settings import Whole

# Hidden units that the backward pass of `mlp` computes at once: enough for matrix products, few
# enough for the processor's cache.
_UNITS = 4
_HIDDEN = 32
_INITIAL_C = 0.1
# The authors' 512 is a quarter of the window of 2,048 tokens that they train with.
_THRESHOLD_SHARE = 4


class FIREEncoding(Encoding):
    """FIRE: logits q·k/√H + MLP(ψ(i − j)/ψ(max(T, p))), ψ(x) = ln(|c·x| + 1), at position p = i.

    The MLP has 32 hidden units with ReLU and one output per head. c and T = |multiplier·threshold|
    are trained. As in the authors' code, c is 0.1 and the multiplier 1 initially, the MLP is
    initialized as PyTorch does, and 1e-6 is added to the denominator. Layers share nothing (the
    paper's FIRE, not FIRE-S). The MLP's last bias is left out, since softmax ignores it.

    In a packed window, i − j counts tokens and p is the position in the query's own document.
    """

    source: ClassVar[str] = "Li et al., arXiv 2310.04418"
    uses_positions: ClassVar[bool] = True
    uses_distances: ClassVar[bool] = True
    type: Literal["fire"] = "fire"
    threshold: Annotated[int, Whole] | None = Field(
        None,
        gt=0,
        lt=2**31,
        description="initial T, in tokens; null: a quarter of the longest trained window",
    )

    def resolved(self, longest: int) -> "FIREEncoding":
        if self.threshold:
            return self
        return self.model_copy(update={"threshold": max(1, longest // _THRESHOLD_SHARE)})

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {
            "c": (sizes.layers,),
            "multiplier": (sizes.layers,),
            "hidden_kernel": (sizes.layers, _HIDDEN),
            "hidden_bias": (sizes.layers, _HIDDEN),
            "output_kernel": (sizes.layers, _HIDDEN, sizes.heads),
        }

    def initial(self, sizes: Sizes, key: Key[Array, ""]) -> Params:
        shapes = self.parameter_shapes(sizes)
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        inputs = {"hidden_kernel": 1, "hidden_bias": 1, "output_kernel": _HIDDEN}
        limits = {name: 1 / math.sqrt(count) for name, count in inputs.items()}
        drawn = {
            name: jax.random.uniform(keys[name], shapes[name], minval=-limit, maxval=limit)
            for name, limit in limits.items()
        }
        ones = jnp.ones(shapes["c"], jnp.float32)
        return {"c": _INITIAL_C * ones, "multiplier": ones} | drawn

    def layer_params(
        self, parameters: Params, positions: Positions, pairs: int, heads: int
    ) -> Params:
        if self.threshold is None:
            raise ValueError("threshold: is not known yet; give it, or call `resolved` first")
        threshold = jnp.abs(parameters["multiplier"] * self.threshold)
        params = {name: x for name, x in parameters.items() if name != "multiplier"}
        # float32 holds positions exactly up to 2^24.
        position = jnp.asarray(positions, jnp.float32)[None]
        return params | {"threshold": threshold, "position": position}

    @staticmethod
    def scores(params: Params, block: Block) -> Logits:
        q, k, index = block
        distance = jnp.maximum(index.query[:, None] - index.key[None, :], 0).astype(jnp.float32)
        # indices below 0, before the window, are padding
        position = jnp.take(params["position"], jnp.maximum(index.query, 0), axis=-1, mode="clip")
        ratio = _psi(params, distance)[None] / _denominator(params, position)[..., None]

        bias = mlp(ratio, params["hidden_kernel"], params["hidden_bias"], params["output_kernel"])
        bias = bias.reshape(bias.shape[0], k.shape[1], q.shape[2], *bias.shape[2:])
        return dot_product(params, block) + bias

    @staticmethod
    def as_curve(
        params: Params, keys: int
    ) -> tuple[
        Float[Array, " keys"], Float[Array, "#B S"], Float[Array, " W"], Float[Array, "N _ 2"]
    ]:
        """Return ψ by distance, 1/ψ(max(T, p)) by position, and the MLP as a function of their
        product x.

        It is linear between its knots, one for each hidden unit: beyond m of them, head n's is
        lines[n, m, 0] + lines[n, m, 1]·x. At a knot, its derivative is that of the line after it.
        """
        kernel, shift = params["hidden_kernel"], params["hidden_bias"]
        bends = jax.lax.stop_gradient(jnp.where(kernel == 0, np.inf, -shift / kernel))
        order = jnp.argsort(bends)
        begun = jnp.argsort(order)[:, None] < jnp.arange(kernel.size + 1)[None]  # [W, W + 1]
        rising, constant = (kernel > 0)[:, None], (kernel == 0)[:, None] & (shift > 0)[:, None]
        on = jnp.where(rising, begun, ~begun & (kernel < 0)[:, None]) | constant
        each = jnp.stack([shift, kernel], axis=-1)  # its start and its slope
        lines = jnp.einsum("wm,wn,wx->nmx", on.astype(jnp.float32), params["output_kernel"], each)
        psi = _psi(params, jnp.arange(keys, dtype=jnp.float32))
        return psi, 1 / _denominator(params, params["position"]), bends[order], lines


def _psi(params: Params, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.log1p(jnp.abs(params["c"] * x))


def _denominator(params: Params, position: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return _psi(params, jnp.maximum(position, params["threshold"])) + 1e-6


@jax.custom_vjp
def mlp(
    x: Float[Array, "#B T S"],
    kernel: Float[Array, " W"],
    shift: Float[Array, " W"],
    outputs: Float[Array, "W N"],
) -> Float[Array, "#B N T S"]:
    """Return Σ_w outputs[w] · relu(kernel[w]·x + shift[w]) for a multiple of 4 hidden units W.

    One unit after another is added, so there is no array [B, T, S, W]. The backward pass is written
    out as matrix products: on a CPU, automatic differentiation takes about 40 times as long.
    """

    def add(sum_so_far: Array, unit: tuple[Array, Array, Array]) -> tuple[Array, None]:
        kernel, shift, outputs = unit
        hidden = jax.nn.relu(kernel * x + shift)[:, None]
        return sum_so_far + outputs.reshape(1, -1, 1, 1) * hidden, None

    nothing = jnp.zeros((x.shape[0], outputs.shape[1], *x.shape[1:]), jnp.float32)
    return jax.lax.scan(add, nothing, (kernel, shift, outputs), unroll=8)[0]


def _forward(x: Array, kernel: Array, shift: Array, outputs: Array) -> tuple[Array, tuple]:
    return mlp(x, kernel, shift, outputs), (x, kernel, shift, outputs)


def _backward(saved: tuple, dout: Float[Array, "B N T S"]) -> tuple[Array, ...]:
    x, *weights = saved
    pairs = x.reshape(-1)
    dout = dout.swapaxes(0, 1).reshape(dout.shape[1], -1)

    def units(dx: Array, weights: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, ...]]:
        kernel, shift, outputs = weights
        before = kernel[:, None] * pairs[None] + shift[:, None]
        doutputs = jax.nn.relu(before) @ dout.T
        dbefore = jnp.where(before > 0, outputs @ dout, np.float32(0))
        ones = jnp.ones_like(pairs)  # a product with ones is faster than a sum
        return dx + kernel @ dbefore, (dbefore @ pairs, dbefore @ ones, doutputs)

    grouped = [x.reshape(-1, _UNITS, *x.shape[1:]) for x in weights]
    dx, dweights = jax.lax.scan(units, jnp.zeros_like(pairs), tuple(grouped))
    return dx.reshape(x.shape), *(dw.reshape(-1, *dw.shape[2:]) for dw in dweights)


mlp.defvjp(_forward, _backward)
