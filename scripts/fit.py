"""Fit a run's positions by gradient descent, with its weights frozen.

python scripts/fit.py RUN length=512 [--fit FIT.yaml] [key=value ...]
"""

from rope_jax import cli
from rope_jax.commands.fit import main

if __name__ == "__main__":
    cli.run(main)
