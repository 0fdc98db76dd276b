"""What can be configured: frozen pydantic models, one a section. Imports no jax.

A field's description is its line in `--help`, in the JSON schema and in an editor's tooltip.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from rope_jax.rope import AnyScaling, LayerOverride, RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.geometry import Layout
from rope_jax.rope.numbers import Whole
from rope_jax.rope.strategies import NoScaling

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

# JAX counts in 32 bits.
PositiveInt = Annotated[int, Field(gt=0, lt=2**31), Whole]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**31), Whole]
Length = Annotated[int, Field(ge=2, lt=2**31), Whole]
Seed = Annotated[int, Field(ge=0, lt=2**32), Whole]
AttentionName = Literal["xla", "blockwise", "cudnn", "splash"]
# A name becomes a folder; it may not climb out of its parent.
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+-]*$", max_length=200)]


def _as_a_path(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which no file's name can")
    if any(len(name.encode()) > 255 for name in text.split("/")):
        raise ValueError("a name in it is longer than 255 bytes, the most a file's name can have")
    return text


PathText = Annotated[str, AfterValidator(_as_a_path)]


class Frozen(BaseModel):
    """Immutable, an unknown key is an error, and so is a value of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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


class _Data(Frozen):
    validation_fraction: Fraction = Field(
        0.05, description="share of documents held out to validate on, unless the source has some"
    )
    test_fraction: Fraction = Field(
        0.1, description="share of documents that eval_ppl.py alone reads, unless given"
    )
    cache_dir: PathText | None = Field(
        None, description="where token files are kept; null: the user's cache directory"
    )

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError("validation_fraction and test_fraction leave nothing to train on")
        return self


Files = Annotated[
    Annotated[list[PathText], Field(min_length=1), Tag("list")]
    | Annotated[dict[Literal["train", "validation", "test"], list[PathText]], Tag("mapping")],
    Discriminator(lambda files: "mapping" if isinstance(files, dict) else "list"),
]


class _FileData(_Data):
    files: Files = Field(description="paths or globs; or lists of them for train, validation, test")


class StdlibData(_Data):
    """Source files of Python's standard library: real text on every machine, no network."""

    type: Literal["stdlib"] = "stdlib"
    test_fraction: Fraction = Field(0.25, description="share of packages that eval_ppl.py reads")
    validation_fraction: Fraction = Field(0.1, description="share of packages to validate on")


class TextData(_FileData):
    """Your own text files, one document a file."""

    type: Literal["text"] = "text"


class JsonLinesData(_FileData):
    """JSON lines, one document a line."""

    type: Literal["jsonl"] = "jsonl"
    column: str = Field("text", description="the field that holds the text")


class ParquetData(_FileData):
    """Parquet files, one document a row."""

    type: Literal["parquet"] = "parquet"
    column: str = Field("text", description="the column that holds the text")


class HubData(_Data):
    """A data set on the Hugging Face hub; code that comes with a data set is never run."""

    type: Literal["hub"] = "hub"
    id: str = Field(description="the data set's id, for instance emozilla/pg19")
    subset: str | None = Field(None, description="the data set's configuration, where it has some")
    revision: str | None = Field(None, description="branch, tag or commit; null: the newest")
    column: str = Field("text", description="the column that holds the text")


def _stdlib_unless_named(data: Any) -> Any:
    return {"type": "stdlib"} | data if isinstance(data, dict) else data


DataConfig = Annotated[
    Annotated[
        StdlibData | TextData | JsonLinesData | ParquetData | HubData, Field(discriminator="type")
    ],
    BeforeValidator(_stdlib_unless_named),
]


class OptimConfig(Frozen):
    """AdamW and its learning rate."""

    learning_rate: PositiveFloat = Field(3e-3, description="peak learning rate")
    schedule: Literal["cosine", "linear", "wsd"] = Field(
        "cosine", description="decay after warm-up; wsd: constant, then a linear decay at the end"
    )
    warmup_steps: NonNegativeInt = Field(100, description="steps of linear warm-up from 0")
    final_lr_fraction: Fraction = Field(0.1, description="last learning rate / peak")
    decay_fraction: Fraction = Field(
        0.2, description="wsd: share of the steps after warm-up that decay"
    )
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.1, description="on matrices; not on norms or embeddings"
    )
    b1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="AdamW's first decay")
    b2: Annotated[float, Field(ge=0, lt=1)] = Field(0.95, description="AdamW's second decay")
    eps: PositiveFloat = Field(1e-8, description="AdamW's epsilon")
    clip_norm: PositiveFloat = Field(1.0, description="largest global norm of the gradient")


