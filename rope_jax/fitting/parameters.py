"""What a fit starts from and learns: free parameters, their numbers, the strategy they give.

Shapes: l layers or 1, h heads or 1, k key-value heads or 1, F far bands, pairs d/2; n is the
longest length that is fitted.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rope_jax.config.entries import SweepEntry
from rope_jax.config.fit import OF_FAR, FitConfig
from rope_jax.config.strategy import Strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError, errors_in
from rope_jax.positions.mapping import FittedParams, fitted_rotary
from rope_jax.positions.maps import PositionMap
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.positions.maps.rerope import FarFrequencies, LeakyReRoPE, ReRoPE
from rope_jax.rope import Frequencies, Rotary, Scaling
from rope_jax.rope.geometry import AnyArray
from rope_jax.rope.query_scales import ConstantScale, LogN, PowerScale
from rope_jax.rope.strategies import ExplicitScaling, NoScaling, OverScaling

# Free parameters by name; all float32.
Free = dict[str, Array]
# The largest float32 below π, above which a frequency looks like a slower one.
_MAX_FREQUENCY = np.nextafter(np.float32(np.pi), np.float32(0))
# Factors without bounds of their own stay between 1e-4 and 1e4, so that none becomes 0 or infinite.
_UNBOUNDED = ("attention_factor", "query_scale_s", "far_amplitude")
_MAX_LOG = np.float32(math.log(1e4))
_STARTS = "rerope, leaky_rerope, far_frequencies or fitted"


@dataclass(frozen=True)
class Parameters:
    """The free parameters of a fit, and what they mean.

    Free parameters are 0 at the start, and of order 1: logarithms of factors, angles in radians,
    and for far frequencies the angle by which they have changed at distance n.
    """

    training: TrainingConfig
    config: FitConfig
    start: FittedParams
    """The numbers at the start, float64 on the host, with full axes [l, h] for what is learned."""
    scaling: Scaling
    """The scaling of the start, whose values hold where none are learned."""
    borders: tuple[int, ...]
    log_factors: Any
    """ln λ at the start [l, k, pairs] with λ = θ/θ'; None unless frequencies are learned."""

    def initial(self) -> Free:
        """Return the free parameters of the start."""
        layers, heads, kv_heads = _axes(self.training, self.config)
        pairs = (self.training.geometry.rotary_dim // 2,)
        of_heads, of_keys, bands = (layers, heads), (layers, kv_heads), (len(self.borders),)
        shapes = {
            "frequencies": of_keys + pairs,
            "attention_factor": of_keys,
            "query_scale_s": of_heads,
            "query_scale_p": of_heads,
            "far_frequencies": bands + of_keys + pairs,
            "far_phase": bands + of_heads + pairs,
            "far_amplitude": bands + of_heads + pairs,
            "bias": of_heads + (() if self.start.bias is None else self.start.bias.shape[2:]),
        }
        return {
            name: jnp.zeros(shape, jnp.float32)
            for name, shape in shapes.items()
            if name.removesuffix("_s").removesuffix("_p") in self.config.learn
        }

    @property
    def count(self) -> int:
        """How many numbers are learned."""
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.initial)))

    def numbers(self, free: Free) -> FittedParams:
        """Return the numbers that free parameters stand for; differentiable."""
        start: Any = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.start)
        learned: dict[str, Any] = {}
        if "frequencies" in free:
            inv_freq = start.near_inv_freq * jnp.exp(-free["frequencies"])
            learned["near_inv_freq"] = jnp.minimum(inv_freq, _MAX_FREQUENCY)
        if "attention_factor" in free:
            learned["attention_factor"] = start.attention_factor * jnp.exp(free["attention_factor"])
        if "query_scale_s" in free:
            learned["scale_s"] = start.scale_s * jnp.exp(free["query_scale_s"])
            learned["scale_p"] = start.scale_p + free["query_scale_p"]
        if self.borders:
            learned |= self._far(free, start, learned.get("near_inv_freq"))
        if "bias" in free:
            learned["bias"] = start.bias + free["bias"]
        numbers: FittedParams = start._replace(**learned)
        return numbers

    def _far(self, free: Free, start: Any, near_inv_freq: Array | None) -> dict[str, Array]:
        """The numbers of far keys. near_inv_freq: if frequencies are learned."""
        inv_freq = start.far_inv_freq
        if "far_frequencies" in free:
            changed = inv_freq + free["far_frequencies"] / np.float32(self.config.length[-1])
            inv_freq = jnp.clip(changed, -_MAX_FREQUENCY, _MAX_FREQUENCY)
        # What changed frequencies add to the angle at a border is taken back there, so that a step
        # in the angle comes only from the start and from a phase that is learned.
        added = inv_freq - start.far_inv_freq
        nearer = jnp.zeros_like(added[:1])
        if near_inv_freq is not None:
            nearer = nearer + (near_inv_freq - start.near_inv_freq)[None]
        nearer = jnp.concatenate([nearer, added[:-1]])
        borders = np.asarray(self.borders, np.float32)[:, None, None, None]
        taken_back = jnp.cumsum((nearer - added) * borders, axis=0)
        kv_heads, heads = taken_back.shape[2], start.far_phase.shape[2]
        if kv_heads not in (1, heads) and heads != 1:  # query heads share key-value heads
            taken_back = jnp.repeat(taken_back, heads // kv_heads, axis=2)
        phase = start.far_phase + taken_back
        if "far_phase" in free:
            phase = phase + free["far_phase"]
        learned = {"far_inv_freq": inv_freq, "far_phase": phase}
        if "far_amplitude" in free:
            learned["far_amplitude"] = start.far_amplitude * jnp.exp(free["far_amplitude"])
        return learned

    def projected(self, free: Free) -> Free:
        """Return the free parameters moved into the bounds."""
        free = {
            name: jnp.clip(x, -_MAX_LOG, _MAX_LOG) if name in _UNBOUNDED else x
            for name, x in free.items()
        }
        if "frequencies" in free:
            free["frequencies"] = self._projected_factors(free["frequencies"])
        return free

    def _projected_factors(self, changes: Array) -> Array:
        """Return changes of ln λ [l, k, pairs] that keep the bounds in all layers."""
        shared = tuple(axis for axis in (0, 1) if changes.shape[axis] == 1)
        start = self.log_factors
        low, high = (math.log(bound) for bound in self.config.bounds)
        lowest = (low - start).max(axis=shared, keepdims=True).astype(np.float32)
        highest = (high - start).min(axis=shared, keepdims=True).astype(np.float32)
        return jnp.clip(changes, lowest, highest)

    def rotary(self, free: Free, positions: Array | np.ndarray, seq_len: int) -> Rotary:
        """Return the model's argument for tokens at positions [#B, S]; differentiable."""
        layers = self.training.rotary_layers
        rotary = layers.rotary(self.scaling, np.asarray(positions), seq_len)
        return fitted_rotary(
            rotary,
            self.numbers(free),
            [band.mask for band in self._map(self.start).bands(0, 0)],
            jnp.asarray(positions),
            train_length=layers.geometry.train_length,
            seq_len=seq_len,
        )

    def _map(self, numbers: FittedParams) -> FittedMap:
        lists = {
            name: np.asarray(x, np.float64).tolist()
            for name, x in numbers._asdict().items()
            if x is not None
        }
        length = self.training.geometry.train_length
        return FittedMap(train_length=length, borders=self.borders, **lists)

    def strategy(self, free: Free, made_by: dict[str, Any] | None = None) -> Strategy:
        """Return the strategy that the free parameters give.

        Frequencies and m alone, at most by layer, are `explicit`, which transformers can read.
        """
        numbers: Any = jax.tree.map(np.asarray, self.numbers(free))
        made_by = made_by or {}
        layers, geometry = self.training.rotary_layers, self.training.geometry
        by_head = [x for x in (numbers.near_inv_freq, numbers.attention_factor) if x is not None]
        # a layer with a scaling of its own would not take an explicit one
        has_scaling = any(layer.scaling is not None for layer in layers.pattern)
        has_query_scale = numbers.scale_s is not None
        differs_by_head = any(x.shape[1] > 1 for x in by_head)
        # whose L, over trained frequencies, is the window
        is_over = isinstance(self.scaling, OverScaling) and self.scaling.query_scale is not None
        if self.borders or has_query_scale or has_scaling or differs_by_head or is_over:
            return Strategy(scaling=self.scaling, map=self._map(numbers), made_by=made_by)
        unfitted = layers.frequencies(self.scaling)
        inv_freq, factor = numbers.near_inv_freq, numbers.attention_factor
        scaling = ExplicitScaling(
            inv_freq=_by_layer(_exact(unfitted) if inv_freq is None else inv_freq),
            attention_factor=_by_layer(
                np.asarray(unfitted.attention_factor) if factor is None else factor
            ),
            query_scale=self.scaling.query_scale,
            train_length=geometry.train_length,
        )
        return Strategy(scaling=scaling, made_by=made_by)


def _by_layer(numbers: np.ndarray) -> Any:
    """Return numbers [l, 1, …] as one list per layer, or as one if all layers share them."""
    by_layer = numbers[:, 0].astype(np.float64).tolist()
    return by_layer[0] if len(by_layer) == 1 else by_layer


def parameters_of(
    training: TrainingConfig, config: FitConfig, start: SweepEntry, stage: int
) -> Parameters:
    """Return the free parameters of a fit of a stage's checkpoint that begins at a sweep's entry.

    UserError: nothing in `learn` can change the start.
    """
    trained = training.trained(stage)
    with errors_in(f"start: {start.label}: ", UserError):
        scaling = start.at(config.length[-1], trained)
        map_ = start.map_at(config.length[-1], trained)
        _check_start(training, config, scaling, map_)
        numbers, borders = _numbers_at_start(training, config, scaling, map_)
        factors = _log_factors_at_start(training, config, numbers)
    if numbers.scale_s is not None:
        scaling = scaling.model_copy(update={"query_scale": None})
    return Parameters(training, config, numbers, scaling, borders, factors)


def default_start(training: TrainingConfig, stage: int) -> dict[str, Any]:
    """Return the default start: ReRoPE from half the window, with the own scaling and logn."""
    window = max(1, training.stages[stage].seq_len // 2)
    scaling = training.stage_scaling(stage).model_dump(exclude_none=True)
    map_ = {"type": "rerope", "window": window}
    settings = {"query_scale": {"type": "logn"}} | scaling
    return settings | {"name": "rerope", "map": map_, "over": "base"}


def _check_start(
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
    if "query_scale" in config.learn and isinstance(scaling, OverScaling) and scale is not None:
        raise ValueError(
            f"learn: query_scale counts from L, and {scale.type} over trained frequencies from the "
            "window; start from an entry without one"
        )
    if "frequencies" in config.learn and layers.frequencies(scaling).inv_freq.max() == 0:
        raise ValueError("learn: frequencies: no pair rotates, and no λ changes a frequency of 0")


def _axes(training: TrainingConfig, config: FitConfig) -> tuple[int, int, int]:
    """Return how many layers, heads and key-value heads have numbers of their own: all, or 1."""
    model = training.model
    if config.per == "head":
        return model.num_hidden_layers, model.num_attention_heads, model.kv_heads
    return model.num_hidden_layers if config.per == "layer" else 1, 1, 1


def _exact(frequencies: Frequencies) -> np.ndarray:
    """Return θ [l, 1, pairs], float64."""
    return frequencies.exact[:, 0][:, None]


def _numbers_at_start(
    training: TrainingConfig, config: FitConfig, scaling: Scaling, map_: PositionMap | None
) -> tuple[FittedParams, tuple[int, ...]]:
    """Return the numbers of the start, with an axis for everything learned, and the borders."""
    learn, all_heads = set(config.learn), training.model.num_attention_heads
    layers, heads, kv_heads = _axes(training, config)
    frequencies = training.rotary_layers.frequencies(scaling)
    theta = _exact(frequencies)
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
        s = scale.s if isinstance(scale, ConstantScale) else 1.0
        numbers["scale_s"] = _full(given.get("scale_s", np.full((1, 1), s)), layers, heads)
        numbers["scale_p"] = _full(given.get("scale_p", np.full((1, 1), p)), layers, heads)
    if map_ is None or (isinstance(map_, FittedMap) and not map_.borders):
        return FittedParams(**numbers), ()
    borders, far, phase, amplitude = _far(map_, theta, training, config, scaling)
    numbers["far_inv_freq"] = _full(far, layers, kv_heads, axis=1)
    # frequencies that differ between heads move the phase of every head
    phases = all_heads if far.shape[2] > 1 else heads
    numbers["far_phase"] = _full(phase, layers, phases, axis=1)
    if "far_amplitude" in learn or (amplitude != 1).any():
        numbers["far_amplitude"] = _full(amplitude, layers, heads, axis=1)
    if "bias" in learn or "bias" in given:
        # every head has its own row, learned or not: a bias is added by head
        bias = given.get("bias", np.zeros((1, 1, 1)))
        knots = 1 + max(1, math.ceil(math.log2(config.length[-1] / borders[0])))
        more = max(0, knots - bias.shape[-1])  # constant beyond the last one
        bias = np.pad(bias, ((0, 0), (0, 0), (0, more)), mode="edge")
        numbers["bias"] = _full(bias, layers, all_heads)
    return FittedParams(**numbers), borders


def _log_factors_at_start(
    training: TrainingConfig, config: FitConfig, numbers: FittedParams
) -> np.ndarray | None:
    """Return ln λ [l, k, pairs] of the start, λ = θ/θ'; None unless frequencies are learned.

    θ: without a scaling. λ is 1 for pairs that do not rotate. ValueError: λ breaks the bounds.
    """
    if "frequencies" not in config.learn:
        return None
    theta = _exact(training.rotary_layers.frequencies(NoScaling()))
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
        phase = map_.params["far_phase"]
        amplitude = map_.params.get("far_amplitude", np.ones_like(phase))
        return map_.borders, map_.params["far_inv_freq"], phase, amplitude
    assert isinstance(map_, ReRoPE | LeakyReRoPE | FarFrequencies)  # by `_check_start`
    length, w = config.length[-1], int(map_.window)
    far, amplitude = np.zeros_like(theta), np.ones_like(theta)
    if isinstance(map_, LeakyReRoPE):
        far = theta / float(map_.k)
    elif isinstance(map_, FarFrequencies):
        of_far = training.rotary_layers.frequencies(map_.far, length)
        far = np.broadcast_arrays(_exact(of_far), theta)[0]
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
