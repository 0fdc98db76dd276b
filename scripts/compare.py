"""Compare the results of many runs, seeds and sweeps in a figure, tables and an interactive page.

    python scripts/compare.py runs/demo runs/wide                  # the one sweep that both have
    python scripts/compare.py runs/demo-s* sweep=demo              # the same sweep of several seeds
    python scripts/compare.py runs/demo/evals/demo runs/wide/evals/demo output=figures/wide

Runs that differ in nothing but their seed are pooled into one curve, whose interval is over
documents and seeds. Writes comparison.png, .html, .md and .csv to the folder `output`.
"""

from rope_jax import cli
from rope_jax.commands.compare import main

if __name__ == "__main__":
    cli.run(main)
