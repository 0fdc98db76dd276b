"""Context-extension experiments with rotary position embeddings, in JAX."""

__version__ = "0.1.0"
