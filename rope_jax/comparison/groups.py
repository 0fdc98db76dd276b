"""Sweeps as comparisons use them, and groups of those whose runs differ only in their seed."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rope_jax.config.load import validate
from rope_jax.config.messages import shorten
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError, printable
from rope_jax.results.rows import PointKey, Row
from rope_jax.results.statistics import Sums
from rope_jax.results.tasks import EffectiveLength

MARK = "†"
# A separator, "s" or "seed" if anything, and the digits: not the 2 of gpt2 nor the s of novels.
_SEED_SUFFIX = re.compile(r"[-_.=](?:(?:s|seed)[-_.=]?)?\d+$")
_MAX_IN_BRIEF = 3


@dataclass(frozen=True, eq=False)
class Sweep:
    """The results in one sweep's folder."""

    folder: Path
    run: str
    seed: int
    rows: Sequence[Row]
    sums: Mapping[PointKey, Sums]
    """Sums by document of every row, and of `trained` at the window with same_tokens."""
    windows: Mapping[int, int]
    """The length that each checkpoint was last trained at, by step."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of each scaling as JSON, by the scaling's name."""
    baselines: Mapping[int, str] = field(default_factory=dict)
    """By step, the name of the curve with the checkpoint's own scaling, if there is one."""
    experiment: str | None = None
    """Equal for runs that differ only in their seed; None if unknown."""
    effective: Mapping[str, Mapping[str, EffectiveLength]] = field(default_factory=dict)
    """The newest checkpoint's effective lengths, by task and scaling."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def label(self) -> str:
        """The run's and the sweep's name."""
        return f"{self.run}/{self.name}"

    def points_at(self, step: int) -> dict[PointKey, Row]:
        """Return the rows of one checkpoint by their keys, in the order they were measured."""
        return {PointKey.of(row): row for row in self.rows if row.step == step}


@dataclass(frozen=True, eq=False)
class Group:
    """Sweeps of runs that differ only in their seed, or a single sweep."""

    label: str
    """What figures and tables call it."""
    sweeps: tuple[Sweep, ...]
    marked: bool = False
    """Whether it is shown although it cannot be compared with the others."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What distinguishes its runs from those of other groups: values by dotted config key."""
    name: str = ""
    """The runs' name, without their seeds."""

    def sweeps_at(self, step: int) -> list[Sweep]:
        """Return the sweeps that measured the checkpoint of this step."""
        return [sweep for sweep in self.sweeps if step in sweep.windows]

    @property
    def steps(self) -> list[int]:
        """The training steps that any of the sweeps measured."""
        return sorted({step for sweep in self.sweeps for step in sweep.windows})

    @property
    def newest(self) -> int:
        """The last training step that any of the sweeps measured."""
        return self.steps[-1]


def group_sweeps(
    sweeps: Sequence[Sweep], marked: Sequence[Sweep], labels: Mapping[str, str]
) -> list[Group]:
    """Put the seeds of each experiment into one group; a marked sweep stays alone.

    labels: what to call the runs, by their name without the seed.
    If any run has several sweeps, only sweeps of the same name share a group. Raises UserError if
    two sweeps of a group have the same seed.
    """
    by_run = Counter(str(sweep.folder.resolve().parent) for sweep in sweeps)
    several = max(by_run.values()) > 1
    members: dict[tuple[str, ...], list[Sweep]] = defaultdict(list)
    for sweep in sweeps:
        alone = sweep.experiment is None or sweep in marked
        key = str(sweep.folder) if alone else sweep.experiment or ""
        members[key, sweep.name if several else ""].append(sweep)
    for group in members.values():
        by_seed = {sweep.seed: sweep for sweep in group}
        for sweep in group:
            if (other := by_seed[sweep.seed]) is not sweep:
                raise UserError(
                    f"{sweep.label} and {other.label} have the same config and the same seed, "
                    f"{sweep.seed}, so they are not two seeds of a run; name only one of them"
                )
    names = _distinct_labels(list(members.values()), with_sweep_name=several)
    settings = distinguish([group[0].experiment for group in members.values()])
    groups = []
    for group, name, differs in zip(members.values(), names, settings, strict=True):
        seeds = f" ({len(group)} seeds)" if len(group) > 1 else ""
        is_marked = group[0] in marked
        mark = f" {MARK}" if is_marked else ""
        label = f"{labels.get(name, name)}{seeds}{mark}"
        groups.append(Group(label, tuple(group), is_marked, differs, name))
    return groups


