"""The package's own decoder as the model of a sweep.

Shapes: B batch, n context length; n_plus_1 = n + 1 tokens; scored: targets at the end.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, PyTree

from rope_jax.devices.mesh import Placement
from rope_jax.evaluation.measure import LastNLLFunction
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.positions.bands import of_tokens
from rope_jax.rope import Rotary

# Where devices share windows, chunks are padded to a multiple of this many tokens: attention in
# blocks needs blocks that divide a chunk, and would be slow with short ones.
_CHUNK = 64
DecoderNLL = Callable[
    [Any, Int32[Array, "B n_plus_1"], Rotary, int | None], Float32[Array, "B scored"]
]
"""A `LastNLLFunction` that also takes None for all targets: cheaper to differentiate than n."""


def nll_of_last(model: LanguageModel, placement: Placement) -> DecoderNLL:
    """Return the model's NLL of a window's last targets, with rows and windows split by devices."""
    return _of_last(model.on(placement.collectives).nll, placement.splitting(model.shardings))


def scores_of_last(model: LanguageModel, placement: Placement) -> LastNLLFunction:
    """Return the same as `Scores`, with whether each target is the model's first choice."""
    return _of_last(model.on(placement.collectives).scores, placement.splitting(model.shardings))


def _of_last(model: Callable[..., Any], placement: Placement) -> Callable[..., Any]:
    """model: `LanguageModel.nll` or `LanguageModel.scores`."""

    @placement.split_rows
    def of_last(
        params: PyTree, tokens: Int32[Array, "B n_plus_1"], rotary: Rotary, last: int | None
    ) -> Any:
        length = tokens.shape[1] - 1
        padding = 0 if placement.chunks == 1 else -length % (placement.chunks * _CHUNK)
        if padding:  # at the end, where no token sees it; positions repeat the last one
            tokens = jnp.pad(tokens, ((0, 0), (0, padding)))
            rotary = of_tokens(
                rotary, lambda x: jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, padding),), "edge")
            )
        # an encoding may have no position after the last one, and give NaN there
        positions = jnp.minimum(jnp.arange(length + padding), length - 1)[None]
        windows = DecoderInputs(tokens[:, :-1], tokens[:, 1:], positions, None, rotary)
        result = model(params, windows, None if last is None else last + padding)
        return jax.tree.map(lambda x: x[:, : x.shape[1] - padding], result)

    return of_last
