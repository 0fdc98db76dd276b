"""Check on a GPU or TPU what tests on a CPU cannot: attention kernels and the accuracy of angles.

    make accelerator

Every attention backend that can run here is compared with `xla` in float32 on the same bfloat16
inputs, forward and backward, with one document per row and with several, with and without a sliding
window. cos and sin are compared with extended precision. Without an accelerator, the script says
that it checked nothing.

Shapes: B batch, T length, N heads, K key-value heads, H head dim.
"""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rope_jax.attention import BACKENDS, check_backend
from rope_jax.config.model import AttentionName, ModelConfig
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling

B, T, N, K, H = 2, 1024, 8, 2, 64
# bfloat16 has 8 bits of precision, and outputs here are means of some hundred numbers of size 1.
_TOLERANCE = 3e-2
_ANGLE_TOLERANCE = 1e-6


def inputs() -> tuple[
    Float[Array, "B T N H"], Float[Array, "B T K H"], Float[Array, "B T K H"], Int[Array, "B T"]
]:
    """Draw q, k and v in bfloat16, and segment ids of documents of some 200 tokens."""
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(rng.standard_normal((B, T, heads, H)), jnp.bfloat16) for heads in (N, K, K)
    )
    return q, k, v, jnp.asarray(np.cumsum(rng.random((B, T)) < 0.005, axis=1), jnp.int32)


def compare(name: AttentionName, segments: bool, window: int | None) -> float:
    """Return the largest relative difference from `xla` in float32, of outputs and gradients.

    Relative to the largest number of each array: gradients of keys are sums over all queries.
    """
    q, k, v, drawn_ids = inputs()
    segment_ids = drawn_ids if segments else None

    def output_and_gradients(backend: AttentionName, *qkv: Array) -> list[Array]:
        def attend(q: Array, k: Array, v: Array) -> Array:
            return BACKENDS[backend](q, k, v, segment_ids, window)

        out, pull_back = jax.vjp(attend, *qkv)
        return [out, *pull_back(jnp.ones_like(out))]

    found = jax.jit(lambda *qkv: output_and_gradients(name, *qkv))(q, k, v)
    exact = (x.astype(jnp.float32) for x in (q, k, v))
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(lambda *qkv: output_and_gradients("xla", *qkv))(*exact)
    return max(
        float(jnp.abs(a.astype(jnp.float32) - b).max() / jnp.abs(b).max())
        for a, b in zip(found, expected, strict=True)
    )


def worst_angle() -> float:
    """Return the largest error of cos and sin at positions up to 10^7."""
    geometry = RotaryGeometry(64, 1e4, 4096)
    positions = np.random.default_rng(1).integers(0, 10**7, 4096).astype(np.int32)
    frequencies = parse_scaling({"type": "none"}).frequencies(geometry)
    cos, sin = (np.asarray(x) for x in jax.jit(cos_sin)(frequencies, positions))
    angles = positions[:, None].astype(np.longdouble) * geometry.inv_freq().astype(np.longdouble)
    return float(max(np.abs(cos - np.cos(angles)).max(), np.abs(sin - np.sin(angles)).max()))


def main() -> None:
    device = jax.devices()[0]
    if device.platform == "cpu":
        print("nothing was checked: there is no accelerator here, only a CPU")
        return
    print(f"on {device.device_kind} ({device.platform}), jax {jax.__version__}")
    failed = False
    error = worst_angle()
    failed |= not error <= _ANGLE_TOLERANCE
    print(f"cos and sin up to position 10^7: largest error {error:.2g}")
    for name in BACKENDS:
        try:
            check_backend(ModelConfig(attention=name, dtype="bfloat16", head_dim=H))
        except UserError as reason:
            print(f"{name}, not checked: {reason}")
            continue
        for segments, window in itertools.product((False, True), (None, 100)):
            error = compare(name, segments, window)
            failed |= not error <= _TOLERANCE
            rows = "several documents per row" if segments else "one document per row"
            sliding = f"sliding window {window}" if window else "no sliding window"
            print(f"{name}, {rows}, {sliding}: relative difference {error:.2g}")
    if failed:
        sys.exit(
            "failed: an error above exceeds its tolerance "
            f"({_ANGLE_TOLERANCE:g} for angles, {_TOLERANCE:g} for backends)"
        )


if __name__ == "__main__":
    main()
