"""The sweep during training: the loss of validation tokens with and without their far context."""

from typing import Any

import numpy as np

from rope_jax import stopping
from rope_jax.config.sweep import SweepConfig, TrainingSweepConfig, check_targets
from rope_jax.data.storage import Corpus
from rope_jax.devices.window_memory import window_bytes
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import nll_of_last
from rope_jax.evaluation.measure import measure
from rope_jax.evaluation.plan import SweepPlan, resolve_sweep, sweep_lengths
from rope_jax.model.decoder import Params
from rope_jax.runs.logs import Scalars
from rope_jax.training.program import Program


class TrainingSweep:
    """Measures same_tokens at several lengths for the parameters of any step of a run."""

    def __init__(self, program: Program, corpus: Corpus, settings: TrainingSweepConfig) -> None:
        """UserError, naming a key of `sweep`, if a setting does not fit the texts or the model."""
        self._program, self._programs = program, dict[Any, Any]()
        self._nll_of_last = nll_of_last(program.model, program.placement)
        window = program.config.sweep_window
        lengths = sweep_lengths(SweepConfig(lengths=settings.lengths), [window])
        self.lengths = tuple(sorted({*lengths, window}))
        if not len(corpus.validation):
            raise UserError(
                "sweep: there is no validation split to read; raise data.validation_fraction"
            )
        try:
            self._plans = self._plan_stages(corpus, settings)
        except (UserError, ValueError) as error:  # begins with a key of the sweep
            raise UserError(f"sweep.{error}") from None

    def _plan_stages(self, corpus: Corpus, settings: TrainingSweepConfig) -> list[SweepPlan]:
        if settings.targets is not None:
            check_targets(settings.targets, self.lengths)
        bos_ids = corpus.tokenizer.bos_ids
        # without the keys that `rope-jax sweep` does not have
        raw = settings.model_dump(exclude={"every_steps", "window", "scalings"}) | {
            "lengths": self.lengths,
            "scalings": settings.scalings,
            "split": "validation",
            "bos": "document" if bos_ids else "none",
        }
        config, texts = self._program.config, corpus.validation.texts()
        stages = [
            config.trained(stage)._replace(window=config.sweep_window)
            for stage in range(len(config.stages))
        ]
        resolved = resolve_sweep(
            SweepConfig.model_validate(raw),
            config.rotary_layers,
            stages,
            longest=config.encoding.longest,
        )
        return [
            SweepPlan(resolved, config.rotary_layers, trained, texts, bos_ids) for trained in stages
        ]

    def measure(self, stage: int, params: Params) -> Scalars:
        """Return the NLL at each length, in nats per token, and past the window above truncation.

        The latter is NLL(n) − NLL(window) on the same tokens, where NLL(window) is that of
        `trained` on the last `window` tokens in front of each target.
        """
        result = measure(
            self._plans[stage],
            self._nll_of_last,
            params,
            row_bytes=self._row_bytes,
            row_multiple=lambda n: self._program.placement.row_shards,
            programs=self._programs,
            # a signal that waits for the work must not end the process
            progress=lambda *_: stopping.requested(),
        )
        truncated = np.nan if result.baseline is None else result.baseline.sums.mean()
        scalars: dict[str, float] = {}
        for m in result.measurements:
            nll = m.sums.mean()
            scalars[f"sweep/{m.entry}/nll_{m.length}"] = nll
            if m.length > result.window:
                scalars[f"sweep/{m.entry}/above_truncation_{m.length}"] = nll - truncated
        return scalars

    def _row_bytes(self, length: int) -> float:
        mesh, model = self._program.placement.config, self._program.model.spec
        split = {"context": mesh.context, "tensor": mesh.tensor}
        return float(window_bytes(model, self._program.vocab_size, length, **split))
