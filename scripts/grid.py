"""Run many experiments: training runs, fits and sweeps for every combination, and a comparison.

    python scripts/grid.py configs/grids/seeds.yaml
    python scripts/grid.py configs/grids/seeds.yaml dry_run=true     # show the jobs and stop
    python scripts/grid.py configs/grids/seeds.yaml launcher=print   # one shell command per job

Each job is one of the other commands, in a process of its own with a log. What is done is skipped,
so the same command continues a grid that was interrupted. After a failure the jobs that need the
failed one are left out, all others run, and the exit status is 1.
"""

from rope_jax import cli
from rope_jax.commands.grid import main

if __name__ == "__main__":
    cli.run(main)
