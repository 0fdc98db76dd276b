"""Schemas of the decoder and its rotary embedding."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rope_jax.attention.backends import BACKENDS, AttentionName, Backend, softmax_names
from rope_jax.blocks import (
    MLP,
    AnyFeedForward,
    AnyMixer,
    AnySelfAttention,
    Experts,
    GroupedQueryAttention,
    LatentAttention,
    Mixer,
)
from rope_jax.blocks.base import ActivationName, FloatName, NormName, NormPlacement
from rope_jax.config.devices import MeshConfig
from rope_jax.config.entries import SweepEntry
from rope_jax.config.messages import alternatives, show_value
from rope_jax.config.strategy import read_strategy
from rope_jax.config.types import (
    Count,
    Frozen,
    ListOf,
    Moderate,
    NonEmpty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from rope_jax.errors import errors_in
from rope_jax.model.spec import LayersName, ModelSpec, RematName
from rope_jax.positions.encodings import ENCODINGS, AnyEncoding, RoPE
from rope_jax.positions.maps import AnyMap, PositionMap
from rope_jax.rope import AnyScaling
from rope_jax.rope.geometry import Layout
from rope_jax.rope.settings import Whole, single_error
from rope_jax.rope.strategies import NoScaling

ProductName = Literal["bfloat16", "auto"]
EmbeddingScale = Annotated[
    PositiveFloat | Literal["sqrt_hidden_size"],
    single_error("should be a number above 0 or 'sqrt_hidden_size'"),
]
QKNorm = Annotated[
    bool | Literal["all_heads", "by_head", "rotated", "after_rotation"],
    single_error("should be true, false, 'all_heads', 'by_head', 'rotated' or 'after_rotation'"),
]

DenseLayers = Annotated[
    NonNegativeInt | ListOf[NonNegativeInt],
    single_error("should be a whole number or a list of them"),
]

# checking a config visits every layer
LayerCount = Annotated[int, Field(gt=0, le=10_000), Whole]
# and computes the frequencies of every pair of dimensions of a head
Width = Annotated[int, Field(gt=0, le=2**20), Whole]


class ModelConfig(Frozen):
    """The decoder, with the names of Hugging Face's Llama. The defaults describe a Llama."""

    vocab_size: PositiveInt | None = Field(None, description="null: the tokenizer's")
    hidden_size: Width = Field(128, description="width of the residual stream")
    intermediate_size: PositiveInt = Field(352, description="width of the feed-forward")
    num_hidden_layers: LayerCount = Field(4, description="number of decoder layers")
    num_attention_heads: PositiveInt = Field(4, description="number of query heads")
    num_key_value_heads: PositiveInt | None = Field(None, description="null: num_attention_heads")
    head_dim: Count | None = Field(None, description="even; null: hidden_size / heads")
    tie_word_embeddings: bool = Field(True, description="one matrix for embedding and output")
    norm: NormName = Field(
        "rms_norm",
        description="plus_one (Gemma, Nemotron): scale 1 + weight; layer_norm: mean and bias; "
        "no_bias (Cohere): without that; plain (OLMo): without weights",
    )
    norm_placement: NormPlacement = Field(
        "before",
        description="on the inputs of attention and MLP; after (OLMo 2): on their outputs; shared "
        "(Phi): one for both inputs, side by side",
    )
    qk_norm: QKNorm = Field(
        False,
        description="norm of q and k before rotation, by head; by_head (StableLM): with weights "
        "for each; all_heads (OLMo 2): as one; after_rotation (Hunyuan): as true, but after it; "
        "rotated (Llama 4): so without weights, in layers that rotate",
    )
    rms_norm_eps: Moderate = Field(1e-5, description="epsilon of norms; of latents: 1e-6")
    self_attention: AnySelfAttention = Field(GroupedQueryAttention.Config(), description="its type")
    parallel_residual: bool = Field(False, description="attention and MLP side by side (GPT-NeoX)")
    clip_qkv: PositiveFloat | None = Field(None, description="c: limits q, k and v to ±c (OLMo)")
    qkv_bias: bool = Field(False, description="add biases to queries, keys and values")
    o_bias: bool = Field(False, description="add a bias to the output of attention")
    mlp_bias: bool = Field(False, description="add biases in the feed-forward")
    head_bias: bool = Field(False, description="add a bias to the output logits (Phi)")
    activation: ActivationName = Field("silu", description="of the MLP; gelu_tanh: fit of gelu")
    gated_mlp: bool = Field(True, description="down(act(gate(x)) * up(x)); false: down(act(up(x)))")
    feed_forward: AnyFeedForward = Field(MLP.Config(), description="its type and settings")
    dense_layers: DenseLayers = Field(
        0, description="layers with type mlp instead: how many first ones, or a list of numbers"
    )
    alternate_mixer: AnyMixer | None = Field(
        None, description="in place of self_attention in alternate_layers; null: none"
    )
    alternate_layers: NonEmpty[bool] = Field(
        (True, True, True, False), description="layer i takes element i mod length (Qwen3-Next)"
    )
    shared_kv_layers: NonNegativeInt = Field(
        0, description="last layers, which read the keys and values of one before; never scanned"
    )
    shared_kv_wide_mlp: bool = Field(False, description="an mlp twice as wide in these")
    per_layer_width: PositiveInt | None = Field(
        None, description="width of an embedding that each layer adds for itself; null: none"
    )
    layer_scale: bool = Field(False, description="a learned factor of each layer's output")
    scale_embeddings: EmbeddingScale = Field(
        1.0, description="embeddings are multiplied by it; sqrt_hidden_size: Gemma's"
    )
    residual_multiplier: Moderate = Field(1.0, description="of what a layer's parts add (Granite)")
    logit_multiplier: Moderate = Field(1.0, description="of the output logits (Granite, Cohere)")
    query_pre_attn_scalar: PositiveFloat | None = Field(
        None, description="logits are divided by its root; null: head_dim"
    )
    attention_softcap: Moderate | None = Field(None, description="c: c·tanh(logits/c); null: none")
    attention_sinks: bool = Field(False, description="a learned logit per head, no value (gpt-oss)")
    logit_softcap: Moderate | None = Field(None, description="the same for the output logits")
    initializer_range: Moderate = Field(0.02, description="std of the initial weights")
    dtype: FloatName = Field("float32", description="activations; angles, softmax, loss: float32")
    product_dtype: ProductName | None = Field(
        None,
        description="matmul precision: type to which factors are rounded (sums: float32); null: "
        "not rounded; auto: bfloat16 if begun on a CPU with AMX or AVX512_BF16; ignored if dtype "
        "is bfloat16",
    )
    param_dtype: FloatName = Field("float32", description="type of the weights; training: float32")
    layers: LayersName = Field("unrolled", description="unrolled runs, scanned compiles faster")
    remat: RematName = Field(
        "none",
        description="recomputed in the backward pass; products: all but products and attention; "
        "attention: all but that; layer: all; on a CPU only with layers scanned",
    )
    attention: AttentionName = Field(
        "auto",
        description="backend; auto: cpu where it can run, else xla; blockwise: linear memory; cpu, "
        "cudnn, splash: kernels for CPU, GPU, TPU; linear: another model, no softmax",
    )
    position: AnyEncoding = Field(RoPE(), description="how the model knows the order of tokens")

    @model_validator(mode="after")
    def _parts_fit(self) -> "ModelConfig":
        check_attention(self, self.attention)
        self._check_blocks()
        heads, kv_heads, layers = self.num_attention_heads, self.kv_heads, self.num_hidden_layers
        if self.query_pre_attn_scalar is not None and not self.backend.is_softmax:
            raise ValueError(f"query_pre_attn_scalar: attention {self.attention} has no softmax")
        for key in ("attention_softcap", "attention_sinks"):
            if getattr(self, key) and not self.position.scores_are_products:
                raise ValueError(f"{key}: position {self.position.type} changes the products q·k")
        if self.parallel_residual and (placement := self.norm_placement) != "before":
            raise ValueError(f"parallel_residual: needs norm_placement before, not {placement}")
        dense = self.dense_layers
        count = dense if isinstance(dense, int) else len({*dense})
        if count >= layers or (not isinstance(dense, int) and max(dense, default=0) >= layers):
            raise ValueError(
                f"dense_layers: should be some of the {layers} layers, from 0, and not all"
            )
        if (width := self.heads_width) % 2:
            raise ValueError(f"head_dim {width} is odd; rotation works on pairs of dimensions")
        if heads % kv_heads:
            raise ValueError(
                f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
            )
        return self

    def _check_mixer(self, key: str, mixer: Mixer.Config) -> None:
        """ValueError if a kind of attention, given at a key, does not fit the other fields."""
        if isinstance(mixer, LatentAttention.Config):
            for name, given, wanted in (
                ("head_dim", self.head_dim, None),
                ("num_key_value_heads", self.num_key_value_heads, self.num_attention_heads),
                ("qk_norm", self.qk_norm, False),
                ("clip_qkv", self.clip_qkv, None),
                ("position", self.position.type, "rope"),
            ):
                if given not in (None, wanted):
                    only = show_value(wanted)
                    raise ValueError(f"{name}: can only be {only} with {key} latent")
        if isinstance(mixer, GroupedQueryAttention.Config):
            if self.num_attention_heads % (mixer.kv_heads or 1):
                raise ValueError(
                    f"{key}.kv_heads: {mixer.kv_heads} does not divide num_attention_heads "
                    f"{self.num_attention_heads}"
                )
        elif self.shared_kv_layers:
            raise ValueError(f"shared_kv_layers: {key} {mixer.type} has no keys to share")

    def _check_blocks(self) -> None:
        """ValueError, which begins with a key, if a block does not fit the other fields."""
        self._check_mixer("self_attention", self.self_attention)
        if (mixer := self.alternate_mixer) is not None:
            self._check_mixer("alternate_mixer", mixer)
            if all(self.alternate_layers):
                raise ValueError("alternate_layers: leaves no layer with self_attention")
        if self.shared_kv_layers and not self.backend.is_softmax:
            raise ValueError(f"shared_kv_layers: attention {self.attention} has no keys to share")
        is_latent = isinstance(self.self_attention, LatentAttention.Config)
        if not is_latent and self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}; set head_dim or change one of them"
            )
        clamps = isinstance(self.feed_forward, Experts.Config) and self.feed_forward.swiglu_limit
        if clamps and not (self.gated_mlp and self.activation == "silu"):
            raise ValueError("feed_forward.swiglu_limit: needs gated_mlp true and activation silu")

    def spec(self, **others: Any) -> ModelSpec:
        """Return what the decoder is made of. others: fields of it that this section lacks."""
        alike = {x.name: getattr(self, x.name) for x in fields(ModelSpec) if hasattr(self, x.name)}
        if self.attention == "auto":  # shapes and costs of a model that is not resolved
            alike["attention"] = "cpu"
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        return ModelSpec(**alike | {"head_dim": head_dim, "encoding": self.position} | others)

    @property
    def backend(self) -> Backend:
        """What computes attention; for auto, the kernel for CPUs, which it prefers."""
        return self.spec().backend

    @property
    def stacks(self) -> dict[str, list[int]]:
        """The numbers of the layers of each stack of parameters."""
        return self.spec().stacks

    @property
    def heads_width(self) -> int:
        return self.spec().heads_width

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads: num_key_value_heads, or its default."""
        return self.num_key_value_heads or self.num_attention_heads


def check_attention(model: ModelConfig, attention: AttentionName, chunks: bool = False) -> None:
    """ValueError if an attention backend cannot do what a model needs.

    chunks: whether layers attend within chunks.
    """
    position, able = model.position, softmax_names()
    for is_on, what in (
        (position.needs_interaction, f"position {position.type}"),
        (model.attention_softcap is not None, "attention_softcap"),
        (model.attention_sinks, "attention_sinks"),
        (chunks, "attention_chunk"),
    ):
        if is_on and attention not in able:
            raise ValueError(f"attention: {attention} cannot do {what}; use {alternatives(able)}")


def check_logits(model: ModelConfig, scaling: object) -> None:
    """ValueError if a scaling scales the logits of a softmax that a model does not have."""
    for name in ("attention_factor", "query_scale"):
        if not model.backend.is_softmax and getattr(scaling, name, None) not in (None, 1):
            raise ValueError(f"{name}: scales logits, and attention {model.attention} has none")


def check_map(model: ModelConfig, map_: PositionMap) -> None:
    """ValueError if a position map does not apply to a model's encoding, backend or heads."""
    position = model.position.type
    if not model.position.takes_maps:
        able = " and ".join(name for name, other in ENCODINGS.items() if other.takes_maps)
        raise ValueError(
            f"map: {map_.type} applies only to the positions {able}, not to {position}"
        )
    if not model.backend.is_softmax:
        raise ValueError(f"map: attention {model.attention} cannot tell near keys from far ones")
    if map_.type == "fitted" and position != "rope":
        raise ValueError(f"map: fitted holds numbers for the position rope, not for {position}")
    with errors_in("map."):
        map_.check_heads(model.num_attention_heads, model.kv_heads)


