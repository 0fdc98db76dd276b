"""`linear`: another model, without a softmax."""

from typing import Any, ClassVar

from rope_jax.attention.backends.base import Backend


class Linear(Backend):
    """Linear attention, see `rope_jax.attention.linear`."""

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "another model, without softmax"
    is_softmax: ClassVar[bool] = False
    splits_windows: ClassVar[bool] = False  # sums over earlier tokens, one after the other

    def attend_features(self, *arguments: Any) -> Any:
        from rope_jax.attention.linear import linear_attention

        return linear_attention(*arguments)
