"""Find the tokens of a split that need far context, as a mask for LongPPL in sweeps.

python scripts/key_tokens.py RUN short=512 [key=value ...]
"""

from rope_jax import cli
from rope_jax.commands.key_tokens import main

if __name__ == "__main__":
    cli.run(main)
