"""Compare every family with the golden logits of transformers, and write docs/families.csv.

    python scripts/check_families.py && make generate

For each family: how many tiny models were compared (`tests/checkpoints/golden/`), the worst
difference of a logit, and which of them cannot be exported again. The columns `models`, `decoder`
and `refused` are written by hand; a new family gets an empty row.
"""

import csv
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rope_jax.checkpoints.exporting import describe
from rope_jax.checkpoints.families import FAMILIES
from rope_jax.checkpoints.reading import read_description
from rope_jax.errors import UserError
from tests.checkpoints.cases import read_cases
from tests.checkpoints.folders import config_of, logit_differences

FILE = Path(__file__).parents[1] / "docs/families.csv"


def kept_back(family: str) -> str:
    """Return the names of the tiny models that no family of transformers can express, with why."""
    reasons = []
    for case in read_cases(family):
        config = config_of(read_description(json.loads(case.config), "config.json"))
        try:
            length = config.stages[0].length
            describe(config, config.rope.scaling, length, config.model.vocab_size or 0, family)
        except UserError as error:
            reasons.append(f"{case.name}: {error}")
    return "; ".join(reasons)


def main() -> None:
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = {row["model_type"]: row for row in csv.DictReader(file)}
    made = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            worst = max(each for *_, each in logit_differences(family, Path(folder)))
        row = rows.get(family, dict.fromkeys(("models", "decoder", "refused"), ""))
        row |= {
            "model_type": family,
            "compared": str(len(read_cases(family))),
            "worst": f"{worst:.1e}",
        }
        made.append(row | {"not_exported": kept_back(family)})
        print(f"{family:16} {row['compared']:>3} models, {worst:.1e}  {made[-1]['not_exported']}")
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(made[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)


if __name__ == "__main__":
    main()
