"""Sweep any JAX model, as in a notebook: the settings of a sweep file as arguments.

Shapes: B batch, n context length; n_plus_1 = n + 1 tokens, inputs and targets.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import NDArray

from rope_jax.config.entries import Trained
from rope_jax.config.load import validate
from rope_jax.config.sweep import SweepConfig
from rope_jax.evaluation.measure import Journal, LastNLLFunction, Progress, measure
from rope_jax.evaluation.plan import SweepPlan, resolve_sweep
from rope_jax.evaluation.results import SweepResult
from rope_jax.model.loss import Scores
from rope_jax.positions.maps import PositionMap
from rope_jax.rope import Rotary, RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling
from rope_jax.tasks import TokenizerView

NLLFunction = Callable[[Any, Int[Array, "B n_plus_1"], Rotary], Float[Array, "B n"] | Scores]
"""A model: its parameters, tokens and frequencies ↦ NLL of tokens[:, 1:] in nats, float32, or
`Scores`, which tasks need."""

# Default for `row_bytes`, per token: that of a model of about 100 dimensions.
_BYTES_PER_TOKEN = 2**14


def sweep(
    nll_fn: NLLFunction,
    scalings: Sequence[Any],
    lengths: Sequence[int] | None,
    documents: Sequence[NDArray[np.integer]],
    *,
    params: PyTree,
    geometry: RotaryGeometry | RotaryLayers,
    trained: Scaling | None = None,
    window: int | None = None,
    trained_map: PositionMap | None = None,
    takes_maps: bool = False,
    longest: int | None = None,
    bos_id: int | Sequence[int] | None = None,
    nll_of_last: LastNLLFunction | None = None,
    words: TokenizerView | None = None,
    token_bytes: NDArray[Any] | None = None,
    row_bytes: Callable[[int], float] = lambda length: _BYTES_PER_TOKEN * length,
    row_multiple: Callable[[int], int] = lambda length: 1,
    journal: Journal | None = None,
    programs: MutableMapping[Any, Any] | None = None,
    progress: Progress = lambda *_: None,
    **settings: Any,
) -> SweepResult:
    """Measure a model's negative log-likelihood at context lengths past its window.

    The model:
    nll_fn(params, tokens [B, n+1], rotary) -> float32 [B, n]: the NLL in nats of tokens[:, 1:]; or,
        where the sweep has tasks, `Scores`: the NLL, and whether each target is the model's first
        choice. Any JAX function; it must take its frequencies from `rotary`, whose leaves have
        leading axes [L|1, B|1] (see `rope_jax.rope.Rotary`), and multiply its queries by
        `rotary.query_scale` where an entry has a query scale.
    nll_of_last(params, tokens, rotary, last): the same for the last targets only, if that is
        cheaper; `last` is static. Used where no other targets are scored.
    params: passed on to both (values they close over would be compiled in as constants).
    geometry: the model's rotary geometry, or its layers' geometries where they differ.
    trained: the scaling the model was trained with (default: none), on whose frequencies entries
        act, or which they replace (`over`), in the layers without a scaling of their own.
    window: the length the model was last trained at (default: the geometry's train_length).
    trained_map: the position map the model was trained with, without "auto" (default: none).
    takes_maps: whether nll_fn reads `rotary.bands` (see `rope_jax.positions.bands`); otherwise an
        entry with a map is refused.
    longest: the most tokens the model can read (default: any number); longer lengths are left out.
    words: how the model's tokens are made, which tasks need.
    token_bytes: bytes of text of each token [vocabulary], for results in bits per byte.

    What is measured:
    scalings: entries as in a sweep file: "trained", {"type": "ntk", "factor": "auto"}, …
    lengths: context lengths in tokens, ascending; None: the window times 1/2, 1, 2, 4, 8 and 16.
        The window is added if it lies between them: everything else is compared with it.
    documents: token arrays without document-start tokens. Every length reads the same ones.
    bos_id: the token, or tokens, before a document; added where `bos` asks for it, to documents
        and to the samples of tasks.
    settings: other keys of a sweep file (protocols, max_blocks, seed, memory_gib, …).

    How it is run:
    row_bytes(n): memory of a window of n tokens; with `memory_gib` it sets the batch size.
    row_multiple(n): batch sizes at n tokens are a multiple of this, e.g. of the number of devices.
    journal: measurements made earlier with this nll_fn, params and documents, which are not made
        again; new ones are added as soon as they are made.
    programs: a dict shared by sweeps with the same nll_fn and shapes of params (such as several
        checkpoints), so that each shape is compiled once.
    progress(what, done, total): called before each program is compiled and each length is read, and
        after each step, with the length and the mean NLL so far, and the tokens read so far and in
        all; at the end with "done".

    Raises UserError for bad input.
    """
    raw = {"scalings": scalings, "lengths": lengths} | settings
    config = validate(SweepConfig, {k: v for k, v in raw.items() if v is not None}, "sweep")
    layers = geometry if isinstance(geometry, RotaryLayers) else RotaryLayers(geometry)
    train_length = layers.geometry.train_length
    as_trained = Trained(window or train_length, trained or NoScaling(), trained_map, train_length)
    resolved = resolve_sweep(config, layers, [as_trained], longest=longest, takes_maps=takes_maps)
    bos_ids = () if bos_id is None else np.atleast_1d(bos_id).tolist()
    plan = SweepPlan(
        resolved, layers, as_trained, documents, bos_ids, words=words, token_bytes=token_bytes
    )

    def of_last(params: PyTree, tokens: Int[Array, "B n_plus_1"], rotary: Rotary, last: int) -> Any:
        if nll_of_last is None or last == tokens.shape[1] - 1:
            return nll_fn(params, tokens, rotary)
        return nll_of_last(params, tokens, rotary, last)

    return measure(
        plan,
        of_last,
        params,
        row_bytes=row_bytes,
        row_multiple=row_multiple,
        journal=journal,
        programs=programs,
        progress=progress,
    )
