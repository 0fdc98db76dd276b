"""Stand-ins for the commands of a grid: they leave the files that a grid looks at, at once.

One fails while a file fail-NAME is there, and waits while hang-NAME is there. `main` is a command
in a process of its own, or a grid that starts such commands; `Process` runs one in this process, in
the place of `subprocess.Popen`.
"""

import contextlib
import io
import json
import os
import signal
import sys
import time
from pathlib import Path


def begin(name):
    print(f"begins {name}", flush=True)
    while Path(f"hang-{name}").exists():
        time.sleep(0.01)
    if Path(f"fail-{name}").exists():
        sys.exit(f"there is no luck for {name}")


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("_", ".")).write_text(text)


def train(places, settings, given):
    begin(settings["name"])
    run = Path(settings["runs_dir"], settings["name"])
    (run / "checkpoints" / "200").mkdir(parents=True, exist_ok=True)
    if "init_from" in settings:  # which takes a second to import
        from rope_jax.config.inherit import load_training
        from rope_jax.config.load import dump

        text = dump(load_training(places[0], given[1:]))
    else:
        lines = places[0].read_text().splitlines()
        kept = [line for line in lines if line.partition(":")[0] not in settings]
        kept += [f"{key}: {value}" for key, value in settings.items() if "." not in key]
        text = "\n".join(kept) + "\n"
    write(run, config_yaml=text, metrics_jsonl={"step": 200, "seed": settings.get("seed")})


def sweep(places, settings, given):
    run, config = places
    name, text = settings.get("name", "short"), config.read_text()
    begin(f"{run.name}-{name}")
    if settings:
        from rope_jax.config.load import dump, load
        from rope_jax.config.sweep import SweepConfig

        text = dump(load(SweepConfig, config, given[3:]))
    summary = {"step": 200, "given": given[1:], "config": config.read_text()}
    write(run / "evals" / name, sweep_yaml=text, summary_json=summary)


def fit(places, settings, given):
    from rope_jax.config.fit import FitConfig
    from rope_jax.config.load import dump, load

    begin(settings["name"])
    config, steps = load(FitConfig, None, given[1:]), (places[0] / "checkpoints").iterdir()
    write(
        places[0] / "fits" / config.name,
        fit_yaml=dump(config),
        strategy_json={"scaling": {"type": "pi", "factor": config.length[-1] / 128}, "map": None},
        summary_json={"step": max(int(path.name) for path in steps), "length": config.length},
    )


def compare(places, settings, given):
    begin("compare")
    folder = Path(settings.get("output", "comparison"))
    write(folder, comparison_csv="".join(f"{place}\n" for place in places))


COMMANDS = {
    "train": train,
    "sweep": sweep,
    "fit": fit,
    "compare": compare,
}


def call(name, given):
    settings = dict(word.partition("=")[::2] for word in given if "=" in word)
    places = [Path(word) for word in given if "=" not in word and word != "--sweep"]
    COMMANDS[name](places, settings, given)


def command(job):
    """In the place of `Job.command`: this file's command."""
    return [sys.executable, "-m", "tests.grids.stand_ins", *job.words(), *job.overrides]


def main(name, *given):
    if name == "grid":
        from rope_jax import cli
        from rope_jax.commands.main import grid
        from rope_jax.grids.jobs import Job

        Job.command = command
        sys.argv = ["rope-jax", *given]
        cli.run(grid)

    if Path("kill").exists():  # what Slurm sends to all processes of a job
        for number in (signal.SIGUSR2, signal.SIGTERM):
            os.kill(0, number)

    def stop(number, frame):
        print(f"stopped by signal {number}", flush=True)
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    call(name, given)


class Process:
    """A command that runs in this process, to its end."""

    def __init__(self, command, stdout, **_):
        said, self.returncode = io.StringIO(), 0
        try:
            with contextlib.redirect_stdout(said):
                call(command[3], command[4:])
        except SystemExit as error:
            print(error, file=said)
            self.returncode = 1
        stdout.write(said.getvalue())

    def wait(self, timeout=None):
        return self.returncode

    def poll(self):
        return self.returncode


if __name__ == "__main__":
    main(*sys.argv[1:])
