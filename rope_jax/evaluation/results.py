"""The tables of a sweep's results: one tidy row per measurement, and one per unit."""

from typing import NamedTuple

from rope_jax.evaluation.protocols import SLIDING
from rope_jax.evaluation.statistics import RELIABLE_UNITS, bits_per_byte, mean_nll, perplexity
from rope_jax.evaluation.sweep import Measurement, SweepResult


class Row(NamedTuple):
    """One measurement. nll and its 95% interval [ci_low, ci_high] are in nats per token.

    bpb and [bpb_low, bpb_high] are in bits per byte of the scored targets; None: their bytes are
    not known.

    Each window's scored targets run from first_position to last_position. With sliding and
    yarn_compat this holds only for a document's first window, in which every target is scored.
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
    """nll."""
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


def rows(result: SweepResult, origin: Origin) -> list[Row]:
    """Return one row per measurement, in the order of the measurements."""
    return [_row(result, origin, measurement) for measurement in result.measurements]


def document_rows(result: SweepResult, origin: Origin) -> list[DocumentRow]:
    """Return the sums by unit behind the intervals; they let runs be paired and pooled.

    Documents are numbered within the sweep; sweeps whose `targets` are equal number them alike. The
    baseline is included even if no curve of the sweep contains it.
    """
    made: dict[tuple[str, str, int], Measurement] = {}
    for m in (*result.measurements, *([result.baseline] if result.baseline else [])):
        made.setdefault((m.entry, m.protocol, m.length), m)
    return [
        DocumentRow(
            name=m.entry,
            protocol=m.protocol,
            length=m.length,
            step=origin.step,
            document=int(m.unit_documents[number]),
            unit=number,
            nll=nll,
            weight=weight,
            bytes=None if m.sums.bytes is None else m.sums.bytes[number],
        )
        for m in made.values()
        for number, (nll, weight) in enumerate(zip(m.sums.nll, m.sums.weight, strict=True))
    ]


def _row(result: SweepResult, origin: Origin, m: Measurement) -> Row:
    config = result.config
    nll = mean_nll(m.sums, resamples=config.resamples, seed=config.seed)
    bits = bits_per_byte([m.sums], resamples=config.resamples, seed=config.seed)
    entry = next(entry for entry in config.scalings if entry.label == m.entry)
    return Row(
        name=m.entry,
        scaling=m.scaling.type,
        map=m.map.label if m.map else "",
        factor=getattr(m.scaling, "factor", None),
        auto=entry.factor_is_auto,
        protocol=m.protocol,
        length=m.length,
        first_position=m.first_position,
        last_position=m.length,
        step=origin.step,
        run=origin.run,
        seed=origin.seed,
        corpus=origin.corpus,
        split=config.split,
        nll=nll.value,
        ppl=perplexity(nll.value),
        bpb=None if bits is None else bits.value,
        bpb_low=None if bits is None else bits.low,
        bpb_high=None if bits is None else bits.high,
        metric="nats",
        value=nll.value,
        ci_low=nll.low,
        ci_high=nll.high,
        reliable=len(m.sums.nll) >= RELIABLE_UNITS,
        tokens=m.tokens,
        documents=result.documents,
        units=len(m.sums.nll),
        targets=m.targets,
        stride=_stride(result, m),
        bos=config.bos,
        seconds=round(m.seconds, 4),
    )


def _stride(result: SweepResult, m: Measurement) -> int | None:
    """Return how far apart a document's windows start; None where the places are random."""
    if m.protocol in SLIDING:
        return result.stride
    return {"whole_window": m.length, "per_position": result.longest}.get(m.protocol)