class StageConfig(Frozen):
    """A stretch of training at one length."""

    steps: PositiveInt = Field(description="optimizer steps")
    seq_len: Length = Field(description="tokens a window")
    batch_size: PositiveInt = Field(description="windows a step")
    grad_accumulation: PositiveInt = Field(
        1, description="micro-batches that a step's batch is cut into: less memory, same step"
    )
    scaling: AnyScaling | None = Field(
        None, description="scaling from this stage on; null: as before"
    )
    learning_rate: PositiveFloat | None = Field(
        None, description="start a new schedule here with this peak; null: the schedule goes on"
    )

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        if self.batch_size % self.grad_accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of grad_accumulation "
                f"{self.grad_accumulation}"
            )
        return self


class ValidationConfig(Frozen):
    """Loss on the validation split during training."""

    every_steps: PositiveInt = Field(200, description="steps between two validations")
    batches: PositiveInt = Field(
        8, description="batches a validation, evenly spaced, always the same"
    )


class CheckpointConfig(Frozen):
    """What is kept of a run."""

    every_steps: PositiveInt = Field(500, description="steps between two checkpoints")
    keep: PositiveInt = Field(3, description="how many of the newest to keep")


class MeshConfig(Frozen):
    """How devices share the work; their product is the number of devices."""

    data: PositiveInt | None = Field(
        None, description="copies of the parameters, the batch split over them; null: what is left"
    )
    fsdp: PositiveInt = Field(1, description="devices that a copy of the parameters is split over")


class DistributedConfig(Frozen):
    """Several processes as one run; each is given its own process_id, all else alike."""

    coordinator: str | None = Field(
        None, description="host:port of process 0; null: as the cluster says (Slurm, TPU, …)"
    )
    num_processes: PositiveInt | None = Field(None, description="how many; null: as above")
    process_id: NonNegativeInt | None = Field(None, description="0 writes; null: as above")
    timeout: PositiveInt = Field(300, description="seconds to wait for all to come")

    @model_validator(mode="after")
    def _all_or_none(self) -> Self:
        given = [self.coordinator, self.num_processes, self.process_id]
        if any(v is None for v in given) and any(v is not None for v in given):
            raise ValueError("give coordinator, num_processes and process_id, or none of them")
        host, _, port = (self.coordinator or "host:1").rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(f"coordinator {self.coordinator!r} is not host:port")
        if self.num_processes and self.process_id and self.process_id >= self.num_processes:
            raise ValueError(
                f"process_id {self.process_id} is not below num_processes {self.num_processes}"
            )
        return self


def _strategies(key: str, scaling: Scaling) -> list[tuple[str, Scaling]]:
    """A scaling and what it stands on, if anything, with their keys; the innermost first."""
    inner = getattr(scaling, "inner", None)
    return [*([(f"{key}.inner", inner)] if inner else []), (key, scaling)]


