"""Measure a trained run's perplexity against context length, for many scalings at once.

python eval_ppl.py RUN [--sweep SWEEP.yaml] [--again] [key=value ...]
"""

from rope_jax import cli
from rope_jax.commands.main import sweep as main

if __name__ == "__main__":
    cli.run(main)
