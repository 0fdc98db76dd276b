"""A run's model and one checkpoint of it, opened to read texts of one's own: without its corpus."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from rope_jax.config.entries import SweepEntry, Trained
from rope_jax.config.model import check_encoding, differ_by_head
from rope_jax.devices import processes
from rope_jax.devices.memory import check_fits, in_gib
from rope_jax.devices.mesh import Placement
from rope_jax.devices.window_memory import MemoryEstimate
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import check_entries, entry_rotary
from rope_jax.generation.decoding import CHUNK, cache_capacity
from rope_jax.model.decoder import LanguageModel, Params
from rope_jax.rope import Rotary
from rope_jax.session import Session
from rope_jax.sweeps.model import expected_steps, place_here
from rope_jax.training.checkpoints import params_at
from rope_jax.training.provenance import check_provenance


@dataclass(frozen=True)
class OpenedModel:
    """A run's model and one checkpoint, whose weights are not read before they are needed."""

    session: Session
    model: LanguageModel
    step: int
    memory: MemoryEstimate
    """Memory on each device; also where and how the parameters lie."""

    @functools.cached_property
    def params(self) -> Params:
        """Read the weights, the first time. UserError: they are damaged."""
        with self.session.console.status("reading the weights"):
            return params_at(self.session.run.checkpoints, self.step, self.memory.abstract_params)

    @property
    def trained(self) -> Trained:
        """How the checkpoint was trained."""
        return self.session.config.trained_at(self.step)

    @property
    def longest(self) -> int | None:
        """How many tokens the position encoding can tell apart; None: any number."""
        return self.session.config.encoding.longest

    @property
    def placement(self) -> Placement:
        """Parameters split as in training as far as possible; rows over the other devices."""
        return self.memory.placement

    def rotary(self, entry: SweepEntry, length: int, key: str = "strategy") -> Rotary:
        """Return the frequencies with which an entry reads a text of up to n tokens.

        They are those of a sweep at length n: a factor of "auto" is n / window.
        UserError, with the key that gave the entry: the model cannot read so many tokens, or the
        entry does not fit it.
        """
        training, trained, longest = self.session.config, self.trained, self.longest
        if longest is not None and length > longest:
            raise UserError(f"length: the model's positions end at {longest:,}; give at most that")
        entry = entry.resolved(trained.scaling)
        try:
            check_encoding(training.model, [entry])
            if length > trained.window:  # a map may act only beyond the window
                check_entries([entry], training.rotary_layers, trained, length)
            return entry_rotary(entry, length, training.rotary_layers, trained)
        except UserError as error:
            raise UserError(str(error).replace("scalings: ", f"{key}: ", 1)) from error
        except ValueError as error:
            raise UserError(f"{key}: {entry.label}: {error}") from error

    def check_cache(self, prompt: int, new: int, bands: int = 1) -> int:
        """Return the bytes on each device of what is kept of a text that is continued.

        prompt, new: numbers of tokens. bands: of a position map.
        UserError: it does not fit beside the weights.
        """
        model = self.model.on(self.placement.collectives)
        shape = 1, cache_capacity(prompt, new, CHUNK[self.placement.platform]), bands
        caches = jax.eval_shape(lambda: jax.tree.leaves(model.empty_caches(*shape)))
        size, weights = sum(x.size * x.dtype.itemsize for x in caches), self.memory.weights
        check_fits(
            f"max_new_tokens: a cache of {prompt:,} tokens and {new:,} new ones, beside "
            f"{in_gib(weights)} GiB of weights, takes",
            *(size, self.memory.available - weights),
            "lower it, or give a shorter prompt",
        )
        return size


def open_model(
    session: Session, entries: Sequence[SweepEntry] = (), step: int | None = None
) -> OpenedModel:
    """Open the checkpoint of a step; None: the newest.

    entries: those that the model will read with, on which it depends how devices share heads.
    session: see `session.open_run`. UserError: there is no such checkpoint, or no memory for it.
    """
    processes.on_first(lambda: check_provenance(session.run, session.recorded, None))
    whole_heads = differ_by_head(entry.map for entry in entries)
    model, memory = place_here(session, whole_heads=whole_heads)
    memory.check_weights()
    (step,) = expected_steps(session.run, None if step is None else (step,))
    return OpenedModel(session, model, step, memory)
