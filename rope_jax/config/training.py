"""Schema of a training run: stages, optimizer, checkpoints, and the run itself."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from pydantic import Field, model_validator

from rope_jax.blocks import SelfAttention
from rope_jax.config.checkpoints import Imported
from rope_jax.config.data import DataConfig, StdlibData
from rope_jax.config.devices import DistributedConfig, MeshConfig
from rope_jax.config.entries import Trained
from rope_jax.config.model import (
    LayerConfig,
    ModelConfig,
    RopeConfig,
    check_attention,
    check_encoding,
    check_logits,
    check_map,
    check_mesh,
)
from rope_jax.config.schema import at
from rope_jax.config.sections import (
    AnyInitFrom,
    CheckpointConfig,
    OptimConfig,
    Span,
    StageConfig,
    ValidationConfig,
)
from rope_jax.config.sweep import TrainingSweepConfig
from rope_jax.config.tokenizer import ByteTokenizerConfig, TokenizerConfig
from rope_jax.config.types import FolderName, Frozen, NonEmpty, PositiveInt, Seed
from rope_jax.errors import errors_in
from rope_jax.positions.encodings import Encoding
from rope_jax.positions.maps import PositionMap
from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, Scaling


class TrainingConfig(Frozen):
    """A training run."""

    name: FolderName = Field(description="name of the run directory")
    runs_dir: str = Field("runs", description="folder for run directories")
    seed: Seed = Field(0, description="seed of the weights and of the batches")
    log_every_steps: PositiveInt = Field(20, description="steps between logged lines")
    init_from: AnyInitFrom | None = Field(None, description="RUN or RUN@STEP: weights and defaults")
    imported: Imported | None = Field(None, description="checkpoint of rope-jax import, untrained")
    model: ModelConfig = ModelConfig()
    rope: RopeConfig = RopeConfig()
    data: DataConfig = StdlibData()
    tokenizer: TokenizerConfig = ByteTokenizerConfig()
    optim: OptimConfig = OptimConfig()
    stages: NonEmpty[StageConfig] = Field(description="stages of training, in order")
    validation: ValidationConfig = ValidationConfig()
    sweep: TrainingSweepConfig | None = Field(None, description="loss by length; null: none")
    checkpoint: CheckpointConfig = CheckpointConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig | None = Field(None, description="several processes; null: one")

    @model_validator(mode="before")
    @classmethod
    def _strategy_is_used(cls, settings: object) -> object:
        """Refuse a strategy file that the first stage replaces, before the file is read."""
        is_given = isinstance(at(settings, "rope", "strategy"), str)
        if is_given and at(settings, "stages", 0, "scaling") is not None:
            raise ValueError(
                "stages.0.scaling: would replace the scaling of rope.strategy; keep one of the two"
            )
        return settings

    @model_validator(mode="after")
    def _sections_fit(self) -> "TrainingConfig":
        self._check_positions()
        swept = () if self.sweep is None else self.sweep.scalings
        with errors_in("rope."):
            if self.rope.map is not None:
                check_map(self.model, self.rope.map)
            rotary_dim = self.geometry.rotary_dim
        check_mesh(self.model, self.mesh, [self.rope.map, *(entry.map for entry in swept)])
        for number, stage in enumerate(self.stages):
            with errors_in(f"stages.{number}.seq_len: "):
                self.mesh.check_seq_len(stage.seq_len)
        if rotary_dim > self._rotary_dim:
            width = self.model.self_attention.rotary_dim(self.model.spec())
            raise ValueError(f"rope.rotary_dim: {rotary_dim} is larger than head_dim {width}")
        self._check_pattern()
        for key, scaling, length, elements in self._uses():
            with errors_in(f"{key}."):
                check_logits(self.model, scaling)
            for element in elements:
                self._check_in_layers(key, scaling, length, element)
        if self.rope.map is not None:
            self._check_map(self.rope.map)
        for first, last in self.schedule_spans():
            steps = sum(stage.steps for stage in self.stages[first:last])
            if self.optim.warmup(steps) >= steps:
                raise ValueError(
                    f"optim.warmup_steps: {self.optim.warmup_steps} is not less than the {steps} "
                    f"steps of the schedule that starts at stages[{first}]; leave it out for a "
                    "tenth of them"
                )
        with errors_in("sweep."):
            check_encoding(self.model, swept)
        return self

    def _check_positions(self) -> None:
        """ValueError for settings that the model's encoding ignores or cannot do."""
        position, name = self.model.position, self.model.position.type
        for number, stage in enumerate(self.stages):
            key = f"stages.{number}"
            if stage.length > (position.longest or stage.length):
                raise ValueError(
                    f"model.position.length: {position.longest} positions are too few for "
                    f"{key}; give at least {stage.length}"
                )
            if stage.positions.type != "plain" and not position.uses_positions:
                raise ValueError(
                    f"{key}.positions: {stage.positions.type} has no effect, because "
                    f"model.position.type {name} does not read the tokens' positions; remove it"
                )
            if position.uses_positions and position.uses_distances:
                self._check_plain_windows(number, f"model.position.type {name}")
        given = [] if position.is_rotary else self._keys_of_rotation()
        fields = RopeConfig.model_fields
        given += [
            f"rope.{k}" for k in position.ignored if getattr(self.rope, k) != fields[k].default
        ]
        if given:
            reason = "turns each dimension by itself" if position.is_rotary else "rotates nothing"
            raise ValueError(
                f"{given[0]}: has no effect, because model.position.type {name} {reason}; remove it"
            )

    def _keys_of_rotation(self) -> list[str]:
        """Return the keys given, outside of `Encoding.ignored`, that only act on a rotation."""
        scalings = {key: scaling for key, scaling, *_ in self._uses()}
        given = [key for key, scaling in scalings.items() if scaling.type != "none"]
        pattern = enumerate(self.rope.layer_pattern)
        given += [f"rope.layer_pattern.{i}.base" for i, element in pattern if element.base]
        is_scaled = any(scaling.query_scale for scaling in scalings.values())
        if self.rope.train_length is not None and not is_scaled:
            given.append("rope.train_length")
        return given

    def _check_plain_windows(self, number: int, setting: str) -> None:
        """ValueError unless a stage's positions count the tokens that a query sees.

        setting: what counts these tokens, for the message.
        """
        stage, key = self.stages[number], f"stages.{number}"
        reason = f"does not go with {setting}, which counts the tokens that a query sees"
        if stage.positions.type != "plain":
            raise ValueError(f"{key}.positions: {stage.positions.type} {reason}; give plain")
        mask, positions = stage.documents.mask, stage.documents.positions
        needed = "reset" if mask == "document" else "continue"
        if positions != needed:
            raise ValueError(
                f"{key}.documents.positions: {positions} with mask {mask} {reason}; give {needed}"
            )

    def _check_pattern(self) -> None:
        """ValueError for more elements than layers, or windows that linear attention ignores."""
        layers, pattern = self.model.num_hidden_layers, self.rope.layer_pattern
        if (count := len(pattern)) > layers:
            raise ValueError(
                f"rope.layer_pattern: {count} elements are more than the model's {layers} layers"
            )
        for key, scaling, _, elements in self._uses():
            if not elements and scaling.type != "none":
                raise ValueError(
                    f"{key}: no layer uses it, because every element of rope.layer_pattern has its "
                    "own scaling"
                )
        with errors_in("model."):
            check_attention(self.model, self.model.attention, self.has_chunks)
        spec, rotary = self.model.spec(), self.geometry.rotary_dim
        own = [self.pattern[i % len(self.pattern)].rotary_dim or rotary for i in range(layers)]
        for i, (kind, dim) in enumerate(zip(spec.kinds, own, strict=True)):
            if isinstance(kind.mixer, SelfAttention.Config):
                width = self.model.position.rotary_dim(kind.mixer.rotary_dim(spec))
                if dim > width or dim not in (width, max(own)):
                    raise ValueError(
                        f"rope.layer_pattern: layer {i} should have rotary_dim {width}, the width "
                        f"of its heads, not {dim}"
                    )
        for i, element in enumerate(pattern):
            if element.sliding_window is not None and not self.model.backend.is_softmax:
                raise ValueError(
                    f"rope.layer_pattern.{i}.sliding_window: model.attention linear sums over all "
                    "keys; use blockwise or xla for sliding windows"
                )

    def _check_map(self, asked: PositionMap) -> None:
        """ValueError for a map without effect, or that a stage's windows do not go with."""
        window, with_effect = self.geometry.train_length, False
        for number, stage in enumerate(self.stages):
            with errors_in("rope.map."):
                if (map_ := self.stage_map(number)) is None:
                    continue
                map_.check_layers(self.rotary_layers)
            for band in map_.bands(window, stage.length):
                for element, settings in enumerate(self.pattern):
                    if band.far is not None and settings.scaling is None:
                        self._check_in_layers("rope.map.far", band.far, stage.length, element)
            if not map_.has_effect(window, stage.length):
                continue
            with_effect = True
            self._check_plain_windows(number, f"rope.map {map_.type}")
            if stage.mixed is not None:
                raise ValueError(
                    f"stages.{number}.mixed: does not go with rope.map {map_.type}, which would "
                    "act on the short windows, too; remove one of them"
                )
        if not with_effect:
            advice = f"; auto settings act beyond train_length {window:,}" if asked.is_auto else ""
            raise ValueError(f"rope.map: {asked.type} changes nothing in any stage{advice}")

    def _check_in_layers(self, key: str, scaling: Scaling, length: int, element: int) -> None:
        """Check a scaling, given at `key`, for texts of n tokens and the base of an element."""
        base, inner = self.pattern[element].base, getattr(scaling, "inner", None)
        override = LayerOverride(base, None, self.pattern[element].rotary_dim)
        layers = replace(self.rotary_layers, pattern=(override,))
        base_key = "rope" if base is None else f"rope.layer_pattern.{element}"
        sections = {"base": base_key, "rotary_dim": "rope", "train_length": "rope"}
        for section, checked in ((f"{key}.inner", inner), (key, scaling)):
            try:
                if checked is not None:
                    layers.check(checked, length)
            except ValueError as error:  # begins with a key of the geometry or strategy
                name = str(error).partition(":")[0]
                raise ValueError(f"{sections.get(name, section)}.{error}") from None

    @property
    def pattern(self) -> tuple[LayerConfig, ...]:
        """The layers' settings, with one element that changes nothing if none are given."""
        return self.rope.layer_pattern or (LayerConfig(),)

    def _scaling_in_force(self, stage: int) -> tuple[str, Scaling]:
        """Return the scaling of a stage, its own or the last one before it, and the key of it."""
        for number in range(stage, -1, -1):
            if (scaling := self.stages[number].scaling) is not None:
                return f"stages.{number}.scaling", scaling
        return "rope.scaling", self.rope.scaling

    def _uses(self) -> Iterator[tuple[str, Scaling, int, list[int]]]:
        """Yield every scaling but a map's: key, length of its texts, elements of the pattern."""
        elements = list(enumerate(self.pattern))
        shared = [i for i, element in elements if element.scaling is None]
        for number, stage in enumerate(self.stages):
            yield *self._scaling_in_force(number), stage.length, shared
            if stage.mixed is not None:
                key = f"stages.{number}.mixed.scaling"
                yield key, stage.mixed.scaling, stage.mixed.seq_len, shared
            for i, element in elements:
                if element.scaling is not None:
                    yield f"rope.layer_pattern.{i}.scaling", element.scaling, stage.length, [i]

    @property
    def _rotary_dim(self) -> int:
        return self.model.position.rotary_dim(
            self.model.self_attention.rotary_dim(self.model.spec())
        )

    @property
    def geometry(self) -> RotaryGeometry:
        """The unscaled rotary embedding, of layers that set no base."""
        return RotaryGeometry(
            rotary_dim=self.rope.rotary_dim or self._rotary_dim,
            base=self.rope.base,
            train_length=self.rope.train_length or self.stages[0].seq_len,
        )

    @property
    def spans(self) -> list[Span]:
        """The stages with the global steps they cover; each begins where the previous one ends."""
        ends = itertools.accumulate(stage.steps for stage in self.stages)
        return [
            Span(number, stage, end - stage.steps, end)
            for number, (stage, end) in enumerate(zip(self.stages, ends, strict=True))
        ]

    @property
    def last_step(self) -> int:
        return self.spans[-1].end

    @property
    def sweep_window(self) -> int:
        """The length whose truncated text is the zero of the sweep during training."""
        return (self.sweep and self.sweep.window) or self.stages[0].seq_len

    @property
    def encoding(self) -> Encoding:
        """The position encoding, with defaults that follow from the longest stage."""
        return self.model.position.resolved(max(stage.length for stage in self.stages))

    @property
    def rotary_layers(self) -> RotaryLayers:
        pattern = tuple(LayerOverride(e.base, e.scaling, e.rotary_dim) for e in self.pattern)
        layers = self.model.num_hidden_layers
        return RotaryLayers(self.geometry, layers, pattern, self._rotary_dim)

    @property
    def has_chunks(self) -> bool:
        """Whether layers attend within chunks."""
        return any(element.attention_chunk is not None for element in self.pattern)

    def stage_scaling(self, stage: int) -> Scaling:
        """Return the scaling in force at a stage: its own, or the last one given before it."""
        return self._scaling_in_force(stage)[1]

    def stage_map(self, stage: int) -> PositionMap | None:
        """Return the position map in force at a stage, without "auto"."""
        length = self.stages[stage].length
        return self.rope.map and self.rope.map.at(self.geometry.train_length, length)

    def trained(self, stage: int) -> Trained:
        window = self.stages[stage].seq_len
        scaling, map_ = self.stage_scaling(stage), self.stage_map(stage)
        return Trained(window, scaling, map_, self.geometry.train_length)

    def trained_at(self, step: int) -> Trained:
        """Return how the checkpoint after global step `step` was trained."""
        return self.trained(self.stage_at(step))

    def stage_at(self, step: int) -> int:
        """Return the stage that wrote the checkpoint after global step `step`."""
        for span in self.spans:
            if step <= span.end:
                return span.number
        raise ValueError(f"step {step} is past the end of the last stage, {span.end}")

    def schedule_spans(self) -> list[tuple[int, int]]:
        """Return the stages [first, last) of each learning-rate schedule."""
        starts = [i for i, s in enumerate(self.stages) if i == 0 or s.learning_rate is not None]
        return list(zip(starts, [*starts[1:], len(self.stages)], strict=True))
