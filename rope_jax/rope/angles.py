"""cos and sin of position × frequency, exact at every position.

The usual float32 product loses the angle: at position 10^7 cos is off by 0.35 (d 64, base 10^4).
Here a frequency is converted to fixed point, in units of 2^-32 turn, and multiplied by the position
in uint32 arithmetic, whose overflow drops whole turns. The device needs no float64.

Shapes: T length, pairs d/2 of the rotary dimension d, `batch` any leading axes, which broadcast.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Num, UInt32

from rope_jax.rope.geometry import Frequencies, check_integers, host_positions, is_on_host

# Integers only; the annotation admits other dtypes so that `cos_sin` can raise its ValueError.
Positions = Num[Array | np.ndarray, "*#batch T"] | Sequence[Any]

# 2^32/(2π), which converts radians to units of 2^-32 turn, as a sum of numbers of 12 bits: enough
# of them for any float32 frequency and its remainder.
_UNITS_PER_RADIAN = np.array(
    [683409408, 155840, 27.5703125, 0.0061187744140625, 3.152526915073395e-07], np.float32
)


def _split(x: Float32[Array, "..."]) -> list[Array]:
    """Split a float32 into two 12-bit ones with the same sum, by masking, which never rounds."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFFF000)
    high = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return [high, x - high]


def _fixed_point(
    inv_freq: Float32[Array, "*batch 1 pairs"], remainder: Float32[Array, "*batch 1 pairs"]
) -> tuple[UInt32[Array, "*batch 1 pairs"], Float32[Array, "*batch 1 pairs"]]:
    """inv_freq/(2π) mod 1 in units of 2^-32 turn: whole units and the remaining fraction.

    Products of 12 by 12 bits are exact in float32, with or without fused multiply-add.
    """
    whole = jnp.zeros(inv_freq.shape, jnp.uint32)
    fraction = jnp.zeros(inv_freq.shape, jnp.float32)
    for piece in _split(inv_freq) + _split(remainder):
        for constant in _UNITS_PER_RADIAN:
            units = piece * constant
            floor = jnp.floor(units)
            whole += jax.lax.bitcast_convert_type(floor.astype(jnp.int32), jnp.uint32)
            fraction += units - floor
    carry = jnp.floor(fraction)
    return whole + carry.astype(jnp.uint32), fraction - carry


@jax.custom_jvp
def _angles(inv_freq: Array, remainder: Array, positions: Array) -> Array:
    """Return positions × (inv_freq + remainder), reduced to [−π, π]; all three have equal rank."""
    whole, fraction = _fixed_point(inv_freq, remainder)
    # int32 first: a negative float does not convert to uint32, but two's complement wraps correctly
    low = (positions.astype(jnp.float32) * fraction).astype(jnp.int32)
    as_bits = lambda x: jax.lax.bitcast_convert_type(x, jnp.uint32)  # noqa: E731
    units = as_bits(positions) * whole + as_bits(low)
    signed = jax.lax.bitcast_convert_type(units, jnp.int32).astype(jnp.float32)
    # A non-finite frequency has no fixed-point form and would silently act as 0.
    invalid = jnp.where(jnp.isfinite(inv_freq + remainder), np.float32(0), np.float32(np.nan))
    return signed * np.float32(2 * np.pi / 2**32) + invalid


@_angles.defjvp
def _angles_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    positions = primals[2]
    d_inv_freq, d_remainder, _ = tangents
    # Integer arithmetic has no derivative; the angle's is position · d frequency.
    return _angles(*primals), positions.astype(jnp.float32) * (d_inv_freq + d_remainder)


def computed_once(x: Array) -> Array:
    """Return x, but keep XLA from recomputing it inside every operation that reads it.

    XLA would fuse cos and sin into the rotations, which took 600 of a training step's 830 ms on
    CPU. The CPU compiler drops optimization barriers before it fuses; a product with the identity,
    exact in float32, survives there.
    """

    def by_identity(x: Array) -> Array:
        return jnp.matmul(x, jnp.eye(x.shape[-1], dtype=x.dtype), precision="highest")

    return jax.lax.platform_dependent(x, cpu=by_identity, default=jax.lax.optimization_barrier)


def angles(frequencies: Frequencies, positions: Positions) -> Float32[Array, "*#batch T pairs"]:
    """Return p·θ_i for integer positions p, in radians, reduced to [−π, π]; see `cos_sin`."""
    inv_freq, remainder = (jnp.asarray(x, jnp.float32)[..., None, :] for x in frequencies[:2])
    if is_on_host(positions):
        positions = host_positions(positions)
    else:
        check_integers(jnp.asarray(positions).dtype)
    position = jnp.asarray(positions, jnp.int32)[..., :, None]
    rank = max(inv_freq.ndim, position.ndim)
    return _angles(*(_with_rank(x, rank) for x in (inv_freq, remainder, position)))


def _with_rank(x: Array, rank: int) -> Array:
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def cos_sin(
    frequencies: Frequencies, positions: Positions
) -> tuple[Float32[Array, "*#batch T pairs"], Float32[Array, "*#batch T pairs"]]:
    """Return m·cos(p·θ_i) and m·sin(p·θ_i) for integer positions p.

    frequencies: leaves [..., pairs] and [...], below π radians per token (faster ones alias slower
    ones). positions: integers [..., T], below 2^31 in absolute value. Leading axes broadcast,
    aligned on the right. m is `attention_factor`.

    Worst error of cos or sin before m, against float64, with frequencies made on the host (d 64,
    base 10^4): 3.1e-7 up to position 10^7, 3.6e-6 up to 2^31. Differentiable in inv_freq and
    attention_factor.

    ValueError: positions that are not integers, or host positions of 2^31 and beyond.
    """
    radians = angles(frequencies, positions)
    m = jnp.asarray(frequencies.attention_factor, jnp.float32)[..., None, None]
    m = _with_rank(m, radians.ndim)
    return computed_once(m * jnp.cos(radians)), computed_once(m * jnp.sin(radians))