def check_encoding(model: ModelConfig, scalings: Iterable[SweepEntry]) -> None:
    """ValueError, naming the entry, if a model's positions cannot have one of the scalings."""
    position = model.position
    for entry in scalings:
        is_scaled = entry.type not in ("trained", "none") or entry.over == "trained"
        if not position.is_rotary and is_scaled:
            raise ValueError(
                f"scalings: {entry.label}: the model's position {position.type} has no frequencies "
                "to scale; sweep it with scalings=[trained]"
            )
        with errors_in(f"scalings: {entry.label}: "):
            check_logits(model, entry)
            if entry.map is not None:
                check_map(model, entry.map)


def check_mesh(model: ModelConfig, mesh: MeshConfig, maps: Iterable[PositionMap | None]) -> None:
    """ValueError, which begins with a key, if devices cannot share a model's windows or heads."""
    mesh.check_split("fsdp", "hidden_size", model.hidden_size)
    mesh.check_split("fsdp", "per_layer_width", model.per_layer_width or 0)
    if isinstance(latent := model.self_attention, LatentAttention.Config):
        for key in ("q_lora_rank", "kv_lora_rank"):
            mesh.check_split("fsdp", f"self_attention.{key}", getattr(latent, key) or 0)
    mesh.check_split("tensor", "num_attention_heads", model.num_attention_heads)
    mesh.check_split("tensor", "num_key_value_heads", model.kv_heads)
    spec = model.spec()
    for kind in spec.kinds:
        for key, size in (
            kind.mixer.tensor_sizes(spec) | kind.feed_forward.tensor_sizes(spec)
        ).items():
            mesh.check_split("tensor", key, size)
    if mesh.context > 1 and not model.backend.splits_windows:
        able = alternatives([name for name, other in BACKENDS.items() if other.splits_windows])
        raise ValueError(
            f"mesh.context: attention {model.attention} needs whole windows, so {mesh.context} "
            f"devices cannot share one; use {able}, or mesh.context=1"
        )
    reason = None
    if model.position.differs_by_head:
        reason = f"position {model.position.type} has numbers of its own for each head"
    elif model.qk_norm == "all_heads":
        reason = "model.qk_norm all_heads divides by the norm of all heads together"
    elif differ_by_head(maps):
        reason = "map fitted has numbers of its own for each head"
    if mesh.tensor > 1 and reason is not None:
        raise ValueError(f"mesh.tensor: {reason}; use mesh.fsdp instead")


