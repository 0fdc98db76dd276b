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

from rope_jax.config.fit import OF_FAR, FitConfig
from rope_jax.config.strategy import Strategy
from rope_jax.config.sweep import SweepEntry
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.positions.fitted import FittedNumbers, fitted_rotary
from rope_jax.positions.maps import PositionMap
from rope_jax.positions.maps.far_frequencies import FarFrequencies
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.positions.maps.rerope import LeakyReRoPE, ReRoPE
from rope_jax.positions.visible import Visible
from rope_jax.rope import Rotary, Scaling
from rope_jax.rope.query_scales import LogN, PowerScale
from rope_jax.rope.strategies import ExplicitScaling

# Free parameters by name; all float32.
Free = dict[str, Array]
_STARTS = "rerope, leaky_rerope, far_frequencies or fitted"


@dataclass(frozen=True)
class Parameters:
    """The free parameters of a fit, and what they mean.

    A free parameter is 0 at the start for everything that has a natural origin, and of order 1:
    logarithms of factors, angles in radians, and for far frequencies the angle by which they have
    changed at distance n.
    """

    training: Config
    learn: tuple[str, ...]
    start: FittedNumbers
    """The numbers at the start, float64 on the host, with full axes [l, h] for what is learned."""
    scaling: Scaling
    """The scaling of the start, whose numbers hold where none are learned."""
    borders: tuple[int, ...]
    layers: int
    """How many layers have numbers of their own: all, or 1."""
    heads: int
    """How many heads have, within a layer."""
    kv_heads: int
    length: int
    """n."""
    bounds: tuple[float, float]
    ordered: bool

    def initial(self) -> Free:
        """Return the free parameters of the start."""
        pairs = (self.training.geometry.rotary_dim // 2,)
        of_heads, of_keys = (self.layers, self.heads), (self.layers, self.kv_heads)
        bands = (len(self.borders),)
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
            if name.removesuffix("_s").removesuffix("_p") in self.learn
        }

    @property
    def count(self) -> int:
        """How many numbers are learned."""
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.initial)))

    def numbers(self, free: Free) -> FittedNumbers:
        """Return the numbers that free parameters stand for; differentiable."""
        start: Any = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.start)
        found: FittedNumbers = start
        if "frequencies" in free:
            inv_freq = start.near_inv_freq * jnp.exp(-free["frequencies"])
            found = found._replace(near_inv_freq=jnp.minimum(inv_freq, np.float32(np.pi)))
        if "attention_factor" in free:
            found = found._replace(
                attention_factor=start.attention_factor * jnp.exp(free["attention_factor"])
            )
        if "query_scale_s" in free:
            found = found._replace(
                scale_s=start.scale_s * jnp.exp(free["query_scale_s"]),
                scale_p=start.scale_p + free["query_scale_p"],
            )
        if self.borders:
            found = self._with_far(free, start, found)
        if "bias" in free:
            found = found._replace(bias=start.bias + free["bias"])
        return found

    def _with_far(self, free: Free, start: Any, found: FittedNumbers) -> FittedNumbers:
        inv_freq = start.far_inv_freq
        if "far_frequencies" in free:
            turned = inv_freq + free["far_frequencies"] / np.float32(self.length)
            inv_freq = jnp.clip(turned, np.float32(-np.pi), np.float32(np.pi))
        if "far_divisor" in free:
            inv_freq = inv_freq * jnp.exp(-free["far_divisor"])[None, ..., None]
        # What is changed by the frequency at the first border is taken back there, so that the
        # angle stays continuous unless a phase is learned.
        phase = start.far_phase + _as_heads(
            (start.far_inv_freq - inv_freq) * np.float32(self.borders[0]), start.far_phase.shape[2]
        )
        if "far_phase" in free:
            phase = phase + free["far_phase"]
        found = found._replace(far_inv_freq=inv_freq, far_phase=phase)
        if "far_amplitude" in free:
            found = found._replace(
                far_amplitude=start.far_amplitude * jnp.exp(free["far_amplitude"])
            )
        return found

    def projected(self, free: Free) -> Free:
        """Return the free parameters moved into the bounds, and into order if that is asked."""
        low, high = (np.float32(math.log(bound)) for bound in self.bounds)
        if "frequencies" in free:
            factors = jnp.clip(free["frequencies"], low, high)
            if self.ordered:
                factors = jax.lax.cummax(factors, axis=factors.ndim - 1)
            free = free | {"frequencies": factors}
        if "far_divisor" in free:
            free = free | {"far_divisor": jnp.clip(free["far_divisor"], low, high)}
        return free

    def rotary(self, free: Free, positions: Any, seq_len: int) -> Rotary:
        """Return the model's argument for tokens at positions [#B, S]; differentiable."""
        layers = self.training.rotary_layers
        rotary = layers.rotary(self.scaling, np.asarray(positions), seq_len)
        return fitted_rotary(
            rotary,
            self.numbers(free),
            self._visible(),
            jnp.asarray(positions),
            train_length=layers.geometry.train_length,
            seq_len=seq_len,
        )

    def _visible(self) -> list[Visible]:
        return [band.visible for band in self._map(self.start).bands(0, 0)]

    def _map(self, numbers: FittedNumbers) -> FittedMap:
        lists = {
            name: np.asarray(x, np.float64).tolist()
            for name, x in numbers._asdict().items()
            if x is not None
        }
        length = self.training.geometry.train_length
        return FittedMap(train_length=length, borders=self.borders, **lists)

    def strategy(self, free: Free, made_by: dict[str, Any] | None = None) -> Strategy:
        """Return the strategy that the free parameters give.

        Frequencies and m alone, at most by layer, need no map: they are `explicit`, which
        transformers can read as LongRoPE's factors.
        """
        numbers: Any = jax.tree.map(np.asarray, self.numbers(free))
        made_by = made_by or {}
        by_head = [x for x in (numbers.near_inv_freq, numbers.attention_factor) if x is not None]
        has_scale = numbers.scale_s is not None
        if self.borders or has_scale or any(x.shape[1] > 1 for x in by_head):
            return Strategy(scaling=self.scaling, map=self._map(numbers), made_by=made_by)
        settings: dict[str, Any] = {
            "inv_freq": self._frequencies(numbers),
            "attention_factor": self._factors(numbers),
            "query_scale": self.scaling.query_scale,
            "train_length": self.training.geometry.train_length,
        }
        return Strategy(scaling=ExplicitScaling(**settings), made_by=made_by)

    def _frequencies(self, numbers: Any) -> Any:
        """Return θ' by layer, or one list if all layers share it."""
        found = numbers.near_inv_freq
        if found is None:
            layers = self.training.rotary_layers.frequencies(self.scaling)
            exact = layers.inv_freq.astype(np.float64) + layers.inv_freq_remainder
            found = exact[:, 0][:, None]
        by_layer = found[:, 0].astype(np.float64).tolist()
        return by_layer[0] if len(by_layer) == 1 else by_layer

    def _factors(self, numbers: Any) -> Any:
        """Return m by layer, or one number if all layers share it."""
        found = numbers.attention_factor
        if found is None:
            found = self.training.rotary_layers.frequencies(self.scaling).attention_factor
        by_layer = found[:, 0].astype(np.float64).tolist()
        return by_layer[0] if len(by_layer) == 1 else by_layer


