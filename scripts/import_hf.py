"""Import a Hugging Face checkpoint as a run directory, without torch.

    python scripts/import_hf.py MODEL [name=…] [window=…] [param_dtype=bfloat16] [key=value …]

MODEL is a folder with config.json, safetensors and tokenizer.json, an id on the hub, or a GGUF
file. The run is like any other: eval_ppl.py sweeps it, scripts/fit.py fits it, init_from starts
training from it.
"""

from rope_jax import cli
from rope_jax.commands.importing import main

if __name__ == "__main__":
    cli.run(main)
