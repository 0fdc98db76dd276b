"""`cpu`: our own kernel in C++."""

from typing import Any, ClassVar

from rope_jax.attention.backends.base import Backend


class Cpu(Backend):
    """The kernel for CPUs, see `rope_jax.attention.cpu`."""

    name: ClassVar[str] = "cpu"
    summary: ClassVar[str] = "kernel for CPU"
    platforms: ClassVar[tuple[str, ...]] = ("cpu",)
    interacts: ClassVar[bool] = True
    # The kernel rounds what it copies. Rounded by XLA, a step took 3 to 14% longer.
    rounds: ClassVar[bool] = True

    def obstacle(self, platform: str, dtype: str, head_dim: int) -> str | None:
        from rope_jax.kernels.loading import load_kernels

        if reason := super().obstacle(platform, dtype, head_dim):
            return reason
        if load_kernels() is None:
            return "was not compiled; install rope-jax again where there is a C++ compiler"
        return None

    def attend(self, *arguments: Any, rounded: bool = False) -> Any:
        from rope_jax.attention.cpu import cpu_attention

        return cpu_attention(*arguments, rounded=rounded)

    def attend_bands(self, *arguments: Any, rounded: bool = False) -> Any:
        from rope_jax.attention.cpu import banded_cpu

        return banded_cpu(*arguments, rounded=rounded)