def differ_by_head(maps: Iterable[PositionMap | None]) -> bool:
    """Whether any of these maps has numbers for each head."""
    return any(map_ is not None and map_.differs_by_head for map_ in maps)


Base = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class LayerConfig(Frozen):
    """Settings in which a layer differs from the others."""

    scaling: AnyScaling | None = Field(None, description="in all stages; null: the stage's")
    base: Base | None = Field(None, description="b of this layer; null: rope.base")
    rotary_dim: PositiveInt | None = Field(None, description="its own; null: rope.rotary_dim")
    sliding_window: PositiveInt | None = Field(None, description="keys a query sees; null: all")
    attention_chunk: PositiveInt | None = Field(
        None, description="C: a query sees the keys of its own chunk of C tokens (Llama 4)"
    )

    @property
    def rotates(self) -> bool:
        """Whether queries and keys of this layer are rotated, unless a stage drops that of all."""
        return self.scaling is None or self.scaling.type != "drope"


class RopeConfig(Frozen):
    """The rotary embedding at the start of training."""

    base: Base = Field(10000.0, description="b; Hugging Face's rope_theta")
    rotary_dim: PositiveInt | None = Field(None, description="dimensions rotated; null: head_dim")
    train_length: PositiveInt | None = Field(None, description="L; null: the first stage's seq_len")
    layout: Layout = Field("half", description="which dimensions form a pair; in HF's Llama: half")
    scaling: AnyScaling = Field(NoScaling(), description="scaling until a stage sets another")
    map: AnyMap | None = Field(None, description="position map, in every stage; null: none")
    strategy: str | None = Field(None, description="rope-jax fit's file with scaling and map")
    layer_pattern: ListOf[LayerConfig] = Field((), description="layer i takes element i mod length")

    @model_validator(mode="before")
    @classmethod
    def _read_strategy(cls, settings: object) -> object:
        if not isinstance(settings, dict) or not isinstance(settings.get("strategy"), str):
            return settings
        if twice := [key for key in ("scaling", "map") if settings.get(key) is not None]:
            raise ValueError(f"{twice[0]}: is given both here and in strategy; keep one")
        with errors_in("strategy: "):
            strategy = read_strategy(settings["strategy"])
        given = {key: value for key, value in settings.items() if key != "strategy"}
        return given | {"scaling": strategy.scaling, "map": strategy.map}
