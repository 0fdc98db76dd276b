"""What can be configured of the decoder and of its rotary embedding. Imports no jax."""

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    model_validator,
)

from rope_jax.config.types import Frozen, PositiveFloat, PositiveInt
from rope_jax.rope import AnyScaling
from rope_jax.rope.geometry import Layout
from rope_jax.rope.strategies import NoScaling

AttentionName = Literal["xla", "blockwise", "cudnn", "splash"]

_WIDEST_HEAD = 2**16  # one frequency per pair is computed while the config is checked


class ModelConfig(Frozen):
    """The decoder. Names are those of Hugging Face's Llama."""

    hidden_size: PositiveInt = Field(128, description="width of the residual stream")
    intermediate_size: PositiveInt = Field(352, description="width of the SwiGLU feed-forward")
    num_hidden_layers: PositiveInt = Field(4, description="number of decoder layers")
    num_attention_heads: PositiveInt = Field(4, description="query heads")
    num_key_value_heads: PositiveInt | None = Field(
        None, description="key and value heads; null: as many as query heads"
    )
    head_dim: PositiveInt | None = Field(
        None, description="width of a head, even; null: hidden_size / num_attention_heads"
    )
    tie_word_embeddings: bool = Field(True, description="one matrix for embedding and output")
    qk_norm: bool = Field(False, description="RMSNorm on queries and keys, before rotation")
    rms_norm_eps: PositiveFloat = Field(1e-5, description="epsilon of every RMSNorm")
    initializer_range: PositiveFloat = Field(0.02, description="standard deviation at the start")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of activations; angles, softmax and loss are float32 always"
    )
    layers: Literal["unrolled", "scanned"] = Field(
        "unrolled", description="unrolled runs faster on CPU, scanned compiles faster"
    )
    remat: bool = Field(False, description="recompute each layer in the backward pass: less memory")
    attention: AttentionName = Field(
        "xla", description="backend; blockwise: memory linear in the length; others: kernels"
    )

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}; set head_dim or change one of them"
            )
        if self.heads_width > _WIDEST_HEAD:
            raise ValueError(
                f"head_dim {self.heads_width} is above {_WIDEST_HEAD}; lower hidden_size or raise "
                "num_attention_heads"
            )
        if self.heads_width % 2:
            raise ValueError(f"head_dim {self.heads_width} is odd; rotation works on pairs")
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.kv_heads}"
            )
        return self

    @property
    def heads_width(self) -> int:
        """head_dim, resolved."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """num_key_value_heads, resolved."""
        return self.num_key_value_heads or self.num_attention_heads


Base = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class LayerConfig(Frozen):
    """What a layer has of its own."""

    scaling: AnyScaling | None = Field(
        None, description="its scaling, whatever the others have; drope: no positions"
    )
    base: Base | None = Field(None, description="its b")
    sliding_window: PositiveInt | None = Field(
        None, description="keys that a query sees, itself among them; null: all before it"
    )


class RopeConfig(Frozen):
    """The rotary embedding that training starts with."""

    base: Base = Field(10000.0, description="b; HF's rope_theta")
    rotary_dim: PositiveInt | None = Field(
        None, description="rotated dimensions of a head, even; null: all of head_dim"
    )
    train_length: PositiveInt | None = Field(
        None, description="L in the scalings' formulas; null: the first stage's seq_len"
    )
    layout: Layout = Field("half", description="which dimensions make a pair; HF Llama: half")
    scaling: AnyScaling = Field(NoScaling(), description="scaling during training")
    layer_pattern: Annotated[tuple[LayerConfig, ...], Field(strict=False)] = Field(
        (), description="layer i has element i mod their number; what it lacks is as above"
    )
