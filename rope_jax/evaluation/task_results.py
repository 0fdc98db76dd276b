"""The tables of a sweep's tasks: one tidy row per measurement and metric, and one per sample."""

from typing import Literal, NamedTuple

Metric = Literal["nats", "exact"]


class TaskRow(NamedTuple):
    """One metric of one task at one length and depth; its 95% interval is [ci_low, ci_high].

    nats: the mean NLL of the answers' tokens. exact: the share of the answers of which every token
    is the model's first choice.
    """

    name: str
    """The curve's."""
    scaling: str
    map: str
    """The position map with its settings at this length, as `PositionMap.label`; "" without one."""
    factor: float | None
    auto: bool
    """Whether the factor follows from the length."""
    task: str
    """The task's name in the sweep."""
    kind_of_task: str
    """Its type."""
    length: int
    depth: float | None
    """Where what is asked for lies, 0 at the start; None: the task has no depth, or taken_out."""
    distance: int | None
    """How many tokens before a target is the one that has to be found; None: it varies."""
    taken_out: bool
    """Whether what is asked for was replaced by other text."""
    metric: Metric
    value: float
    ci_low: float
    ci_high: float
    chance: float | None
    """exact: what guessing gives."""
    samples: int
    answers: int
    tokens: int
    """How many targets are scored."""
    targets: str
    """Hash of the samples: equal ones mean that values can be compared."""
    step: int
    run: str
    seed: int
    corpus: str
    split: str
    bos: str
    seconds: float

    @property
    def kind(self) -> str:
        """What a figure's colour stands for: the map's type, or the scaling's without a map."""
        return self.map.partition("+")[0] or self.scaling


class SampleRow(NamedTuple):
    """One sample's share of a measurement."""

    name: str
    task: str
    length: int
    depth: float | None
    taken_out: bool
    step: int
    sample: int
    nll: float
    """Nats, summed over `tokens` targets."""
    tokens: int
    exact: int
    """How many of the `answers` are exact."""
    answers: int
