"""What llama.cpp can express of a layer's rotation: metadata of a GGUF file, and tensors.

It rotates pair i by b^(−2i/d) / (s·λ_i), and multiplies cos and sin by m. λ is a tensor that some
architectures read, m is `rope.scaling.attn_factor`. With type yarn, s is 1 for fast pairs: YaRN
over b, with a ramp whose ends are whole pairs, and cos and sin times 0.1 ln s + 1 besides. From its
source of autumn 2026: `llama_context::llama_context`, `load_hparams`, `rope_yarn`.
"""

import contextlib
import math
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64

from rope_jax.rope import RotaryGeometry, Scaling
from rope_jax.rope.strategies import YaRNScaling

Reads = Literal["rope_freqs", "rope_factors", "yarn_betas"]
"""What the code of some architectures reads: the tensor rope_freqs.weight; the tensors
rope_factors_long.weight and rope_factors_short.weight; the keys of YaRN's β."""
Keys = dict[str, str | int | float]

_NO_ROTATION = 1e30  # the divisor that llama.cpp's converter writes
_TOLERANCE = 1e-6  # relative; files have float32


class Rope(NamedTuple):
    """Metadata, without the architecture before their names, and tensors."""

    keys: Keys
    tensors: dict[str, Float32[np.ndarray, " pairs"]]


def express(geometry: RotaryGeometry, scaling: Scaling, reads: Collection[Reads]) -> Rope:
    """Return what makes llama.cpp rotate like a scaling, in keys alone where they suffice.

    reads: what the code of the architecture reads besides the keys that it reads for all.

    ValueError: neither keys nor tensors have a form for the scaling; the message says why.
    """
    plain = RotaryGeometry(geometry.rotary_dim, geometry.base, geometry.train_length)
    keys: Keys = {"rope.freq_base": float(plain.base), "rope.scaling.type": "none"}
    if scaling.length_dependent:
        if scaling.type != "longrope" or "rope_factors" not in reads:
            raise ValueError(f"{scaling.type} follows the text's length, which llama.cpp does not")
        # llama.cpp decides by the length of its context
        lengths = {"short": plain.train_length, "long": plain.train_length + 1}
        made = {name: scaling.frequencies(geometry, n) for name, n in lengths.items()}
        tensors = {f"rope_factors_{x}.weight": _divisors(plain, made[x].exact) for x in made}
        keys |= {"rope.scaling.type": "longrope"} | _length(plain)
        return Rope(keys | _factor(float(made["long"].attention_factor)), tensors)
    frequencies = scaling.frequencies(geometry)
    wanted, m = frequencies.exact, float(frequencies.attention_factor)
    for form, given, times in _forms(plain, scaling, wanted, reads):
        if np.allclose(given, wanted, rtol=_TOLERANCE, atol=0):
            return Rope(keys | form | _factor(m / times), {})
    if "rope_freqs" in reads:
        return Rope(keys | _factor(m), {"rope_freqs.weight": _divisors(plain, wanted)})
    raise ValueError(
        f"the frequencies of {scaling.type} are none that a base, a factor or YaRN gives, and "
        "llama.cpp reads rope_freqs.weight for other architectures only"
    )


def _forms(
    plain: RotaryGeometry,
    scaling: Scaling,
    wanted: Float64[np.ndarray, " pairs"],
    reads: Collection[Reads],
) -> Iterator[tuple[Keys, Float64[np.ndarray, " pairs"], float]]:
    """Yield keys that may give the frequencies, with those that they give, and their m."""
    first, last, pairs = float(wanted[0]), float(wanted[-1]), wanted.size
    bases = [float(plain.base)]
    if pairs > 1 and first > last > 0:
        bases.append((first / last) ** (pairs / (pairs - 1)))
    for base in bases if first > 0 else ():
        s = 1 / first
        form: Keys = {"rope.freq_base": base}
        if abs(s - 1) > _TOLERANCE:
            form |= {"rope.scaling.type": "linear", "rope.scaling.factor": s}
        yield form, plain.inv_freq(base) / s, 1.0
    factor, names = scaling.extension_factor or 1.0, ("beta_fast", "beta_slow")
    betas = {x: getattr(scaling, x) for x in names if "yarn_betas" in reads and hasattr(scaling, x)}
    with contextlib.suppress(ValueError):  # there is no ramp
        theta = YaRNScaling(factor=factor, **betas).frequencies(plain).exact
        form = {"rope.scaling.type": "yarn", "rope.scaling.factor": factor, **_length(plain)}
        form |= {f"rope.scaling.yarn_{name}": value for name, value in betas.items()}
        yield form, theta, 0.1 * math.log(factor) + 1


def _length(plain: RotaryGeometry) -> Keys:
    return {"rope.scaling.original_context_length": plain.train_length}


def _factor(m: float) -> Keys:
    return {"rope.scaling.attn_factor": m} if abs(m - 1) > _TOLERANCE else {}


def _divisors(
    plain: RotaryGeometry, wanted: Float64[np.ndarray, " pairs"]
) -> Float32[np.ndarray, " pairs"]:
    """Return what the frequencies of the base are divided by."""
    rotates = wanted > 0
    divisors = plain.inv_freq() / np.where(rotates, wanted, 1)
    return np.where(rotates, divisors, _NO_ROTATION).astype(np.float32)
