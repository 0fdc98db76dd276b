"""Check on a GPU or TPU what the tests cannot check without one: attention's kernels, exact angles.

    make accelerator

Every backend that can run here is compared with `xla` in float32 on the same bfloat16 inputs,
forward and backward, with one document a row, several, and a sliding window; cos and sin are
compared with float64. Where there is no accelerator it says so, and has checked nothing.
"""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.attention import BACKENDS, check_backend
from rope_jax.config.model import AttentionName, ModelConfig
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling

B, T, N, K, H = 2, 1024, 8, 2, 64
# bfloat16 has 8 bits; its outputs here are means of some hundred numbers of size 1.
_TOLERANCE = 3e-2


def inputs() -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """q, k, v in bfloat16, and documents of some 200 tokens."""
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(rng.standard_normal((B, T, heads, H)), jnp.bfloat16) for heads in (N, K, K)
    )
    return q, k, v, jnp.asarray(np.cumsum(rng.random((B, T)) < 0.005, axis=1), jnp.int32)


def compare(name: AttentionName, segments: bool, window: int | None) -> float:
    """The largest difference from `xla` in float32, of outputs and gradients."""
    q, k, v, ids = inputs()
    given = ids if segments else None

    def both(backend: AttentionName, *x: jax.Array) -> list[jax.Array]:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return BACKENDS[backend](q, k, v, given, window)

        out, pull = jax.vjp(attend, *x)
        return [out, *pull(jnp.ones_like(out))]

    found = jax.jit(lambda *x: both(name, *x))(q, k, v)
    exact = (x.astype(jnp.float32) for x in (q, k, v))
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(lambda *x: both("xla", *x))(*exact)
    # of each array's own size: gradients of keys are sums over all queries
    return max(
        float(jnp.abs(a.astype(jnp.float32) - b).max() / jnp.abs(b).max())
        for a, b in zip(found, wanted, strict=True)
    )


def worst_angle() -> float:
    """The largest error of cos and sin at positions to 10^7."""
    geometry = RotaryGeometry(64, 1e4, 4096)
    positions = np.random.default_rng(1).integers(0, 10**7, 4096).astype(np.int32)
    frequencies = parse_scaling({"type": "none"}).frequencies(geometry)
    cos, sin = (np.asarray(x) for x in jax.jit(cos_sin)(frequencies, positions))
    angles = positions[:, None].astype(np.longdouble) * geometry.inv_freq().astype(np.longdouble)
    return float(max(np.abs(cos - np.cos(angles)).max(), np.abs(sin - np.sin(angles)).max()))


def main() -> None:
    device = jax.devices()[0]
    if device.platform == "cpu":
        print("there is no accelerator here, only a CPU: nothing was checked")
        return
    print(f"on {device.device_kind} ({device.platform}), jax {jax.__version__}")
    failed = False
    error = worst_angle()
    failed |= not error <= 1e-6
    print(f"cos and sin to position 10^7: off by at most {error:.2g}")
    for name in BACKENDS:
        try:
            check_backend(ModelConfig(attention=name, dtype="bfloat16", head_dim=H))
        except UserError as reason:
            print(f"{name}: not checked: {reason}")
            continue
        for segments, window in itertools.product((False, True), (None, 100)):
            error = compare(name, segments, window)
            failed |= not error <= _TOLERANCE
            what = "several documents" if segments else "one document"
            print(f"{name}, {what}, window {window}: relative difference {error:.2g}")
    if failed:
        sys.exit("a difference is larger than it may be")


if __name__ == "__main__":
    main()
