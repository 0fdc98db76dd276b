"""The attention backends by name. Imports no jax until one of them computes.

To add one, write a file here with a subclass of `Backend` and list it below.
"""

from typing import TYPE_CHECKING, Literal

from rope_jax.attention.backends.base import Backend
from rope_jax.attention.backends.cudnn import Cudnn
from rope_jax.attention.backends.own import Blockwise, Cpu, Linear, Splash, Xla

__all__ = ["BACKENDS", "AttentionName", "Backend", "softmax_names"]

_ALL: tuple[type[Backend], ...] = (Xla, Blockwise, Cpu, Cudnn, Splash, Linear)
BACKENDS: dict[str, Backend] = {backend.name: backend() for backend in _ALL}
"""Every backend, by the name that `model.attention` has for it."""

if TYPE_CHECKING:
    AttentionName = str
    """A backend's name, or auto."""
else:
    AttentionName = Literal["auto", *BACKENDS]


def softmax_names() -> tuple[str, ...]:
    """Return the choices of `model.attention` that have a softmax."""
    return ("auto", *(name for name, each in BACKENDS.items() if each.is_softmax))
