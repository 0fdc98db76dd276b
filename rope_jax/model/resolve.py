"""What `auto` in a model's config becomes on a platform."""

import jax

from rope_jax.attention import AttentionName
from rope_jax.config.model import ModelConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.kernels.loading import has_amx, load_kernels


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


def choose_backend(
    model: ModelConfig, platform: str | None = None, otherwise: AttentionName = "xla"
) -> ModelConfig:
    """Return a model's config with a backend in place of `auto`: cpu where that can run.

    platform: as in `model_for_platform`. otherwise: the backend where it cannot.
    """
    if model.attention != "auto":
        return model
    on_cpu = model.model_copy(update={"attention": "cpu"})
    if _obstacle(on_cpu, platform) is None:
        return on_cpu
    return model.model_copy(update={"attention": otherwise})


def check_backend(model: ModelConfig, platform: str | None = None) -> None:
    """Raise UserError if the model's backend cannot run; another is never substituted.

    platform: as in `model_for_platform`.
    """
    if reason := _obstacle(model, platform):
        raise UserError(
            f"model.attention: {model.attention} {reason}; blockwise and xla run everywhere"
        )


def _obstacle(model: ModelConfig, platform: str | None) -> str | None:
    dtype = "bfloat16" if model.product_dtype == "bfloat16" else model.dtype
    platform = platform or jax.default_backend()
    return model.backend.obstacle(platform, dtype, model.heads_width)


def numbers_in_words(model: ModelConfig) -> str:
    """Return what a model computes with, such as "float32, attention cpu"."""
    rounded = f" with products of {model.product_dtype}" if model.product_dtype else ""
    return f"{model.dtype}{rounded}, attention {model.attention}"
