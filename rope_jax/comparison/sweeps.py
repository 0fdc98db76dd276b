"""Results of sweeps, found and read; what is not whole is refused, never half-read."""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rope_jax.config.load import load
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.results import DocumentRow, Row
from rope_jax.evaluation.statistics import Sums

# These say where and how a run was trained and what it kept, not what it trained.
_NOT_THE_MODEL = {
    *("name", "seed", "runs_dir", "mesh", "distributed", "checkpoint", "validation"),
    "log_every_steps",
}
_NUMBERS = {
    *("length", "first_position", "last_position", "step", "seed", "tokens", "documents", "stride"),
}
_FLOATS = {"factor", "nll", "ppl", "bpb", "ci_low", "ci_high", "seconds"}
_FLAGS = {"auto", "reliable"}

# name, protocol, length, step
Key = tuple[str, str, int, int]


@dataclass(frozen=True, eq=False)
class Sweep:
    """One folder of results."""

    folder: Path
    run: str
    seed: int
    rows: Sequence[Row]
    sums: Mapping[Key, Sums]
    """Of each row's documents; also of `trained` at the window by same_tokens."""
    windows: Mapping[int, int]
    """By step: the length that the checkpoint was last trained at."""
    settings: Mapping[str, str]
    """Of each scaling, by its name."""
    experiment: str | None
    """Equal for runs that differ in nothing but their seed; None where that is not known."""

    @property
    def label(self) -> str:
        """What the reader calls it."""
        return f"{self.run}/{self.name}"

    @property
    def name(self) -> str:
        """The sweep's own."""
        return self.folder.resolve().name


def find(paths: Sequence[Path], name: str | None) -> list[Path]:
    """The folders of results that are meant, each once.

    A path is a run or the folder of one of its sweeps. Of runs: the sweep of this name; without
    one, that which all of them have, or all sweeps if it is not one alone.
    """
    by_path = {path: _folders(path, name) for path in paths}
    runs = {path: found for path, found in by_path.items() if found != [path]}
    names = [{folder.name for folder in found} for found in runs.values()]
    common = set[str]().union(*names).intersection(*names)
    if len(runs) > 1 and len(common) == 1:
        by_path |= {path: [f for f in found if f.name in common] for path, found in runs.items()}
    found = {folder.resolve(): folder for folders in by_path.values() for folder in folders}
    return list(found.values())


def read(folder: Path) -> Sweep:
    """UserError where a file is missing, damaged, or not of one sweep with the others."""
    rows = [_row(folder, number, raw) for number, raw in _table(folder / "results.csv", Row)]
    if not rows:
        raise UserError(f"{folder / 'results.csv'}: holds no figure; sweep again")
    sums, settings = _sums(folder), _settings(folder / "sweep.yaml")
    _check_whole(folder, rows, sums, set(settings))
    summaries = _summaries(folder / "summary.json")
    sweep = Sweep(
        folder,
        rows[0].run,
        rows[0].seed,
        rows,
        sums,
        {step: window for (_, step), (window, _) in summaries.items()},
        settings,
        _experiment(folder.resolve().parent.parent / "config.yaml"),
    )
    _check_one(sweep, summaries)
    return sweep


def _folders(path: Path, name: str | None) -> list[Path]:
    if _is_sweep(path):
        if name is not None and path.resolve().name != name:
            raise UserError(f"sweep: {path} is another sweep than {name}; give its run instead")
        return [path]
    evals = path / "evals"
    if not evals.is_dir():
        raise UserError(f"{path}: neither a run that was swept nor a sweep's folder")
    # What begins with a dot is being written, or was when its process was killed.
    there = sorted(p for p in evals.iterdir() if _is_sweep(p) and not p.name.startswith("."))
    if name is not None:
        chosen = [folder for folder in there if folder.name == name]
        if not chosen:
            has = ", ".join(folder.name for folder in there) or "none"
            raise UserError(f"sweep: {path} has no sweep {name}; it has {has}")
        return chosen
    if not there:
        raise UserError(f"{path}: has no sweep; run eval_ppl.py on it first")
    return there


def _is_sweep(folder: Path) -> bool:
    """Whole or not."""
    return any((folder / name).exists() for name in ("results.csv", "sweep.yaml", "summary.json"))


