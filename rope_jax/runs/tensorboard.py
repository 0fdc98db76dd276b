"""What to open in TensorBoard; `make tensorboard` prints it before TensorBoard starts.

python -m rope_jax.runs.tensorboard FOLDER
"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from rope_jax.errors import printable

MOST_TICKED = 40
"""TensorBoard unticks all of its runs where there are more, and then shows empty charts."""
_MOST_NAMED = 3
_ADDRESS = "http://localhost:6006/?smoothing=0"


def describe_tensorboard(folder: Path) -> list[str]:
    """Return lines on what to open, unsmoothed, and what to show if there are too many runs."""
    counts = count_event_folders(folder)
    inside = _newest(path for path in counts if path.parent == folder)
    lines = [
        f"Open {_ADDRESS}",
        f"All scalings on one chart: {_ADDRESS}#custom_scalars&_smoothingWeight=0",
    ]
    if (folder / "config.yaml").exists():
        lines.append(f"Shown: the run {folder} and its sweeps")
    else:
        one = inside[0] if inside else folder / "demo"
        lines.append(f"Shown: all of {folder}; for one run: make tensorboard RUNS={one}")
    if not counts:
        lines.append(f"{folder} holds nothing to show yet")
    elif counts[folder] > MOST_TICKED:
        # the largest folders that are shown as a whole
        fitting = _newest(
            path for path, n in counts.items() if n <= MOST_TICKED < counts.get(path.parent, 0)
        )
        lines.append(
            f"TensorBoard unticks all runs where there are more than {MOST_TICKED}, and {folder} "
            f"has {counts[folder]}: tick those to see, or give "
            + " or ".join(f"RUNS={path} ({counts[path]})" for path in fitting[:_MOST_NAMED])
        )
    return [printable(line) for line in lines]


def count_event_folders(folder: Path) -> dict[Path, int]:
    """Return how many runs (folders with an event file) TensorBoard finds in each folder."""
    runs = {path.parent for path in folder.rglob("*tfevents*")}
    return Counter(
        place for run in runs for place in (run, *run.parents) if place.is_relative_to(folder)
    )


def _newest(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


if __name__ == "__main__":
    print("\n".join(describe_tensorboard(Path(sys.argv[1]))), flush=True)
