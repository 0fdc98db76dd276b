"""Run many experiments, one after the other or through Slurm, and compare their sweeps.

The same command continues.
"""

import sys
from pathlib import Path

from rope_jax import cli, stopping


def main(argv: list[str]) -> None:
    from rope_jax.config.grid import GridConfig

    parser = cli.parser("GRID.yaml", __doc__, GridConfig)
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="these keys")
    _, grid = cli.read_config(parser, argv, "config", "grids")
    from rope_jax.console import plain_console, print_message
    from rope_jax.grids.expand import expand
    from rope_jax.grids.run import done_jobs, run_jobs, shell_lines, submit
    from rope_jax.report.comparison import page_line

    stopping.check()
    jobs, logs = expand(grid), Path(grid.runs_dir) / "grids" / grid.name
    done = done_jobs(jobs)
    console = plain_console()
    if grid.dry_run:
        for job in jobs:
            print_message(console, f"{'done' if job.name in done else 'to do'}  {job.name}")
    elif grid.launcher == "print":
        for line in shell_lines(jobs, done):
            print(line)
    elif grid.launcher == "slurm":
        submit(jobs, done, grid.slurm, logs, console)
    else:
        if run_jobs(jobs, logs, console):
            sys.exit(1)
        if grid.compare is not None:
            cli.print_next(page_line(Path(grid.compare.output)))
