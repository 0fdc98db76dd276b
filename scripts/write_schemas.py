"""Write the JSON schemas of configs, by which an editor completes and checks the YAML.

python scripts/write_schemas.py      # or: make schema; to configs/schema/
"""

import json
import sys
from pathlib import Path

from pydantic import BaseModel

# This repository's package, whichever is installed.
sys.path.insert(0, str(Path(__file__).parents[1]))

from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig

FOLDER = Path(__file__).parents[1] / "configs/schema"
# By the name of the file that the first lines of configs/**/*.yaml refer to.
SCHEMAS: dict[str, type[BaseModel]] = {
    "train": TrainingConfig,
    "sweep": SweepConfig,
    "grid": GridConfig,
    "fit": FitConfig,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, model in SCHEMAS.items():
        text = json.dumps(model.model_json_schema(), indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
