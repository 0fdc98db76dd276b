"""The attention backends by name.

To add one, write a file in this folder with a subclass of `Backend` and list it below.
"""

from typing import TYPE_CHECKING, Literal

from rope_jax.attention.base import Backend
from rope_jax.attention.blockwise import Blockwise
from rope_jax.attention.cpu import Cpu
from rope_jax.attention.cudnn import Cudnn
from rope_jax.attention.dense import Xla
from rope_jax.attention.linear import LinearAttention
from rope_jax.attention.splash import Splash

__all__ = ["BACKENDS", "AttentionName", "Backend", "softmax_names"]


_ALL: tuple[type[Backend], ...] = (Xla, Blockwise, Cpu, Cudnn, Splash, LinearAttention)
BACKENDS: dict[str, Backend] = {backend.name: backend() for backend in _ALL}
"""Every backend, by the name that `model.attention` has for it."""

if TYPE_CHECKING:
    AttentionName = str
    """A backend's name, or auto."""
else:
    AttentionName = Literal["auto", *BACKENDS]


def softmax_names() -> tuple[str, ...]:
    """Return the choices of `model.attention` that have a softmax."""
    return ("auto", *(name for name, backend in BACKENDS.items() if backend.is_softmax))