def parameters_of(
    training: Config,
    config: FitConfig,
    start: SweepEntry,
    first_border: int | None,
    stage: int,
) -> Parameters:
    """Return the free parameters of a fit that begins at an entry of a sweep.

    first_border: where the far keys begin; None: where they do in the start's map.
    stage: that of the checkpoint.

    UserError: nothing in `learn` can change the start.
    """
    window, length = training.stages[stage].seq_len, config.length[-1]
    try:
        scaling = start.at(length, window, training.stage_scaling(stage))
        map_ = start.map_at(length, window, training.stage_map(stage))
        _check_start(training, config, scaling, map_)
        numbers, borders = _numbers_at_start(training, config, scaling, map_, first_border)
    except ValueError as error:
        raise UserError(f"start: {start.label}: {error}") from None
    return Parameters(
        training=training,
        learn=config.learn,
        start=numbers,
        scaling=_without_query_scale(scaling) if numbers.scale_s is not None else scaling,
        borders=borders,
        layers=1 if config.per == "model" else training.model.num_hidden_layers,
        heads=training.model.num_attention_heads if config.per == "head" else 1,
        kv_heads=training.model.kv_heads if config.per == "head" else 1,
        length=length,
        bounds=config.bounds,
        ordered=config.ordered,
    )


def default_start(training: Config, stage: int) -> dict[str, Any]:
    """Return the entry at which a fit starts by default: ReRoPE from half the window, with logn."""
    window = max(1, training.stages[stage].seq_len // 2)
    return {
        "type": "none",
        "name": "rerope",
        "map": {"type": "rerope", "window": window},
        "query_scale": {"type": "logn"},
    }


def _check_start(
    training: Config, config: FitConfig, scaling: Scaling, map_: PositionMap | None
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
        raise ValueError("every layer of this model has a scaling of its own, which stays as it is")
    scale = scaling.query_scale
    is_power = isinstance(scale, PowerScale) and scale.s == 1
    if "query_scale" in config.learn and not (is_power or isinstance(scale, LogN | None)):
        raise ValueError(
            f"learn: query_scale {scale.type} has another form than s·max(1, ln n / ln L)^p; start "
            "from logn, from power with s 1, or from none"
        )
    if training.rotary_layers.frequencies(scaling).inv_freq.max() == 0 and not of_far:
        raise ValueError("no pair rotates, and no factor changes a frequency of 0")


def _numbers_at_start(
    training: Config,
    config: FitConfig,
    scaling: Scaling,
    map_: PositionMap | None,
    first_border: int | None,
) -> tuple[FittedNumbers, tuple[int, ...]]:
    """Return the numbers of the start, with an axis for everything learned, and the borders."""
    model, learn, n = training.model, set(config.learn), config.length[-1]
    by_layer, by_head = config.per != "model", config.per == "head"
    layers = model.num_hidden_layers if by_layer else 1
    heads = model.num_attention_heads if by_head else 1
    kv_heads = model.kv_heads if by_head else 1
    own = training.rotary_layers.frequencies(scaling)
    theta = (own.inv_freq.astype(np.float64) + own.inv_freq_remainder)[:, 0][:, None]
    found: dict[str, Any] = {}
    given = map_.numbers if isinstance(map_, FittedMap) else {}
    if "frequencies" in learn or "near_inv_freq" in given:
        found["near_inv_freq"] = _full(given.get("near_inv_freq", theta), layers, kv_heads)
    if "attention_factor" in learn or "attention_factor" in given:
        m = given.get("attention_factor", own.attention_factor.astype(np.float64)[:, 0][:, None])
        found["attention_factor"] = _full(m, layers, kv_heads)
    if "query_scale" in learn or "scale_s" in given:
        s, p = _power(scaling)
        one = np.ones((1, 1))
        found["scale_s"] = _full(given.get("scale_s", s * one), layers, heads)
        found["scale_p"] = _full(given.get("scale_p", p * one), layers, heads)
    borders: tuple[int, ...] = ()
    if map_ is not None:
        borders, far, phase = _far(map_, theta, training, n, first_border, config)
        if borders:
            found["far_inv_freq"] = _full(far, layers, kv_heads, axis=1)
            found["far_phase"] = _full(phase, layers, heads, axis=1)
            amplitude = given.get("far_amplitude")
            if "far_amplitude" in learn or amplitude is not None:
                amplitude = np.ones_like(phase) if amplitude is None else amplitude
                found["far_amplitude"] = _full(amplitude, layers, heads, axis=1)
            knots = 1 + max(1, math.ceil(math.log2(n / borders[0])))
            if "bias" in learn or "bias" in given:
                # every head has its own row, learned or not: a bias is added by head
                bias = _more_knots(given.get("bias", np.zeros((1, 1, 1))), knots)
                found["bias"] = _full(bias, layers, model.num_attention_heads)
    return FittedNumbers(**found), borders


def _far(
    map_: PositionMap,
    theta: np.ndarray,
    training: Config,
    length: int,
    first_border: int | None,
    config: FitConfig,
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """Return the borders, θ' [F, l, k, pairs] and φ [F, l, h, pairs] of a map.

    first_border replaces where the map's far keys begin.
    """
    if isinstance(map_, FittedMap):
        if not map_.borders:
            return (), theta, theta
        if first_border is not None:
            raise ValueError("windows: a fitted map already has its borders; leave them out")
        return map_.borders, map_.numbers["far_inv_freq"], map_.numbers["far_phase"]
    settings: Any = map_
    w = first_border or int(settings.window)
    if isinstance(map_, ReRoPE):
        far = np.zeros_like(theta)
    elif isinstance(map_, LeakyReRoPE):
        far = theta / float(settings.k)
    else:
        own = training.rotary_layers.frequencies(settings.far, length)
        far = (own.inv_freq.astype(np.float64) + own.inv_freq_remainder)[:, 0][:, None]
        far = np.broadcast_to(far, np.broadcast_shapes(far.shape, theta.shape))
    borders = [w]
    while config.far_bands == "octaves" and 2 * borders[-1] < length:
        borders.append(2 * borders[-1])
    phase = (theta - far) * w
    return tuple(borders), np.stack([far] * len(borders)), np.stack([phase] * len(borders))


def _full(x: np.ndarray, layers: int, heads: int, axis: int = 0) -> np.ndarray:
    """Repeat x along the axes of layers and heads, of which it may have one each."""
    shape = list(x.shape)
    shape[axis], shape[axis + 1] = max(layers, shape[axis]), max(heads, shape[axis + 1])
    return np.broadcast_to(x, shape).copy()


def _more_knots(bias: np.ndarray, knots: int) -> np.ndarray:
    """Return a bias with at least so many knots; it stays constant beyond its last one."""
    missing = max(0, knots - bias.shape[-1])
    return np.concatenate([bias, np.repeat(bias[..., -1:], missing, axis=-1)], axis=-1)


def _power(scaling: Scaling) -> tuple[float, float]:
    """Return s and p of a query scale s·max(1, ln n / ln L)^p."""
    if isinstance(scaling.query_scale, PowerScale):
        return 1.0, scaling.query_scale.p
    return 1.0, float(isinstance(scaling.query_scale, LogN))


def _without_query_scale(scaling: Scaling) -> Scaling:
    return scaling.model_copy(update={"query_scale": None})


def _as_heads(x: Array, heads: int) -> Array:
    """Repeat numbers [F, l, k, pairs] of key-value heads for the query heads that share them."""
    kv_heads = x.shape[2]
    return x if kv_heads in (1, heads) or heads == 1 else jnp.repeat(x, heads // kv_heads, axis=2)
