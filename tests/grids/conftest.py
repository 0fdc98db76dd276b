"""A folder with a grid, and stand-ins for its commands, which take milliseconds."""

from pathlib import Path

import pytest

from rope_jax.grids.jobs import Job
from tests.grids import stand_ins as commands

ROOT = Path(__file__).parents[2]
RUN = "name: tiny\nstages: [{steps: 200, seq_len: 128, batch_size: 16}]\n"
SWEEP_YAML = "name: short\nlengths: [64, 128]\n"
FIT_YAML = "length: 512\n"
GRID = """\
name: small
window: 128
runs:
  - {name: tiny, train: run.yaml, axes: {seed: [0, 1]}, set: {seed: '{seed}'}, sweeps: [sweep.yaml]}
compare: {output: compared}
"""


@pytest.fixture
def stand_ins(monkeypatch):
    """Let every job run a stand-in instead of its command."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(Job, "command", commands.command)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a working directory with the configs of a small grid."""
    here = tmp_path / "here"
    here.mkdir()
    files = {"run.yaml": RUN, "sweep.yaml": SWEEP_YAML, "fit.yaml": FIT_YAML, "grid.yaml": GRID}
    for name, text in files.items():
        (here / name).write_text(text)
    monkeypatch.chdir(here)
    return here
