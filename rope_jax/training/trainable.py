"""What a run trains: some of its parameters as they are, and low-rank factors beside others.

LoRA (Hu et al., arXiv 2106.09685) replaces a frozen matrix W by W' = W + s·B·A, s = alpha/rank,
and trains A and B. Here a run's parameters always are the merged W', so that whatever reads them
needs to know nothing of it: dA = s·Bᵀ·dW', dB = s·dW'·Aᵀ, and a step adds s·(B'A' − BA) to W'.

Shapes: A [..., rank, inputs], B [..., outputs, rank], as PEFT has them; a kernel is the transpose
of W, [..., inputs, outputs]. The axes in front are of layers and of experts.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from rope_jax.config.sections import OptimConfig
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params

Path = tuple[str, ...]
LORA_A, LORA_B = "lora_A", "lora_B"


class TrainableState(NamedTuple):
    """Factors, each below the path of its kernel, and the state of AdamW over what is trained."""

    factors: Params
    adamw: optax.OptState


class Trainable:
    """The parameters that a run trains as they are, and the kernels that it changes by factors."""

    def __init__(self, config: OptimConfig, seed: int, abstract_params: Params) -> None:
        """UserError: a name that no parameter has, or no kernel that is not trained itself."""
        paths, lora, self._seed = flatten_dict(abstract_params), config.lora, seed
        self._whole = _named("optim.trainable", config.trainable or (), paths)
        kernels = {path for path in paths if path[-1] == "kernel"} - self._whole
        names = lora.target_modules if lora else ()
        self._adapted = _named("optim.lora.target_modules", names, kernels)
        self._rank, self._scale = (lora.rank, lora.alpha / lora.rank) if lora else (0, 0.0)

    def trained(self, params: Params, factors: Params) -> Params:
        """Return what is trained: factors stand below their kernels' names."""
        leaves = flatten_dict(params)
        whole = {path: leaves[path] for path in self._whole}
        return unflatten_dict(whole | flatten_dict(factors))

    def gradient(self, gradient: Params, factors: Params) -> Params:
        """Return the gradient of what is trained, from that of the parameters."""
        leaves = flatten_dict(gradient)
        _, transpose = jax.vjp(self._products, factors)
        (of_factors,) = transpose({path: leaves[path] for path in self._adapted})
        return self.trained(gradient, of_factors)

    def around(self, adamw: optax.GradientTransformation) -> optax.GradientTransformation:
        """Return a transformation of all parameters that changes only what is trained."""

        def init(params: Params) -> TrainableState:
            factors = self._initial(params)
            return TrainableState(factors, adamw.init(self.trained(params, factors)))

        def update(
            gradient: Params, state: TrainableState, params: Params
        ) -> tuple[Params, TrainableState]:
            factors, trained = state.factors, self.trained(params, state.factors)
            changes, of_adamw = adamw.update(self.gradient(gradient, factors), state.adamw, trained)
            changed, old = flatten_dict(changes), flatten_dict(factors)
            new = unflatten_dict({path: leaf + changed[path] for path, leaf in old.items()})
            # −0, because 0 would turn a weight of −0 into 0
            updates = {path: jnp.full_like(x, -0.0) for path, x in flatten_dict(params).items()}
            updates |= {path: changed[path] for path in self._whole}
            updates |= jax.tree.map(jnp.subtract, self._products(new), self._products(factors))
            return unflatten_dict(updates), TrainableState(new, of_adamw)

        return optax.GradientTransformation(init, update)  # type: ignore[arg-type]

    def _initial(self, params: Params) -> Params:
        """Draw A from U(−1/√inputs, 1/√inputs), as PEFT does by Kaiming with a = √5; B is 0."""
        leaves, factors = flatten_dict(params), {}
        key = jax.random.fold_in(jax.random.key(self._seed), 3)  # 0 to 2: see LanguageModel.init
        for number, path in enumerate(sorted(self._adapted)):
            *front, inputs, outputs = leaves[path].shape
            shape = *front, self._rank, inputs
            drawn = jax.random.uniform(jax.random.fold_in(key, number), shape, minval=-1.0)
            factors[*path, LORA_A] = inputs**-0.5 * drawn
            factors[*path, LORA_B] = jnp.zeros((*front, outputs, self._rank))
        return unflatten_dict(factors)

    def _products(self, factors: Params) -> dict[Path, Float[Array, "..."]]:
        """Return what the factors of each kernel add to it."""
        own, axes = flatten_dict(factors), "...ri,...or->...io"
        exact = functools.partial(jnp.einsum, axes, precision=jax.lax.Precision.HIGHEST)
        return {
            path: self._scale * exact(own[*path, LORA_A], own[*path, LORA_B])
            for path in self._adapted
        }


def _named(key: str, names: Iterable[str], paths: Iterable[Path]) -> set[Path]:
    """Return the parameters that names stand for. key: of the config, for the UserError."""
    by_name = defaultdict[str, set[Path]](set)
    for path in paths:
        groups = ["norms"] if path[-2].endswith(("norm", "norms")) else []
        groups += ["embeddings"] if path[-1] == "embedding" else []
        for name in (*path[:-1], *groups):
            by_name[name].add(path)
    for name in names:
        if name not in by_name:
            raise UserError(f"{key}: there is no {name}, only {', '.join(sorted(by_name))}")
    return {path for name in names for path in by_name[name]}
