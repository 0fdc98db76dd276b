"""What to open in TensorBoard; `make tensorboard` prints it before TensorBoard starts.

python -m rope_jax.runs.tensorboard FOLDER
"""

import sys
from pathlib import Path

from rope_jax.errors import printable

MOST_TICKED = 40
"""TensorBoard unticks all of its runs where there are more, and then shows empty charts."""
_ADDRESS = "http://localhost:6006/?smoothing=0"


def describe_tensorboard(folder: Path) -> list[str]:
    """Return lines on what to open, unsmoothed, and what to show if there are too many runs."""
    count = len({path.parent for path in folder.rglob("*tfevents*")})
    shown = f"all of {folder}; for one run: make tensorboard RUNS={folder}/NAME"
    if (folder / "config.yaml").exists():
        shown = f"the run {folder} and its sweeps"
    charts = f"All scalings on one chart: {_ADDRESS}#custom_scalars&_smoothingWeight=0"
    lines = [f"Open {_ADDRESS}", charts, f"Shown: {shown}"]
    if not count:
        lines.append(f"{folder} holds nothing to show yet")
    elif count > MOST_TICKED:
        lines.append(
            f"TensorBoard unticks all runs where there are more than {MOST_TICKED}, and {folder} "
            f"has {count}: tick those to see, or give RUNS=, the folder of one run or one sweep"
        )
    return [printable(line) for line in lines]


if __name__ == "__main__":
    print("\n".join(describe_tensorboard(Path(sys.argv[1]))), flush=True)
