"""Run many experiments: training runs, fits and sweeps for every combination, and a comparison.

    python scripts/grid.py configs/grids/seeds.yaml
    python scripts/grid.py configs/grids/seeds.yaml dry_run=true     # show the jobs and stop
    python scripts/grid.py configs/grids/seeds.yaml launcher=print   # one shell command per job

Each job is one of the other commands, in a process of its own with a log. What is done is skipped,
so the same command continues a grid that was interrupted. After a failure the jobs that need the
failed one are left out, all others run, and the exit status is 1.
"""

import sys
from pathlib import Path

from rope_jax import cli, stopping

ROOT = Path(__file__).resolve().parents[1]


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.grid import GridConfig

    parser = cli.parser(
        "grid.py GRID.yaml [key=value ...] [--print-config]",
        "Run many experiments, one after the other or through Slurm, and compare their sweeps; the "
        "same command continues. Keys of the grid:",
        GridConfig,
    )
    grid = cli.load_asked(parser, argv, GridConfig)
    if grid is None:
        return
    from rope_jax.console import plain_console
    from rope_jax.grids.expand import GRIDS, expand
    from rope_jax.grids.launchers import shell_lines, submit
    from rope_jax.grids.run import done_jobs, print_failures, print_line, run_jobs

    stopping.check()
    jobs, logs = expand(grid), Path(grid.runs_dir) / GRIDS / grid.name
    done = done_jobs(jobs)
    console = plain_console()
    if grid.dry_run:
        for job in jobs:
            print_line(console, f"{'done' if job.name in done else 'to do'}  {job.name}")
    elif grid.launcher == "print":
        for line in shell_lines(jobs, done, ROOT):
            print(line)
    elif grid.launcher == "slurm":
        submit(jobs, done, grid.slurm, ROOT, logs, console)
    else:
        failed = run_jobs(jobs, ROOT, logs, console)
        if failed:
            print_failures(console, jobs, failed, logs)
            sys.exit(1)


if __name__ == "__main__":
    cli.run(main)
