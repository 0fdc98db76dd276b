"""Where a fit starts: the numbers of a scaling and a map, with axes for all that is learned.

Shapes: l layers or 1, h heads or 1, k key-value heads or 1, F far bands, pairs d/2; n is the
longest length that is fitted.
"""

import math
from typing import Any

import numpy as np

from rope_jax.config.fit import OF_FAR, FitConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.positions.mapping import FittedParams
from rope_jax.positions.maps import PositionMap
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.positions.maps.rerope import FarFrequencies, LeakyReRoPE, ReRoPE
from rope_jax.rope import Frequencies, Scaling
from rope_jax.rope.geometry import AnyArray
from rope_jax.rope.query_scales import ConstantScale, LogN, PowerScale
from rope_jax.rope.strategies import NoScaling

_STARTS = "rerope, leaky_rerope, far_frequencies or fitted"


def default_start(training: TrainingConfig, stage: int) -> dict[str, Any]:
    """Return the default start: ReRoPE from half the window, with the own scaling and logn."""
    window = max(1, training.stages[stage].seq_len // 2)
    scaling = training.stage_scaling(stage).model_dump(exclude_none=True)
    map_ = {"type": "rerope", "window": window}
    return {"query_scale": {"type": "logn"}} | scaling | {"name": "rerope", "map": map_}


def check_start(
    training: TrainingConfig, config: FitConfig, scaling: Scaling, map_: PositionMap | None
) -> None:
    """ValueError if something in `learn` cannot change the start."""
    of_far = [name for name in config.learn if name in (*OF_FAR, "bias")]
    takes_map = isinstance(map_, ReRoPE | LeakyReRoPE | FarFrequencies | FittedMap)
    if map_ is not None and not takes_map:
        raise ValueError(f"map {map_.type} cannot be fitted; start from {_STARTS}")
    if of_far and (map_ is None or (isinstance(map_, FittedMap) and not map_.borders)):
        raise ValueError(
            f"learn: {of_far[0]} belongs to far keys, of which only a map knows; start from "
            f"{_STARTS}, or learn frequencies"
        )
    if scaling.length_dependent:
        raise ValueError(
            f"{scaling.type} has other frequencies at every length; start from one with a fixed "
            "factor, or from explicit"
        )
    layers = training.rotary_layers
    if all(layer.scaling is not None for layer in layers.pattern):
        raise ValueError(
            "every layer of this model has a scaling of its own, which no start replaces"
        )
    scale = scaling.query_scale
    is_power = isinstance(scale, PowerScale) and scale.s == 1
    if "query_scale" in config.learn and not (
        is_power or isinstance(scale, LogN | ConstantScale | None)
    ):
        raise ValueError(
            f"learn: query_scale {scale.type} has another form than s·max(1, ln n / ln L)^p; start "
            "from logn, from power with s 1, from constant, or from none"
        )
    if "frequencies" in config.learn and layers.frequencies(scaling).inv_freq.max() == 0:
        raise ValueError("learn: frequencies: no pair rotates, and no λ changes a frequency of 0")


def axes(training: TrainingConfig, config: FitConfig) -> tuple[int, int, int]:
    """Return how many layers, heads and key-value heads have numbers of their own: all, or 1."""
    model = training.model
    if config.per == "head":
        return model.num_hidden_layers, model.num_attention_heads, model.kv_heads
    return model.num_hidden_layers if config.per == "layer" else 1, 1, 1


def exact(frequencies: Frequencies) -> np.ndarray:
    """Return θ [l, 1, pairs], float64."""
    return frequencies.exact[:, 0][:, None]


def numbers_at_start(
    training: TrainingConfig,
    config: FitConfig,
    scaling: Scaling,
    map_: PositionMap | None,
) -> tuple[FittedParams, tuple[int, ...]]:
    """Return the numbers of the start, with an axis for everything learned, and the borders."""
    learn, n, all_heads = set(config.learn), config.length[-1], training.model.num_attention_heads
    layers, heads, kv_heads = axes(training, config)
    frequencies = training.rotary_layers.frequencies(scaling)
    theta = exact(frequencies)
    numbers: dict[str, Any] = {}
    given = map_.params if isinstance(map_, FittedMap) else {}
    if "frequencies" in learn or "near_inv_freq" in given:
        numbers["near_inv_freq"] = _full(given.get("near_inv_freq", theta), layers, kv_heads)
    if "attention_factor" in learn or "attention_factor" in given:
        m = given.get("attention_factor", _with_heads(frequencies.attention_factor))
        numbers["attention_factor"] = _full(m, layers, kv_heads)
    if "query_scale" in learn or "scale_s" in given:
        scale = scaling.query_scale  # s·max(1, ln n / ln L)^p; s is 1 unless it is constant
        p = scale.p if isinstance(scale, PowerScale) else float(isinstance(scale, LogN))
        one = np.ones((1, 1))
        s = scale.s if isinstance(scale, ConstantScale) else 1.0
        numbers["scale_s"] = _full(given.get("scale_s", s * one), layers, heads)
        numbers["scale_p"] = _full(given.get("scale_p", p * one), layers, heads)
    borders: tuple[int, ...] = ()
    if map_ is not None:
        borders, far, phase, amplitude = _far(map_, theta, training, config, scaling)
        if borders:
            if "far_divisor" in learn and not far.any():
                raise ValueError(
                    f"learn: far_divisor: the far keys of {map_.type} have frequency 0, which no "
                    "divisor changes; learn far_frequencies, or start from leaky_rerope"
                )
            numbers["far_inv_freq"] = _full(far, layers, kv_heads, axis=1)
            # frequencies that differ between heads move the phase of every head
            phases = all_heads if far.shape[2] > 1 else heads
            numbers["far_phase"] = _full(phase, layers, phases, axis=1)
            if "far_amplitude" in learn or (amplitude != 1).any():
                numbers["far_amplitude"] = _full(amplitude, layers, heads, axis=1)
            if "bias" in learn or "bias" in given:
                # every head has its own row, learned or not: a bias is added by head
                bias = given.get("bias", np.zeros((1, 1, 1)))
                knots = 1 + max(1, math.ceil(math.log2(n / borders[0])))
                more = max(0, knots - bias.shape[-1])  # constant beyond the last one
                bias = np.pad(bias, ((0, 0), (0, 0), (0, more)), mode="edge")
                numbers["bias"] = _full(bias, layers, all_heads)
    return FittedParams(**numbers), borders


def log_factors_at_start(
    training: TrainingConfig, config: FitConfig, numbers: FittedParams
) -> np.ndarray | None:
    """Return ln λ [l, k, pairs] of the start, λ = θ/θ'; None unless frequencies are learned.

    θ: without a scaling. λ is 1 for pairs that do not rotate. ValueError: λ breaks bounds or order.
    """
    if "frequencies" not in config.learn:
        return None
    theta = exact(training.rotary_layers.frequencies(NoScaling()))
    theta, scaled = np.broadcast_arrays(theta, np.asarray(numbers.near_inv_freq))
    rotates = (theta != 0) & (scaled != 0)
    factors = np.divide(theta, scaled, out=np.ones_like(scaled), where=rotates)
    low, high = config.bounds
    # frequencies are rounded to float32
    if factors.min() < low * (1 - 1e-6) or factors.max() > high * (1 + 1e-6):
        raise ValueError(
            f"bounds: {list(config.bounds)} leaves out λ of the start, which are "
            f"{factors.min():g} to {factors.max():g}"
        )
    if config.ordered and (np.diff(factors, axis=-1) < -1e-6 * factors[..., :-1]).any():
        raise ValueError("ordered: the λ of the start are not in order")
    log_factors: np.ndarray = np.log(factors)
    return log_factors


def _far(
    map_: PositionMap,
    theta: np.ndarray,
    training: TrainingConfig,
    config: FitConfig,
    scaling: Scaling,
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray, np.ndarray]:
    """Return the borders, θ' [F, l, k, pairs], and φ and a [F, l, h, pairs] of a map."""
    if isinstance(map_, FittedMap):
        if not map_.borders:
            return (), theta, theta, theta
        phase = map_.params["far_phase"]
        amplitude = map_.params.get("far_amplitude", np.ones_like(phase))
        return map_.borders, map_.params["far_inv_freq"], phase, amplitude
    settings: Any = map_
    length = config.length[-1]
    w = int(settings.window)
    amplitude = np.ones_like(theta)
    if isinstance(map_, ReRoPE):
        far = np.zeros_like(theta)
    elif isinstance(map_, LeakyReRoPE):
        far = theta / float(settings.k)
    else:
        of_far = training.rotary_layers.frequencies(settings.far, length)
        far = np.broadcast_to(exact(of_far), np.broadcast_shapes(exact(of_far).shape, theta.shape))
        # the far scaling's m acts on queries and keys of far keys, and an amplitude on one of them
        of_near = training.rotary_layers.frequencies(scaling)
        ratio = _with_heads(of_far.attention_factor) / _with_heads(of_near.attention_factor)
        amplitude = np.broadcast_to((ratio**2)[..., None], far.shape)
    borders = [w]
    while config.far_bands == "octaves" and 2 * borders[-1] < length:
        borders.append(2 * borders[-1])
    phase = (theta - far) * w
    far, phase, amplitude = (np.stack([x] * len(borders)) for x in (far, phase, amplitude))
    return tuple(borders), far, phase, amplitude


def _with_heads(m: AnyArray) -> np.ndarray:
    """Return attention factors [l, 1] as [l, 1] in float64, without the axis of rows."""
    return np.asarray(m, np.float64)[:, 0][:, None]


def _full(x: np.ndarray, layers: int, heads: int, axis: int = 0) -> np.ndarray:
    """Repeat x along the axes of layers and heads, of which it may have one each."""
    shape = list(x.shape)
    shape[axis], shape[axis + 1] = max(layers, shape[axis]), max(heads, shape[axis + 1])
    return np.broadcast_to(x, shape).copy()
