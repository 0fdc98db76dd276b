"""`xla`: whole score matrices, the fastest at a few hundred tokens, and the reference."""

from typing import Any, ClassVar

from rope_jax.attention.backends.base import Backend


class Xla(Backend):
    """Whole score matrices, see `rope_jax.attention.dense`."""

    name: ClassVar[str] = "xla"
    summary: ClassVar[str] = "whole score matrices"
    interacts: ClassVar[bool] = True
    quadratic_memory: ClassVar[bool] = True

    def attend(self, *arguments: Any) -> Any:
        from rope_jax.attention.dense import dense_attention

        return dense_attention(*arguments)

    def attend_bands(self, *arguments: Any) -> Any:
        from rope_jax.attention.dense import banded_dense

        return banded_dense(*arguments)
