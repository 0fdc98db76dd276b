"""A sweep's results as a pandas DataFrame."""

from typing import TYPE_CHECKING

from rope_jax.evaluation.results import Origin, rows
from rope_jax.evaluation.sweep import SweepResult

if TYPE_CHECKING:
    import pandas

# Columns of results.csv that are about a run's folder, which a model of one's own need not have.
_OF_A_RUN = ["step", "run", "seed", "corpus", "split"]
NO_ORIGIN = Origin(run="", step=0, seed=0, corpus="")
"""Where the results of a model without a run's folder come from."""


def results_frame(result: SweepResult) -> "pandas.DataFrame":
    """Return one row per measurement, with the columns of results.csv but those about a run."""
    import pandas  # half a second, and only needed here

    frame = pandas.DataFrame(rows(result, NO_ORIGIN)).drop(columns=_OF_A_RUN)
    # Without a type of its own, a column of nothing but None could not be computed with.
    floats = dict.fromkeys(("factor", "bpb", "bpb_low", "bpb_high"), "float64")
    return frame.astype({**floats, "stride": "Int64"})
