"""Export a run as a directory that transformers loads.

    python scripts/export_hf.py RUN OUT [step=…] [strategy=RUN/fits/…/strategy.json] [key=value …]

OUT gets config.json with rope_parameters, model.safetensors, and the tokenizer, bytes included.
"""

from rope_jax import cli
from rope_jax.commands.exporting import main

if __name__ == "__main__":
    cli.run(main)
