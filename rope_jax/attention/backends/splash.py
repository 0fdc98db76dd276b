"""`splash`: JAX's Pallas kernel for TPUs."""

from typing import Any, ClassVar

from rope_jax.attention.backends.base import Backend


class Splash(Backend):
    """Splash attention, see `rope_jax.attention.splash`."""

    name: ClassVar[str] = "splash"
    summary: ClassVar[str] = "kernel for TPU"
    platforms: ClassVar[tuple[str, ...]] = ("tpu",)

    def attend(self, *arguments: Any) -> Any:
        from rope_jax.attention.splash import splash_attention  # slow to import

        return splash_attention(*arguments)
