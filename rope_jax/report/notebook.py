"""A sweep's results in a notebook: a pandas DataFrame, and a small HTML table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rope_jax.comparison.curves import compare_checkpoints
from rope_jax.config.presentation import Show
from rope_jax.report.measured import measured_table, protocols_of
from rope_jax.report.table import format_html
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary

if TYPE_CHECKING:
    import pandas

# Columns of results.csv that are about a run's folder, which a model of one's own need not have.
_OF_A_RUN = ["step", "run", "seed", "corpus", "split"]


def results_frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    """Return one row per measurement, with the columns of results.csv but those about a run."""
    import pandas  # half a second, and only needed here

    frame = pandas.DataFrame(rows, columns=list(Row._fields)).drop(columns=_OF_A_RUN)
    # Without a type of its own, a column of nothing but None could not be computed with.
    floats = dict.fromkeys(("factor", "bpb", "bpb_low", "bpb_high"), "float64")
    return frame.astype({**floats, "stride": "Int64"})


def results_html(rows: Sequence[Row], show: Show) -> str:
    """Return one table per protocol: a row for each scaling, a column for each context length."""
    checkpoint = CheckpointSummary(run="", step=rows[0].step, window=0)
    comparison = compare_checkpoints(rows, [checkpoint], show=show)
    tables = (measured_table(comparison, protocol) for protocol in protocols_of(comparison))
    return "\n".join(map(format_html, tables))
