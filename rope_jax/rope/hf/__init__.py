"""Reading and writing Hugging Face config dictionaries, without torch or transformers."""

from rope_jax.rope.hf.layers import layers_from_hf
from rope_jax.rope.hf.read import from_hf
from rope_jax.rope.hf.write import HF_FORMS, to_hf

__all__ = ["HF_FORMS", "from_hf", "layers_from_hf", "to_hf"]
