"""A sweep's results as a pandas DataFrame."""

from typing import TYPE_CHECKING

from rope_jax.evaluation.results import Origin, rows
from rope_jax.evaluation.sweep import SweepResult

if TYPE_CHECKING:
    import pandas

# Columns of results.csv that are about a run's folder, which a model of one's own need not have.
_OF_A_RUN = ["step", "run", "seed", "corpus", "split"]


def origin(bytes_per_token: float | None) -> Origin:
    """Return where the results of a model without a run's folder come from."""
    return Origin(run="", step=0, seed=0, bytes_per_token=bytes_per_token, corpus="")


def results_frame(result: SweepResult, bytes_per_token: float | None) -> "pandas.DataFrame":
    """Return one row per measurement, with the columns of results.csv but those about a run.

    bytes_per_token: of the texts, for the column `bpb`, bits per byte; None: it has no values.
    """
    import pandas  # half a second, and only needed here

    frame = pandas.DataFrame(rows(result, origin(bytes_per_token))).drop(columns=_OF_A_RUN)
    # Without a type of its own, a column of nothing but None could not be computed with.
    return frame.astype({"factor": "float64", "bpb": "float64", "stride": "Int64"})
