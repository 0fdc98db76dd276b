"""The backends of this package's own functions, which are imported when one computes."""

from typing import Any, ClassVar

from rope_jax.attention.backends.base import Backend


class Xla(Backend):
    """Dense score matrices, the fastest at a few hundred tokens, and the reference."""

    name: ClassVar[str] = "xla"
    summary: ClassVar[str] = "whole score matrices"
    quadratic_memory: ClassVar[bool] = True

    def attend_bands(self, *arguments: Any) -> Any:
        from rope_jax.attention.dense import banded_dense

        return banded_dense(*arguments)


class Blockwise(Backend):
    """An online softmax over blocks of keys, on every platform."""

    name: ClassVar[str] = "blockwise"
    summary: ClassVar[str] = "memory linear in the length"

    def attend_bands(self, *arguments: Any, **options: Any) -> Any:
        from rope_jax.attention.blockwise import banded_blockwise

        return banded_blockwise(*arguments, **options)


class Cpu(Backend):
    """Our own kernel in C++."""

    name: ClassVar[str] = "cpu"
    summary: ClassVar[str] = "kernel for CPU"
    platforms: ClassVar[tuple[str, ...]] = ("cpu",)
    # The kernel rounds what it copies. Rounded by XLA, a step took 3 to 14% longer.
    has_precision: ClassVar[bool] = True

    def obstacle(self, platform: str, dtype: str, head_dim: int) -> str | None:
        from rope_jax.kernels.loading import load_kernels

        if reason := super().obstacle(platform, dtype, head_dim):
            return reason
        if load_kernels() is None:
            return "was not compiled; install rope-jax again where there is a C++ compiler"
        return None

    def attend_bands(self, *arguments: Any, **options: Any) -> Any:
        from rope_jax.attention.cpu import banded_cpu

        return banded_cpu(*arguments, **options)


class Splash(Backend):
    """JAX's Pallas kernel for TPUs."""

    name: ClassVar[str] = "splash"
    summary: ClassVar[str] = "kernel for TPU"
    platforms: ClassVar[tuple[str, ...]] = ("tpu",)

    def attend(self, *arguments: Any, **options: Any) -> Any:
        from rope_jax.attention.splash import splash_attention

        return splash_attention(*arguments, **options)


class Linear(Backend):
    """Another model, without a softmax."""

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "another model, without softmax"
    is_softmax: ClassVar[bool] = False
    splits_windows: ClassVar[bool] = False  # sums over earlier tokens, one after the other

    def attend_features(self, *arguments: Any) -> Any:
        from rope_jax.attention.linear import linear_attention

        return linear_attention(*arguments)
