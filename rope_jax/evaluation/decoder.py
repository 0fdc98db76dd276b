"""The package's own decoder as the model of a sweep.

Shapes: B batch, n context length; n_plus_1 = n + 1 tokens, inputs and targets.
"""

from typing import Any

import jax
from jaxtyping import Array, Float32, Int32

from rope_jax.devices.mesh import Placement
from rope_jax.evaluation.reader import LastNLLFunction, NLLFunction
from rope_jax.model.decoder import LanguageModel
from rope_jax.rope import Rotary


def nll_of_last(model: LanguageModel, placement: Placement) -> LastNLLFunction:
    """Return the model's NLL of a window's last targets, with the rows split over the devices."""

    @placement.split_rows
    def nll_of_last(
        params: Any, tokens: Int32[Array, "B n_plus_1"], rotary: Rotary, last: int
    ) -> Float32[Array, "B last"]:
        positions = jax.numpy.arange(tokens.shape[1] - 1)[None]
        return model.nll(params, tokens[:, :-1], tokens[:, 1:], positions, None, rotary, last)

    return nll_of_last


def nll_of_all(of_last: LastNLLFunction) -> NLLFunction:
    """Return the NLL of all of a window's targets, given that of the last ones."""

    def nll(
        params: Any, tokens: Int32[Array, "B n_plus_1"], rotary: Rotary
    ) -> Float32[Array, "B n"]:
        return of_last(params, tokens, rotary, tokens.shape[1] - 1)

    return nll
