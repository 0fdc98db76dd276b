"""Show what training runs and fits took: numbers trained, tokens read, seconds.

    python scripts/show_costs.py runs/demo runs/extend-yarn-4x
    python scripts/show_costs.py runs/* output=costs.csv

Prints one row for each run and for each of its fits, and writes the same to a CSV file.
"""

from rope_jax import cli
from rope_jax.commands.costs import main

if __name__ == "__main__":
    cli.run(main)
