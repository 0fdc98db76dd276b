"""A run's model and one checkpoint of it, opened to read texts of one's own: without its corpus."""

from collections.abc import Sequence
from dataclasses import dataclass

from rope_jax.config.entries import SweepEntry, Trained
from rope_jax.config.model import check_encoding, differ_by_head
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.devices import processes
from rope_jax.devices.mesh import Placement
from rope_jax.devices.window_memory import MemoryEstimate
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import check_entries, entry_rotary
from rope_jax.model.decoder import LanguageModel, Params
from rope_jax.rope import Rotary
from rope_jax.session import Session
from rope_jax.sweeps.model import chosen_checkpoints, place_here
from rope_jax.training.provenance import check_provenance


@dataclass(frozen=True)
class OpenedModel:
    """A run's model with the parameters of one checkpoint."""

    session: Session
    model: LanguageModel
    params: Params
    memory: MemoryEstimate
    """Memory on each device; also where and how the parameters lie."""
    trained: Trained
    """How the checkpoint was trained."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.session.tokenizer

    @property
    def placement(self) -> Placement:
        """Parameters split as in training as far as possible; rows over the other devices."""
        return self.memory.placement

    def rotary(self, entry: SweepEntry, length: int) -> Rotary:
        """Return the frequencies with which an entry reads a text of up to n tokens.

        They are those of a sweep at length n: a factor of "auto" is n / window.
        UserError: the model cannot read so many tokens, or the entry does not fit it.
        """
        training, trained = self.session.config, self.trained
        position, longest = training.model.position.type, training.encoding.longest
        if longest is not None and length > longest:
            raise UserError(
                f"length: the model's position {position} ends at {longest:,} tokens; {length:,} "
                "are too many"
            )
        entry = entry.resolved(trained.scaling)
        try:
            check_encoding(training.model, [entry])
            if length > trained.window:  # a map may act only beyond the window
                check_entries([entry], training.rotary_layers, trained, length)
            return entry_rotary(entry, length, training.rotary_layers, trained)
        except (UserError, ValueError) as error:
            raise UserError(str(error).replace("scalings: ", "strategy: ", 1)) from error


def open_model(
    session: Session, entries: Sequence[SweepEntry] = (), step: int | None = None
) -> OpenedModel:
    """Open the checkpoint of a step; None: the newest undamaged one.

    entries: those that the model will read with, on which it depends how devices share heads.
    session: see `session.open_run`. UserError: there is no such checkpoint, or no memory for it.
    """
    processes.on_first(lambda: check_provenance(session.run, session.recorded, None))
    whole_heads = differ_by_head(entry.map for entry in entries)
    model, memory = place_here(session, whole_heads=whole_heads)
    memory.check_weights()
    steps = None if step is None else (step,)
    with session.console.status("reading the weights"):
        _, checkpoints = chosen_checkpoints(
            session.run, steps, memory.abstract_params, session.warn
        )
        step, params = next(checkpoints)
    return OpenedModel(session, model, params, memory, session.config.trained_at(step))
