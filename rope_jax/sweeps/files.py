"""What a sweep leaves: RUN/evals/<name>/, in its place when all of it is there."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

from rope_jax.config.load import dump
from rope_jax.config.sweep import SweepConfig
from rope_jax.evaluation.results import DocumentRow, Row
from rope_jax.plots import save_figure
from rope_jax.runs.files import write_text
from rope_jax.sweeps.figures import draw_checkpoints, draw_curves
from rope_jax.sweeps.results_files import write
from rope_jax.sweeps.tensorboard import write_events


def leave(
    folder: Path,
    config: SweepConfig,
    table: list[Row],
    by_document: list[DocumentRow],
    about: dict[str, Any],
) -> None:
    """Write a sweep's folder; one of the same name goes when the new one is in its place.

    about: what `summary` returned of the newest checkpoint, with those of the others under
    "earlier".
    """
    done, folder = folder, folder.with_name(f".{folder.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = dump(config)
    write_text(folder / "sweep.yaml", settings)
    write(folder, table, by_document, about)
    where = f"trained at {about['window']} tokens, {config.split} split, "
    documents = f"{about['documents']} documents"
    newest = [row for row in table if row.step == about["step"]]
    curves = draw_curves(
        newest,
        window=about["window"],
        truncation=about["nll_at_window"],
        title=f"{about['run']}, step {about['step']}: {where}{documents}",
    )
    save_figure(curves, folder / "curve.png")
    figures = {"curve": folder / "curve.png"}
    if about["earlier"]:
        figures["steps"] = folder / "steps.png"
        checkpoints = draw_checkpoints(
            table,
            windows=sorted({one["window"] for one in (about, *about["earlier"])}),
            title=f"{about['run']}, by training step: {documents}",
        )
        save_figure(checkpoints, figures["steps"])
    images = {
        name: (imread(path)[..., :3] * 255).round().astype(np.uint8)
        for name, path in figures.items()
    }
    write_events(folder, table, about, images, settings)
    # an earlier sweep goes when the new one is in its place, not before
    earlier = done.with_name(f".{done.name}.old")
    shutil.rmtree(earlier, ignore_errors=True)
    if done.exists():
        done.rename(earlier)
    folder.rename(done)
    shutil.rmtree(earlier, ignore_errors=True)
