"""Arrays for the kernels, the instruction sets to try, and the gradients of what they compute.

One instruction set, the best that this processor has, is tried at all sizes, the others at few. The
programs are the same, so they are compiled once for all of them.
"""

import functools

import jax
import ml_dtypes
import numpy as np

EACH = ["generic", "avx2", "avx512"]
EACH_ROUNDED = [*EACH, "avx512_bf16"]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def cases(sizes, few, sets=EACH):
    """All sizes for the best instruction set, and the numbers in `few` of them for the others."""
    others = [(name, sizes[number]) for name in sets for number in few]
    return [("best", size) for size in sizes] + others


@functools.partial(jax.jit, static_argnums=0)
def along(function, *arguments):
    """Return function(*arguments[:-1]), and its gradients along the last argument."""
    y, pull_back = jax.vjp(function, *arguments[:-1])
    return y, *pull_back(arguments[-1])


def as_bfloat16(x):
    """The nearest numbers of bfloat16, in float64."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def silu_and_slope(x):
    """silu(x) and its derivative, in float64."""
    sigmoid = 0.5 * (1 + np.tanh(x / 2))
    return x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))


def feed_forward(x, w_gate, w_up, w_down, dy, rounded=np.float64):
    """(silu(x·w_gate) · (x·w_up))·w_down in float64, and its gradients along dy.

    rounded: of the factors of every product.
    """

    def product(a, b):
        return rounded(np.asarray(a)) @ rounded(np.asarray(b))

    gate, up = product(x, w_gate), product(x, w_up)
    silu, slope = silu_and_slope(gate)
    hidden, dhidden = silu * up, product(dy, w_down.T)
    dgate, dup = dhidden * up * slope, dhidden * silu
    dx = product(dgate, w_gate.T) + product(dup, w_up.T)
    gradients = dx, product(x.T, dgate), product(x.T, dup), product(hidden.T, dy)
    return product(hidden, w_down), *gradients
