"""What a fit learns: free parameters, the numbers that they stand for, the strategy they give.

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
from rope_jax.config.fit import FitConfig
from rope_jax.config.strategy import Strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError, errors_in
from rope_jax.fitting.start import axes, check_start, exact, log_factors_at_start, numbers_at_start
from rope_jax.positions.mapping import FittedParams, fitted_rotary
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.rope import Rotary, Scaling
from rope_jax.rope.strategies import ExplicitScaling

# Free parameters by name; all float32.
Free = dict[str, Array]
# The largest float32 below π, above which a frequency looks like a slower one.
_MAX_FREQUENCY = np.nextafter(np.float32(np.pi), np.float32(0))
# Factors without bounds of their own stay between 1e-4 and 1e4, so that none becomes 0 or infinite.
_UNBOUNDED = ("attention_factor", "query_scale_s", "far_amplitude")
_MAX_LOG = np.float32(math.log(1e4))


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
        layers, heads, kv_heads = axes(self.training, self.config)
        pairs = (self.training.geometry.rotary_dim // 2,)
        of_heads, of_keys, bands = (layers, heads), (layers, kv_heads), (len(self.borders),)
        shapes = {
            "frequencies": of_keys + pairs,
            "attention_factor": of_keys,
            "query_scale_s": of_heads,
            "query_scale_p": of_heads,
            "far_frequencies": bands + of_keys + pairs,
            "far_divisor": of_keys,
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
        if "far_divisor" in free:
            inv_freq = inv_freq * jnp.exp(-free["far_divisor"])[None, ..., None]
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
        """Return the free parameters moved into the bounds, and into order if that is asked."""
        bounds = {name: (-_MAX_LOG, _MAX_LOG) for name in _UNBOUNDED}
        low, high = (np.float32(math.log(bound)) for bound in self.config.bounds)
        bounds["far_divisor"] = low, high
        free = {
            name: jnp.clip(x, *bounds[name]) if name in bounds else x for name, x in free.items()
        }
        if "frequencies" in free:
            free["frequencies"] = self._projected_factors(free["frequencies"])
        return free

    def _projected_factors(self, changes: Array) -> Array:
        """Return changes of ln λ [l, k, pairs] that keep the bounds and the order in all layers."""
        shared = tuple(axis for axis in (0, 1) if changes.shape[axis] == 1)
        start = self.log_factors
        low, high = (math.log(bound) for bound in self.config.bounds)
        lowest = (low - start).max(axis=shared, keepdims=True).astype(np.float32)
        highest = (high - start).min(axis=shared, keepdims=True).astype(np.float32)
        changes = jnp.clip(changes, lowest, highest)
        if not self.config.ordered:
            return changes
        least = np.diff(start, axis=-1, prepend=start[..., :1]).min(axis=shared, keepdims=True)
        rise = np.cumsum(least, axis=-1).astype(np.float32)
        return jax.lax.cummax(changes + rise, axis=2) - rise

    def rotary(self, free: Free, positions: Any, seq_len: int) -> Rotary:
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
        if self.borders or has_query_scale or has_scaling or differs_by_head:
            return Strategy(scaling=self.scaling, map=self._map(numbers), made_by=made_by)
        unfitted = layers.frequencies(self.scaling)
        inv_freq, factor = numbers.near_inv_freq, numbers.attention_factor
        scaling = ExplicitScaling(
            inv_freq=_by_layer(exact(unfitted) if inv_freq is None else inv_freq),
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
    training: TrainingConfig,
    config: FitConfig,
    start: SweepEntry,
    stage: int,
) -> Parameters:
    """Return the free parameters of a fit of a stage's checkpoint that begins at a sweep's entry.

    UserError: nothing in `learn` can change the start.
    """
    window, trained, trained_map = training.trained(stage)
    with errors_in(f"start: {start.label}: ", UserError):
        scaling = start.at(config.length[-1], window, trained)
        map_ = start.map_at(config.length[-1], window, trained_map)
        check_start(training, config, scaling, map_)
        numbers, borders = numbers_at_start(training, config, scaling, map_)
        factors = log_factors_at_start(training, config, numbers)
    if numbers.scale_s is not None:
        scaling = scaling.model_copy(update={"query_scale": None})
    return Parameters(training, config, numbers, scaling, borders, factors)
