"""The tidy rows of results.csv and documents.csv."""

from typing import NamedTuple


class Row(NamedTuple):
    """One measurement. nll and [ci_low, ci_high] are in nats per token, bpb in bits per byte.

    Each window's scored targets run from first_position to last_position; with sliding and
    yarn_compat only those of a document's first window.
    """

    name: str
    scaling: str
    map: str
    """The position map with its settings at this length, as `PositionMap.label`; "" without one."""
    factor: float | None
    auto: bool
    """Whether the factor follows from the length."""
    protocol: str
    length: int
    first_position: int
    last_position: int
    step: int
    run: str
    seed: int
    corpus: str
    split: str
    nll: float
    ppl: float
    bpb: float | None
    bpb_low: float | None
    bpb_high: float | None
    metric: str
    """What `value` and its interval are, as in the table of tasks: nats."""
    value: float
    ci_low: float
    ci_high: float
    reliable: bool
    tokens: int
    documents: int
    units: int
    """How many documents, or blocks of them, the interval resamples."""
    targets: str
    stride: int | None
    bos: str
    seconds: float

    @property
    def kind(self) -> str:
        """What a figure's colour stands for: the map's type, or the scaling's without a map."""
        return self.map.partition("+")[0] or self.scaling


class PointKey(NamedTuple):
    """Identifies a measured point within a sweep."""

    name: str
    protocol: str
    length: int
    step: int

    @classmethod
    def of(cls, row: Row) -> "PointKey":
        return cls(name=row.name, protocol=row.protocol, length=row.length, step=row.step)


class DocumentRow(NamedTuple):
    """One unit's share of a row: nll nats over `weight` tokens (yarn_compat: windows)."""

    name: str
    protocol: str
    length: int
    step: int
    document: int
    unit: int
    """A document, or one of its blocks; numbered within the row."""
    nll: float
    weight: float
    bytes: float | None
    """Of the text of the scored tokens, divided as `weight` is; None: not known."""


class Origin(NamedTuple):
    """The checkpoint and corpus of a sweep; corpus: a fingerprint of the texts of all splits."""

    run: str
    step: int
    seed: int
    corpus: str
