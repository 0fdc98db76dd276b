"""Train a small decoder language model from a config file.

python train.py CONFIG.yaml [key=value ...]
"""

from rope_jax import cli
from rope_jax.commands.main import train as main

if __name__ == "__main__":
    cli.run(main)