def _table(path: Path, fields: Any) -> Iterable[tuple[int, dict[str, str]]]:
    try:
        text = path.read_text(encoding="utf-8")
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        missing = [f for f in fields._fields if f not in (table.fieldnames or ())]
        if missing:
            raise UserError(
                f"{path}: has no column {', '.join(missing)}; made by another version, or "
                "damaged: sweep again"
            )
        for number, raw in enumerate(table, start=2):
            if None in raw or None in raw.values():
                raise UserError(f"{path}: line {number} is not whole; sweep again")
            yield number, raw
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); sweep again") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); sweep again") from None
    if not text.endswith("\n"):
        raise UserError(f"{path}: its last line is not whole; sweep again")


def _row(folder: Path, number: int, raw: Mapping[str, str]) -> Row:
    try:
        return Row(**{field: _value(field, raw[field]) for field in Row._fields})
    except ValueError as error:
        raise UserError(f"{folder / 'results.csv'}: line {number}: {error}; sweep again") from None


def _value(field: str, text: str) -> Any:
    if text == "" and field in ("factor", "bpb", "stride"):
        return None
    if field in _NUMBERS:
        return int(text)
    if field in _FLOATS:
        return float(text)
    if field in _FLAGS:
        if text not in ("True", "False"):
            raise ValueError(f"{field} should be True or False, not {text!r}")
        return text == "True"
    return text


def _sums(folder: Path) -> dict[Key, Sums]:
    path = folder / "documents.csv"
    found: dict[Key, dict[int, tuple[float, float]]] = defaultdict(dict)
    for number, raw in _table(path, DocumentRow):
        try:
            key = raw["name"], raw["protocol"], int(raw["length"]), int(raw["step"])
            found[key][int(raw["document"])] = float(raw["nll"]), float(raw["weight"])
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {error}; sweep again") from None
    by_key = {}
    for key, documents in found.items():
        nll, weight = np.array([documents[number] for number in sorted(documents)]).T
        by_key[key] = Sums(nll, weight)
    return by_key


def _check_whole(
    folder: Path, rows: Sequence[Row], sums: Mapping[Key, Sums], names: set[str]
) -> None:
    """Figures and documents must agree: then neither file was cut short or is another sweep's."""
    keys = {(row.name, row.protocol, row.length, row.step) for row in rows}
    # `trained` at the window is there to compare with, though it be no curve of the sweep
    baseline = {k for k in sums if k[:2] == ("trained", "same_tokens") and "trained" not in names}
    wrong = [
        row
        for row in rows
        if (found := sums.get((row.name, row.protocol, row.length, row.step))) is None
        or len(found.nll) != row.documents
        or not _close(found.mean(), row.nll)
    ]
    whole = len(keys) == len(rows) and {key[0] for key in keys} == names
    if wrong or not whole or set(sums) != keys | baseline:
        raise UserError(
            f"{folder}: results.csv and documents.csv do not agree: one is cut short or of another "
            "sweep; sweep again"
        )


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def _summaries(path: Path) -> dict[tuple[str, int], tuple[int, float]]:
    """By run and step: the window, and the NLL of `trained` at it (nan where it is not there)."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return {
            (one["run"], int(one["step"])): (
                int(one["window"]),
                math.nan if (nll := one["nll_at_window"]) is None else float(nll),
            )
            for one in (about, *about["earlier"])
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path}: missing or damaged; sweep again") from None


def _check_one(sweep: Sweep, summaries: Mapping[tuple[str, int], tuple[int, float]]) -> None:
    """All of it is of one run, and the summary of these figures."""
    agree = set(summaries) == {(row.run, row.step) for row in sweep.rows}
    agree &= len({(row.run, row.seed) for row in sweep.rows}) == 1
    for (_, step), (window, nll) in summaries.items():
        sums = sweep.sums.get(("trained", "same_tokens", window, step))
        found = math.nan if sums is None or math.isinf(sums.mean()) else sums.mean()
        agree &= _close(found, nll)
    if not agree:
        raise UserError(f"{sweep.folder}: its files are of different sweeps; sweep again")


def _settings(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise UserError(f"{path}: missing; sweep again")
    entries = load(SweepConfig, path).scalings
    return {e.label: e.model_dump_json(exclude={"name"}) for e in entries}


def _experiment(config: Path) -> str | None:
    """A run's config without its seed and what does not change the model."""
    try:
        raw = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(raw, dict):
        return None
    kept = {key: value for key, value in raw.items() if key not in _NOT_THE_MODEL}
    if isinstance(kept.get("data"), dict):
        kept["data"] = {k: v for k, v in kept["data"].items() if k != "cache_dir"}
    return json.dumps(kept, sort_keys=True, default=str)
