"""What `auto` in a model's config becomes on a platform."""

import jax

from rope_jax.attention import check_backend, choose_backend
from rope_jax.config.model import AttentionName, ModelConfig
from rope_jax.config.training import Config
from rope_jax.devices.hardware import has_amx
from rope_jax.kernels.loading import load_kernels


def for_platform(config: Config, platform: str | None = None) -> Config:
    """Return a run's config with choices in place of `auto`; UserError if it cannot run there.

    platform: as in `model_for_platform`.
    """
    # published models have long windows, whose scores take too much memory all at once
    otherwise: AttentionName = "xla" if config.imported is None else "blockwise"
    model = model_for_platform(choose_backend(config.model, platform, otherwise), platform)
    check_backend(model, platform)
    return config.model_copy(update={"model": model})


def model_for_platform(model: ModelConfig, platform: str | None = None) -> ModelConfig:
    """Return a model's config with choices in place of `auto`.

    platform: "cpu", "tpu" or "gpu"; None: that of this machine.
    """
    platform = platform or jax.default_backend()
    model = choose_backend(model, platform)
    if model.product_dtype != "auto":
        return model
    rounds = platform == "cpu" and _multiplies_bfloat16()
    return model.model_copy(update={"product_dtype": "bfloat16" if rounds else None})


def _multiplies_bfloat16() -> bool:
    """Whether products of bfloat16 are faster than those of float32 on this machine's CPU."""
    return has_amx() or load_kernels() == "avx512_bf16"


def numbers_in_words(model: ModelConfig) -> str:
    """Return what a model computes with, such as "float32, attention cpu"."""
    rounded = f" with products of {model.product_dtype}" if model.product_dtype else ""
    return f"{model.dtype}{rounded}, attention {model.attention}"
