"""Groups of runs that differ only in their seed, and their labels."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rope_jax.comparison.differences import distinguish
from rope_jax.comparison.sweeps import Sweep, readable_path
from rope_jax.errors import UserError

MARK = "†"
# A separator, "s" or "seed" if anything, and the digits: not the 2 of gpt2 nor the s of novels.
_SEED_SUFFIX = re.compile(r"[-_.=](?:(?:s|seed)[-_.=]?)?\d+$")
# A larger group is named after its first and last run.
_MOST_NAMES = 4


@dataclass(frozen=True, eq=False)
class Group:
    """Sweeps of runs that differ only in their seed, or a single sweep."""

    label: str
    sweeps: tuple[Sweep, ...]
    marked: bool
    """Whether it is shown although it cannot be compared with the others."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What distinguishes its runs from those of the other groups: values by dotted config key.

    Empty if there is one group, or nothing is known. `describe_settings` makes text of it.
    """

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


def group_sweeps(sweeps: Sequence[Sweep], marked: Sequence[Sweep]) -> list[Group]:
    """Put the seeds of each experiment into one group; a marked sweep stays alone.

    If any run has several sweeps, only sweeps of the same name share a group. Raises UserError if
    two sweeps of a group have the same seed.
    """
    by_run: dict[str, int] = defaultdict(int)
    for sweep in sweeps:
        by_run[str(sweep.folder.resolve().parent)] += 1
    several = max(by_run.values()) > 1
    members: dict[tuple[str, ...], list[Sweep]] = defaultdict(list)
    for sweep in sweeps:
        alone = sweep.experiment is None or sweep in marked
        key = str(sweep.folder) if alone else sweep.experiment or ""
        members[key, sweep.name if several else ""].append(sweep)
    for group in members.values():
        _check_seeds(group)
    labels = _distinct_labels(list(members.values()), with_sweep_name=several)
    settings = distinguish([group[0].experiment for group in members.values()])
    groups = []
    for group, label, own in zip(members.values(), labels, settings, strict=True):
        if len(group) > 1:
            label += f" ({len(group)} seeds)"
        is_marked = group[0] in marked
        label += f" {MARK}" if is_marked else ""
        groups.append(Group(label=label, sweeps=tuple(group), marked=is_marked, settings=own))
    return groups


def without_seed(name: str) -> str:
    """Return a run's name without a suffix that names its seed, such as -s1, _seed2 or -3.

    The suffix begins with a separator: the names gpt2, bass and base10000 are complete.
    """
    return _SEED_SUFFIX.sub("", name)


def _check_seeds(group: Sequence[Sweep]) -> None:
    by_seed = {sweep.seed: sweep for sweep in group}
    for sweep in group:
        other = by_seed[sweep.seed]
        if other is not sweep:
            raise UserError(
                f"{sweep.label} and {other.label} have the same config and the same seed, "
                f"{sweep.seed}, so they are not two seeds of a run; name only one of them"
            )


def _distinct_labels(groups: Sequence[Sequence[Sweep]], *, with_sweep_name: bool) -> list[str]:
    """Return the shortest labels that tell the groups apart."""
    labels: list[str] = []
    for name in (_stem, _runs, _folders):
        labels = [name(group) + f" {group[0].name}" * with_sweep_name for group in groups]
        if len(set(labels)) == len(labels):
            break
    return labels


def _stem(group: Sequence[Sweep]) -> str:
    """Return the runs' shared name without a seed suffix such as -s1, _seed2 or -3."""
    if len(group) == 1:
        return group[0].run
    shared = set.intersection(*({s.run, without_seed(s.run)} for s in group))
    if shared - {""}:
        return max(shared, key=len)
    names = [sweep.run for sweep in group]
    return ", ".join(names if len(names) <= _MOST_NAMES else (names[0], "…", names[-1]))


def _runs(group: Sequence[Sweep]) -> str:
    return ", ".join(sweep.run for sweep in group)


def _folders(group: Sequence[Sweep]) -> str:
    return ", ".join(readable_path(sweep.folder) for sweep in group)
