"""The model card of an extension: what was found, measured and set, for whoever gets the model."""

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rope_jax import __version__
from rope_jax.checkpoints.open import HUB_ID, is_gguf
from rope_jax.config.extend import ExtendPlan
from rope_jax.config.load import dump_yaml, flow_yaml, parse_yaml
from rope_jax.config.training import TrainingConfig
from rope_jax.extending.planning import SCREENING
from rope_jax.extras import needs_extra
from rope_jax.report.table import escape_markdown
from rope_jax.results.files import SweepTables

CARD = "README.md"
_FRONT_MATTER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
_TITLE, _HEADING = re.compile(r"# .*\n+"), re.compile("^##(?= )", re.MULTILINE)


def model_card(
    training: TrainingConfig,
    plan: ExtendPlan,
    tables: SweepTables,
    sentences: list[str],
    evals: Path,
) -> str:
    """Return the card as Markdown, with the keys that the hub reads above it; evals: the sweep's.

    It has the sweep's tables, results.md, and the settings of runtimes, settings.md.
    """
    files = evals / "results.md", evals / "settings.md"
    results, settings = (
        _HEADING.sub("###", _TITLE.sub("", file.read_text("utf-8"), 1)) for file in files
    )
    asked, newest, row = plan.asked, tables.checkpoints[0], tables.rows[0]
    data = asked.data or training.data
    imported = "" if training.imported is None else f", imported from `{training.imported.model}`"
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "numpy"))
    facts = [
        f"model: `{training.name}`, step {newest.step}{imported}, window {newest.window:,} tokens",
        f"texts: {data.type} {_written(data, 'cache_dir', 'mix')}, split {row.split}, corpus "
        f"{row.corpus}",
        f"windows: {row.tokens:,} scored tokens in {row.documents:,} documents, seed "
        f"{plan.sweep.seed}; the same tokens at every length and for every candidate",
        *([f"screening: {SCREENING} other windows chose the candidate"] if plan.screening else []),
        f"fit: {'none' if plan.fit is None else _written(plan.fit, 'data')}",
        f"versions: rope-jax {__version__}, {packages}",
    ]
    return "\n".join(
        [
            f"---\n{dump_yaml(_hub_keys(training))}---\n",
            f"# {escape_markdown(training.name)} for {asked.length:,} tokens\n",
            *(f"{escape_markdown(sentence)}\n" for sentence in sentences),
            "## Measured\n",
            results,
            "## How\n",
            *(f"* {fact}" for fact in facts),
            "\n## Settings\n",
            settings,
        ]
    )


def _written(config: BaseModel, *without: str) -> str:
    """Return the settings that are not defaults as YAML in one line."""
    settings = config.model_dump(mode="json", exclude_defaults=True, exclude={*without})
    return f"`{flow_yaml(settings)}`"


def _hub_keys(training: TrainingConfig) -> dict[str, Any]:
    """Return what the hub lists a model by; licence and base model where they are known."""
    keys: dict[str, Any] = {"tags": ["long-context", "rope-jax"]}
    if training.imported is None:
        return keys
    source, known = training.imported.model, dict[str, Any]()
    path = Path(source).expanduser()
    if path.is_file() and is_gguf(source):
        with needs_extra("gguf", f"{source}: GGUF"):
            from rope_jax.checkpoints.gguf.header import read_header
        known["license"] = read_header(path).metadata.get("general.license")
    elif (card := path / "README.md").is_file():
        matter = _FRONT_MATTER.match(card.read_text("utf-8"))
        known = (parse_yaml(matter[1], f"{card}:") if matter else None) or {}
    elif HUB_ID.fullmatch(source):
        known["base_model"] = source
    return keys | {key: known[key] for key in ("license", "base_model") if known.get(key)}
