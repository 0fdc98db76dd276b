"""`blockwise`: an online softmax over blocks of keys, on every platform."""

from typing import Any, ClassVar

from rope_jax.attention.backends.base import Backend


class Blockwise(Backend):
    """Blocks of keys, see `rope_jax.attention.blockwise`."""

    name: ClassVar[str] = "blockwise"
    summary: ClassVar[str] = "memory linear in the length"
    interacts: ClassVar[bool] = True

    def attend(self, *arguments: Any) -> Any:
        from rope_jax.attention.blockwise import blockwise_attention

        return blockwise_attention(*arguments)

    def attend_bands(self, *arguments: Any) -> Any:
        from rope_jax.attention.blockwise import banded_blockwise

        return banded_blockwise(*arguments)
