"""Each curve of a sweep compared with what truncation to the window gives, which is the baseline.

That is `trained` at the window, on the same scored tokens (same_tokens).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rope_jax.protocols.base import RELIABLE_UNITS, UnitKind
from rope_jax.results.statistics import Estimate, UsableLength
from rope_jax.results.tasks import TaskSummary


@dataclass(frozen=True)
class CurveSummary:
    """One scaling compared with the baseline; mappings are keyed by context length."""

    usable: UsableLength
    """What the data establish: by the upper bounds of NLL(n) − NLL(window)."""
    usable_at_most: UsableLength
    """What the data do not refute: by the lower bounds."""
    blow_up: Mapping[int, Estimate]
    """exp(NLL(n) − NLL(window))."""
    above_truncation: Mapping[int, Estimate]
    """NLL(n) − NLL(window), in nats."""
    difference_from_trained: Mapping[int, Estimate]
    """NLL(n) − NLL of `trained` at n, in nats; empty if that was not measured."""


@dataclass(frozen=True)
class CheckpointSummary:
    """A sweep of one checkpoint. Values at the window are None without a baseline."""

    run: str
    step: int
    window: int
    nll_at_window: float | None = None
    perplexity_at_window: float | None = None
    bpb_at_window: float | None = None
    tolerance: float = 0.0
    documents: int = 0
    unit_kind: UnitKind = "documents"
    """What intervals resample; documents also where each of them is one block."""
    units: int = 0
    """In the protocol that has the fewest."""
    compilations: int = 0
    curves: Mapping[str, CurveSummary] = field(default_factory=dict)
    """Keyed by the entry's name; empty without a baseline."""
    tasks: Mapping[str, Mapping[str, TaskSummary]] = field(default_factory=dict)
    """By the task's name, and then by the entry's."""
    borders: Mapping[str, int] = field(default_factory=dict)
    """Of the entries with a map, the distance from which it changes what a query sees."""

    @property
    def is_reliable(self) -> bool:
        """Whether there are enough units for the intervals to be trusted."""
        return self.units >= RELIABLE_UNITS
