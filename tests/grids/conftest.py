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
name = settings["name"]
begin(name)
run = pathlib.Path(settings["runs_dir"], name)
(run / "checkpoints" / "200").mkdir(parents=True, exist_ok=True)
if "init_from" in settings:  # which takes a second to import
    from rope_jax.config.inherit import load_training
    from rope_jax.config.load import dump
    text = dump(load_training(places[0], given[1:]))
else:
    lines = [l for l in places[0].read_text().splitlines() if l.partition(":")[0] not in settings]
    lines += [f"{k}: {v}" for k, v in settings.items() if "." not in k]
    text = "\\n".join(lines) + "\\n"
(run / "config.yaml").write_text(text)
(run / "metrics.jsonl").write_text(json.dumps({"step": 200, "seed": settings.get("seed")}) + "\\n")
"""
SWEEP = """\
run, config = places
name = settings.get("name", "short")
begin(f"{run.name}-{name}")
folder = run / "evals" / name
folder.mkdir(parents=True, exist_ok=True)
text = config.read_text()
if settings:
    from rope_jax.config.load import dump, load
    from rope_jax.config.sweep import SweepConfig
    text = dump(load(SweepConfig, config, given[3:]))
folder.joinpath("sweep.yaml").write_text(text)
summary = {"step": 200, "given": given[1:], "config": config.read_text()}
folder.joinpath("summary.json").write_text(json.dumps(summary))
"""
FIT = """\
from rope_jax.config.fit import FitConfig
from rope_jax.config.load import dump, load
run, = places
begin(settings["name"])
config = load(FitConfig, None, given[1:])
folder = run / "fits" / config.name
folder.mkdir(parents=True, exist_ok=True)
file, summary = folder / "fit.yaml", folder / "summary.json"
if file.exists() and load(FitConfig, file) != config:
    sys.exit(f"{folder}: holds a fit with other settings; choose another name, or delete it")
file.write_text(dump(config))
if summary.exists():
    sys.exit(print(f"{folder}: already fitted"))
strategy = {"scaling": {"type": "pi", "factor": config.length[-1] / 128}, "map": None}
folder.joinpath("strategy.json").write_text(json.dumps(strategy))
step = max(int(path.name) for path in (run / "checkpoints").iterdir())
summary.write_text(json.dumps({"step": step, "fit": config.name, "length": config.length}))
"""
COMPARE = """\
begin("compare")
folder = pathlib.Path(settings.get("output", "comparison"))
folder.mkdir(parents=True, exist_ok=True)
folder.joinpath("comparison.csv").write_text("\\n".join(map(str, places)) + "\\n")
"""

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
def stand_ins(tmp_path, monkeypatch):
    """Return the root of a repository whose commands are stand-ins, with the real grid.py."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
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
    files = {"run.yaml": RUN, "sweep.yaml": SWEEP_YAML, "fit.yaml": FIT_YAML, "grid.yaml": GRID}
    for name, text in files.items():
        (here / name).write_text(text)
    monkeypatch.chdir(here)
    return here
