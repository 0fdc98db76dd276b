"""Show position maps: the relative position at which each query sees each key, as a picture.

    python scripts/show_maps.py                              # every map, 4 windows of 128 tokens
    python scripts/show_maps.py window=1024 length=8192
    python scripts/show_maps.py 'maps=[leaky_rerope, {type: self_extend, window: 64, group: 8}]'

Draws a figure, writes r by distance from the last token to a .csv beside it, and prints one row per
map: its settings, the largest relative position, and whether it keeps the text inside the window.
"""

from rope_jax import cli
from rope_jax.commands.maps import main

if __name__ == "__main__":
    cli.run(main)