def without_seed(name: str) -> str:
    """Return a name without a suffix such as -s1, _seed2 or -3; gpt2 and base10000 have none."""
    return _SEED_SUFFIX.sub("", name)


def _distinct_labels(groups: Sequence[Sequence[Sweep]], *, with_sweep_name: bool) -> list[str]:
    labels: list[str] = []
    for name in (
        _stem,
        lambda group: ", ".join(sweep.run for sweep in group),
        lambda group: ", ".join(str(sweep.folder) for sweep in group),
    ):
        labels = [name(group) + f" {group[0].name}" * with_sweep_name for group in groups]
        if len(set(labels)) == len(labels):
            break
    return labels


def _stem(group: Sequence[Sweep]) -> str:
    """Return the runs' shared name without the seed's suffix, or else the first and last run."""
    if len(group) == 1:
        return group[0].run
    shared = set.intersection(*({s.run, without_seed(s.run)} for s in group)) - {""}
    return max(shared, key=len, default=f"{group[0].run} to {group[-1].run}")


def distinguish(experiments: Sequence[str | None]) -> list[dict[str, str]]:
    """Return the settings in which experiments differ: for each, its own value by dotted key.

    Defaults are filled in. A key that only some have is listed where its value is not the default.
    None is not compared. How an imported model was trained is not known.
    """
    flat, given, imported = {}, {}, set()
    for i, text in enumerate(experiments):
        if text is not None:
            config = validate(TrainingConfig, {**json.loads(text), "name": "x"}, "config")
            flat[i] = dict(_flatten(config.model_dump(mode="json")))
            given[i] = dict(_flatten(config.model_dump(mode="json", exclude_defaults=True)))
            if config.imported is not None:
                imported.add(i)
    differing: list[dict[str, str]] = [{} for _ in experiments]
    for key in dict.fromkeys(key for values in flat.values() for key in values):
        is_known = key.partition(".")[0] in ("imported", "model", "rope")
        known = {i: values for i, values in flat.items() if is_known or i not in imported}
        present = {i: values[key] for i, values in known.items() if key in values}
        everywhere = len(present) == len(known)
        first = next(iter(present.values()), None)
        if everywhere and all(value == first for value in present.values()):
            continue
        for i, value in present.items():
            # a `type` is the default of its own model, so it counts if its section was given
            is_given = everywhere or key.removesuffix(".type") in given[i]
            is_hash = key == "imported.identity"  # which tells a reader nothing
            if is_given and not is_hash and not isinstance(value, dict):
                differing[i][key] = _text(value)
    return differing


def describe_settings(settings: Mapping[str, str], *, briefly: bool) -> str:
    """Return "rope.base 500000, model.hidden_size 64"; briefly: three, and how many more."""
    parts = [f"{key} {value}" for key, value in settings.items()]
    if not briefly or len(parts) <= _MAX_IN_BRIEF:
        return ", ".join(parts)
    return f"{', '.join(parts[:_MAX_IN_BRIEF])} and {len(parts) - _MAX_IN_BRIEF} more"


def _flatten(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield sections, lists of them by number, and values by dotted key, a `type` first."""
    for key, value in sorted(section.items(), key=lambda item: item[0] != "type"):
        if isinstance(value, list) and any(isinstance(element, dict) for element in value):
            value = {str(i): element for i, element in enumerate(value)}
        yield f"{path}{key}", value
        if isinstance(value, dict):
            yield from _flatten(value, f"{path}{key}.")


def _text(value: Any) -> str:
    """Return a value as in YAML, on one line, shortened; a whole number without ".0"."""
    if isinstance(value, list):
        return shorten(f"[{', '.join(map(_text, value))}]")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return shorten(printable(str(value))) or "''"
