"""Show scalings pair by pair: wavelengths, turns, scale, and angles not seen in training.

    python scripts/show_scaling.py                                    # none; PI, NTK and YaRN by 4
    python scripts/show_scaling.py rotary_dim=128 base=500000 train_length=8192 length=131072
    python scripts/show_scaling.py 'scalings=[{type: yarn, factor: 8}, {type: cope}]'
    python scripts/show_scaling.py configs/extend.yaml length=2048    # a training run's scalings

Prints tables by pair and draws a figure.
"""

from rope_jax import cli
from rope_jax.commands.show import main

if __name__ == "__main__":
    cli.run(main)
