"""Config values as short text for messages, worded as in `rope_jax.rope.messages`."""

from rope_jax.rope.messages import alternatives, shorten, show_value

__all__ = ["alternatives", "shorten", "show_value"]
