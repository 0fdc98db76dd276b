"""The attention backends by name.

To add one, write a file in this folder with a subclass of `Backend` and list it below.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from jaxtyping import Array, Float, Int

from rope_jax.attention.base import Backend
from rope_jax.attention.blockwise import Blockwise, PlainKernel
from rope_jax.attention.cpu import Cpu
from rope_jax.attention.cudnn import Cudnn
from rope_jax.attention.dense import Xla
from rope_jax.attention.linear import Linear
from rope_jax.positions.zigzag import ZigZag

__all__ = ["BACKENDS", "AttentionName", "Backend", "softmax_names"]


class Splash(PlainKernel):
    """JAX's Pallas kernel for TPUs."""

    name: ClassVar[str] = "splash"
    summary: ClassVar[str] = "kernel for TPU"
    platforms: ClassVar[tuple[str, ...]] = ("tpu",)

    def attend(
        self,
        q: Float[Array, "B T N H"],
        k: Float[Array, "B S K H"],
        v: Float[Array, "B S K V"],
        segment_ids: Int[Array, "B S"] | None = None,
        sliding_window: int | None = None,
        part: ZigZag | None = None,
    ) -> Float[Array, "B T N V"]:
        # Here, since JAX calls the kernel experimental, and it takes 0.4 s to import.
        from rope_jax.attention.splash import splash_attention

        return splash_attention(q, k, v, segment_ids, sliding_window, part)


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
    return ("auto", *(name for name, backend in BACKENDS.items() if backend.is_softmax))
