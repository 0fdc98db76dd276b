"""Made-up results of a sweep."""

from typing import Any

from rope_jax.results.rows import Row
from rope_jax.results.statistics import perplexity
from rope_jax.results.summary import CheckpointSummary, CurveSummary
from rope_jax.results.tasks import TaskRow


def row(name: str, length: int, nll: float, half: float = 0.1, **fields: Any) -> Row:
    """Return a row of results.csv; half: of the interval. "pi-auto" and "yarn-4" say what it is."""
    nll = float(nll)
    values: dict[str, Any] = dict.fromkeys(Row._fields)
    values |= {"name": name, "scaling": "none", "map": "", "auto": name.endswith("auto")}
    if name != "trained":
        values |= {"scaling": name.partition("-")[0], "factor": 4.0 if "-" in name else None}
    values |= {"protocol": "same_tokens", "length": length, "last_position": length}
    values |= {"first_position": length - 3, "step": 500, "run": "demo", "seed": 0}
    values |= {"split": "test", "nll": nll, "ppl": perplexity(nll), "metric": "nats"}
    values |= {"value": nll, "ci_low": nll - half, "ci_high": nll + half, "reliable": True}
    values |= {"tokens": 120, "documents": 24, "units": 24, "corpus": "", "bos": "document"}
    return Row(**(values | fields))


def curve(usable: Any = None, **fields: Any) -> CurveSummary:
    empty: dict[str, Any] = {"blow_up": {}, "above_truncation": {}}
    empty |= {"difference_from_trained": {}, "usable_at_most": usable}
    return CurveSummary(usable=usable, **(empty | fields))


def checkpoint(**fields: Any) -> CheckpointSummary:
    """Return the summary of step 500 of a run trained at 16 tokens."""
    known = {"run": "demo", "step": 500, "window": 16, "nll_at_window": 1.0, "tolerance": 0.02}
    known |= {"documents": 24, "units": 24}
    return CheckpointSummary(**(known | fields))


def task_row(name: str, length: int, value: float, half: float = 0.1, **fields: Any) -> TaskRow:
    """Return a row of tasks.csv about exact answers."""
    values: dict[str, Any] = dict.fromkeys(TaskRow._fields)
    values |= {"name": name, "scaling": "none", "map": "", "auto": False, "length": length}
    values |= {"task": "passkey", "kind_of_task": "passkey", "taken_out": False, "metric": "exact"}
    values |= {"value": value, "ci_low": max(0.0, value - half), "ci_high": min(1.0, value + half)}
    values |= {"chance": 0.25, "samples": 64, "answers": 64, "tokens": 640, "targets": "abc"}
    values |= {"step": 100, "run": "one", "seed": 0, "corpus": "c0ffee", "split": "test"}
    return TaskRow(**(values | {"bos": "document", "seconds": 0.5} | fields))
