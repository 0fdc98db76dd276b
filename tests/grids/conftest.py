"""A folder with a grid whose commands are stand-ins: they start as real processes, in milliseconds.

Each leaves the files that the real command leaves at its end, as far as a grid looks at them.
"""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Shared by the stand-ins: fails while a file fail-NAME is there, waits while hang-NAME is there.
COMMON = """\
import json, os, pathlib, signal, sys, time
def stop(number, frame):
    print(f"stopped by signal {number}", flush=True)
    sys.exit(128 + number)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
def begin(name):
    print(f"begins {name}", flush=True)
    while os.path.exists(f"hang-{name}"):
        time.sleep(0.01)
    if os.path.exists(f"fail-{name}"):
        sys.exit(f"there is no luck for {name}")
given = sys.argv[1:]
settings = dict(a.partition("=")[::2] for a in given if "=" in a)
places = [pathlib.Path(a) for a in given if "=" not in a and a != "--sweep"]
"""
TRAIN = """\
import hashlib
name = settings["name"]
begin(name)
run = pathlib.Path(settings["runs_dir"], name)
(run / "checkpoints" / "200").mkdir(parents=True, exist_ok=True)
lines = [l for l in places[0].read_text().splitlines() if l.partition(":")[0] not in settings]
lines += [f"{k}: {v}" for k, v in settings.items() if "." not in k and k != "init_from"]
(run / "config.yaml").write_text("\\n".join(lines) + "\\n")
(run / "metrics.jsonl").write_text(json.dumps({"step": 200, "seed": settings.get("seed")}) + "\\n")
"""
SWEEP = """\
run, config = places
name = settings.get("name", "short")
begin(f"{run.name}-{name}")
folder = run / "evals" / name
folder.mkdir(parents=True, exist_ok=True)
folder.joinpath("sweep.yaml").write_text(config.read_text())
summary = {"step": 200, "given": given[1:], "config": config.read_text()}
folder.joinpath("summary.json").write_text(json.dumps(summary))
"""
FIT = """\
run, = places
begin(settings["name"])
folder = run / "fits" / settings["name"]
folder.mkdir(parents=True, exist_ok=True)
folder.joinpath("strategy.yaml").write_text("type: pi\\nfactor: 2\\n")
folder.joinpath("summary.json").write_text(json.dumps(given[1:]))
"""
COMPARE = """\
begin("compare")
folder = pathlib.Path(settings.get("output", "comparison"))
folder.mkdir(parents=True, exist_ok=True)
folder.joinpath("comparison.csv").write_text("\\n".join(map(str, places)) + "\\n")
"""

RUN = "name: tiny\nstages: [{steps: 200, seq_len: 128, batch_size: 16}]\n"
SWEEP_YAML = "name: short\nlengths: [64, 128]\n"
GRID = """\
name: small
window: 128
runs:
  - {name: tiny, train: run.yaml, axes: {seed: [0, 1]}, set: {seed: '{seed}'}, sweeps: [sweep.yaml]}
compare: {output: compared}
"""


@pytest.fixture
def stand_ins(tmp_path):
    """Return the root of a repository whose commands are stand-ins, with the real grid.py."""
    root = tmp_path / "repository"
    (root / "scripts").mkdir(parents=True)
    (root / "train.py").write_text(COMMON + TRAIN)
    (root / "eval_ppl.py").write_text(COMMON + SWEEP)
    (root / "scripts/fit.py").write_text(COMMON + FIT)
    (root / "scripts/compare.py").write_text(COMMON + COMPARE)
    shutil.copy(ROOT / "scripts/grid.py", root / "scripts/grid.py")
    return root


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a working directory with the configs of a small grid."""
    here = tmp_path / "here"
    here.mkdir()
    for name, text in {"run.yaml": RUN, "sweep.yaml": SWEEP_YAML, "grid.yaml": GRID}.items():
        (here / name).write_text(text)
    monkeypatch.chdir(here)
    return here
