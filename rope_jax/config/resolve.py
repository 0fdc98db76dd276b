"""Resolve a config: what `auto` in it becomes on a platform.

It is done once, where a run is opened. Everything below takes the resolved types.
"""

from dataclasses import replace
from typing import NewType

import jax

from rope_jax.attention.backends import AttentionName
from rope_jax.blocks.mixer import AttentionSpan
from rope_jax.config.model import ModelConfig, check_attention
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError, errors_in
from rope_jax.kernels.loading import has_amx, load_kernels
from rope_jax.model.decoder import LanguageModel

ResolvedModel = NewType("ResolvedModel", ModelConfig)
"""A model's config in which neither `attention` nor `product_dtype` is `auto`.

`product_dtype` is what weights are multiplied in, float32 or bfloat16; None: `dtype`.
"""
ResolvedRun = NewType("ResolvedRun", TrainingConfig)
"""A run's config whose model is resolved: as this machine computes it."""


def resolve_run(
    config: TrainingConfig, platform: str | None = None, attention: AttentionName | None = None
) -> ResolvedRun:
    """Return a run's config with choices in place of `auto`; see also `check_backend`.

    platform: "cpu", "tpu" or "gpu"; None: that of this machine. attention: backend in place of the
    run's own; UserError if the model was trained to compute something else.
    """
    asked = config.model if attention is None else _with_attention(config, attention)
    # published models have long windows, whose scores take too much memory all at once
    model = resolve_model(asked, platform, "xla" if config.imported is None else "blockwise")
    return ResolvedRun(config.model_copy(update={"model": model}))


def resolve_model(
    model: ModelConfig, platform: str | None = None, otherwise: AttentionName = "xla"
) -> ResolvedModel:
    """Return a model's config without `auto`: attention `cpu` where it can run, or `otherwise`.

    On a CPU that is slow at products of bfloat16, the factors of a bfloat16 model are float32.
    """
    platform, chosen = platform or jax.default_backend(), dict[str, str | None]()
    if model.attention == "auto":
        on_cpu = model.model_copy(update={"attention": "cpu"})
        chosen["attention"] = otherwise if _obstacle(on_cpu, platform) else "cpu"
    if model.product_dtype == "auto" or model.dtype == "bfloat16":
        in_float32 = "float32" if model.dtype == "bfloat16" else None
        chosen["product_dtype"] = None
        if platform == "cpu":
            chosen["product_dtype"] = "bfloat16" if _multiplies_bfloat16() else in_float32
    return ResolvedModel(model.model_copy(update=chosen))


def check_backend(model: ModelConfig, platform: str | None = None) -> None:
    """Raise UserError if the model's backend cannot run; another is never substituted."""
    if reason := _obstacle(model, platform):
        raise UserError(
            f"model.attention: {model.attention} {reason}; blockwise and xla run everywhere"
        )


def _obstacle(model: ModelConfig, platform: str | None) -> str | None:
    dtype = "bfloat16" if model.product_dtype == "bfloat16" else model.dtype
    platform = platform or jax.default_backend()
    widest = max(model.heads_width, model.self_attention.value_dim(model.spec()))
    return model.backend.obstacle(platform, dtype, widest)


def _with_attention(config: TrainingConfig, attention: AttentionName) -> ModelConfig:
    """Return a run's model with another attention backend; UserError if it cannot have it."""
    trained = config.model.attention
    model = config.model.model_copy(update={"attention": attention})
    if attention != trained and not (model.backend.is_softmax and config.model.backend.is_softmax):
        raise UserError(
            f"attention: {attention} computes something else than {trained}, with which this "
            "model was trained"
        )
    with errors_in("", UserError):
        check_attention(config.model, attention, config.has_chunks)
    return model


def _multiplies_bfloat16() -> bool:
    """Whether products of bfloat16 are faster than those of float32 on this machine's CPU."""
    return has_amx() or load_kernels() == "avx512_bf16"


def describe_precision(model: ModelConfig) -> str:
    """Return what a model computes with, such as "float32, attention cpu"."""
    is_rounded = model.product_dtype not in (None, model.dtype)
    rounded = f" with products of {model.product_dtype}" if is_rounded else ""
    return f"{model.dtype}{rounded}, attention {model.attention}"


def language_model(config: ResolvedRun, vocab_size: int) -> LanguageModel:
    """Return the model of a run. vocab_size: that of the tokenizer; UserError if too large."""
    spans = (AttentionSpan(x.sliding_window, x.attention_chunk, x.rotates) for x in config.pattern)
    spec = config.model.spec(
        layout=config.rope.layout, pattern=tuple(spans), encoding=config.encoding
    )
    own = {(kind.mixer, kind.span) for kind in spec.kinds if not kind.span.shares}
    for layer, (_, mixer, _, span) in enumerate(spec.kinds):
        if (mixer, replace(span, shares=False)) not in own:
            raise UserError(
                f"model.shared_kv_layers: no layer with its own keys and values has the "
                f"sliding window and attention of layer {layer}; give fewer"
            )
    return LanguageModel(spec, vocabulary_size(config.model, vocab_size))


def vocabulary_size(model: ModelConfig, tokenizer_size: int) -> int:
    """Return how many tokens a model knows. UserError if the tokenizer has more."""
    vocab_size = model.vocab_size or tokenizer_size
    if vocab_size < tokenizer_size:
        raise UserError(
            f"model.vocab_size: {vocab_size} is smaller than the tokenizer's {tokenizer_size}; "
            "give at least that, or null"
        )
    return vocab_size