class Config(Frozen):
    """One training run."""

    name: FolderName = Field(description="the run directory's name")
    runs_dir: PathText = Field("runs", description="where run directories are made")
    seed: Seed = Field(0, description="of the weights and of the batches")
    log_every_steps: PositiveInt = Field(20, description="steps between two logged lines")
    model: ModelConfig = ModelConfig()
    rope: RopeConfig = RopeConfig()
    data: DataConfig = StdlibData()
    optim: OptimConfig = OptimConfig()
    stages: Annotated[tuple[StageConfig, ...], Field(min_length=1, strict=False)] = Field(
        description="one after the other, for instance a short window, then a long one"
    )
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig | None = Field(
        None, description="null: this process is the whole run"
    )

    @model_validator(mode="after")
    def _rotary_fits(self) -> Self:
        try:
            geometry = self.geometry
        except ValueError as error:  # names rotary_dim
            raise ValueError(f"rope.{error}") from None
        if geometry.rotary_dim > self.model.heads_width:
            raise ValueError(
                f"rope.rotary_dim {geometry.rotary_dim} is above head_dim {self.model.heads_width}"
            )
        self._pattern_fits()
        for stage in range(len(self.stages)):
            self._scalings_fit(stage)
        for first, last in self.schedule_spans():
            steps = sum(stage.steps for stage in self.stages[first:last])
            if self.optim.warmup_steps >= steps:
                raise ValueError(
                    f"optim.warmup_steps {self.optim.warmup_steps} is not below the {steps} steps "
                    f"of the schedule that starts at stages[{first}]"
                )
        return self

    def _pattern_fits(self) -> None:
        layers, pattern = self.model.num_hidden_layers, self.rope.layer_pattern
        if len(pattern) > layers:
            raise ValueError(
                f"rope.layer_pattern: {len(pattern)} elements, more than "
                f"model.num_hidden_layers {layers}"
            )
        if pattern and all(element.scaling is not None for element in pattern):
            for stage in range(len(self.stages)):
                if self.stage_scaling(stage) != NoScaling():
                    raise ValueError(
                        f"{self._scaling_key(stage)}: no layer has it, as every element of "
                        "rope.layer_pattern has a scaling of its own"
                    )

    def _scalings_fit(self, stage: int) -> None:
        """Every layer's scaling has a formula here, and does something."""
        layers, pattern = self.model.num_hidden_layers, self.rope.layer_pattern or (LayerConfig(),)
        for number, element in enumerate(pattern):
            own = f"rope.layer_pattern.{number}"
            key = self._scaling_key(stage) if element.scaling is None else f"{own}.scaling"
            scaling = element.scaling or self.stage_scaling(stage)
            geometry = replace(self.geometry, base=element.base or self.rope.base)
            sections = {"base": "rope" if element.base is None else own}
            sections |= {"rotary_dim": "rope", "train_length": "rope"}
            for layer in range(number, layers, len(pattern)):
                for place, strategy in _strategies(key, scaling):
                    try:
                        one = strategy.for_layer(layer, layers)
                        one.check(geometry, self.stages[stage].seq_len, self.model.heads_width)
                        one.query_scale_at(geometry, np.arange(1))
                    except ValueError as error:  # begins with a key of the geometry or strategy
                        section = sections.get(str(error).partition(":")[0], place)
                        raise ValueError(f"{section}.{error}") from None
                if scaling.for_layer(layer, layers) == scaling:
                    break  # the other layers of this element are like this one

    def _scaling_key(self, stage: int) -> str:
        """Where `stage_scaling` was given."""
        given = [i for i in range(stage + 1) if self.stages[i].scaling is not None]
        return f"stages.{given[-1]}.scaling" if given else "rope.scaling"

    @property
    def geometry(self) -> RotaryGeometry:
        """The unscaled rotary embedding, of layers without a base of their own."""
        return RotaryGeometry(
            rotary_dim=self.rope.rotary_dim or self.model.heads_width,
            base=self.rope.base,
            train_length=self.rope.train_length or self.stages[0].seq_len,
        )

    @property
    def rotary_layers(self) -> RotaryLayers:
        """The rotary embedding of every layer."""
        own = tuple(LayerOverride(e.base, e.scaling) for e in self.rope.layer_pattern)
        pattern = own or (LayerOverride(),)
        head_dim = self.model.heads_width
        return RotaryLayers(self.geometry, self.model.num_hidden_layers, pattern, head_dim)

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """The attention windows of the layers, a pattern that repeats."""
        return tuple(element.sliding_window for element in self.rope.layer_pattern) or (None,)

    def stage_scaling(self, stage: int) -> Scaling:
        """The scaling in force at a stage: its own, or the last one given before it."""
        given = [s.scaling for s in self.stages[: stage + 1] if s.scaling is not None]
        return given[-1] if given else self.rope.scaling

    def stage_at(self, step: int) -> int:
        """The stage that a checkpoint after global step `step` ended in."""
        end = 0
        for number, stage in enumerate(self.stages):
            end += stage.steps
            if step <= end:
                return number
        raise ValueError(f"step {step} is past the last stage's end, {end}")

    def schedule_spans(self) -> list[tuple[int, int]]:
        """[first, last) stages of each learning-rate schedule."""
        starts = [i for i, s in enumerate(self.stages) if i == 0 or s.learning_rate is not None]
        return list(zip(starts, [*starts[1:], len(self.stages)], strict=True))
