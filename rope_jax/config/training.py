"""Schema of a training run: stages, optimizer, checkpoints, and the run itself."""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from rope_jax.config.checkpoints import Imported
from rope_jax.config.data import DataConfig, StdlibData
from rope_jax.config.devices import DistributedConfig, MeshConfig
from rope_jax.config.model import LayerConfig, ModelConfig, RopeConfig, check_map
from rope_jax.config.sections import (
    AnyInitFrom,
    CheckpointConfig,
    OptimConfig,
    Span,
    StageConfig,
    ValidationConfig,
)
from rope_jax.config.sharding_checks import check_mesh, check_seq_len
from rope_jax.config.sweep import TrainingSweepConfig, check_encoding
from rope_jax.config.tokenizer import ByteTokenizerConfig, TokenizerConfig
from rope_jax.config.types import (
    FolderName,
    Frozen,
    PathText,
    PositiveInt,
    Seed,
)
from rope_jax.positions.encodings import Encoding
from rope_jax.positions.maps import PositionMap
from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling


class Config(Frozen):
    """A training run."""

    name: FolderName = Field(description="name of the run directory")
    runs_dir: PathText = Field("runs", description="folder for run directories")
    seed: Seed = Field(0, description="seed of the weights and of the batches")
    log_every_steps: PositiveInt = Field(20, description="steps between logged lines")
    init_from: AnyInitFrom | None = Field(
        None,
        description="run to start from, as RUN or RUN@STEP, which also gives its tokenizer and the "
        "keys of model, rope and data that are left out; null: fresh weights",
    )
    imported: Imported | None = Field(
        None,
        description="Hugging Face checkpoint that scripts/import_hf.py made this run from; it is "
        "not trained itself, but another run can start from it with init_from",
    )
    model: ModelConfig = ModelConfig()
    rope: RopeConfig = RopeConfig()
    data: DataConfig = StdlibData()
    tokenizer: TokenizerConfig = ByteTokenizerConfig()
    optim: OptimConfig = OptimConfig()
    stages: Annotated[tuple[StageConfig, ...], Field(min_length=1, strict=False)] = Field(
        description="stages of training, in order; for instance a short window, then a long one"
    )
    validation: ValidationConfig = ValidationConfig()
    sweep: TrainingSweepConfig | None = Field(
        None, description="loss at several context lengths during training; null: none"
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig | None = Field(
        None, description="several processes as one run; null: this process is the whole run"
    )

    @model_validator(mode="before")
    @classmethod
    def _strategy_is_used(cls, settings: Any) -> Any:
        """Refuse a strategy file that the first stage replaces, before the file is read."""
        if not isinstance(settings, dict):
            return settings
        rope, stages = settings.get("rope"), settings.get("stages")
        given = isinstance(rope, dict) and isinstance(rope.get("strategy"), str)
        first = stages[0] if isinstance(stages, list) and stages else None
        if given and isinstance(first, dict) and first.get("scaling") is not None:
            raise ValueError(
                "stages.0.scaling: would replace the scaling of rope.strategy; keep one of the two"
            )
        return settings

    @model_validator(mode="after")
    def _positions_make_sense(self) -> "Config":
        position = self.model.position
        longest = max(stage.length for stage in self.stages)
        if position.longest is not None and longest > position.longest:
            number = [stage.length for stage in self.stages].index(longest)
            key = "seq_len" if self.stages[number].seq_len == longest else "positions.length"
            raise ValueError(
                f"model.position.length: {position.longest} positions are too few for "
                f"stages.{number}.{key} {longest}; give at least {longest}"
            )
        self._check_nothing_is_ignored()
        for number in range(len(self.stages)):
            self._check_windows(number)
        if not self.model.backend.is_softmax:
            self._check_linear()
        if self.rope.map is not None:
            try:
                check_map(self.model, self.rope.map)
            except ValueError as error:
                raise ValueError(f"rope.{error}") from None
        swept = () if self.sweep is None else self.sweep.scalings
        check_mesh(self.mesh, self.model, [self.rope.map, *(entry.map for entry in swept)])
        for number, stage in enumerate(self.stages):
            try:
                check_seq_len(self.mesh, stage.seq_len)
            except ValueError as error:
                raise ValueError(f"stages.{number}.seq_len: {error}") from None
        return self

    @model_validator(mode="after")
    def _geometry_fits_the_heads(self) -> "Config":
        try:
            rotary_dim = self.geometry.rotary_dim
        except ValueError as error:  # begins with a key of the geometry
            raise ValueError(f"rope.{error}") from None
        if rotary_dim > self.model.position.rotary_dim(self.model.heads_width):
            raise ValueError(
                f"rope.rotary_dim: {rotary_dim} is larger than head_dim {self.model.heads_width}"
            )
        return self

    @model_validator(mode="after")
    def _pattern_fits_the_layers(self) -> "Config":
        layers, pattern = self.model.num_hidden_layers, self.rope.layer_pattern
        if len(pattern) > layers:
            raise ValueError(
                f"rope.layer_pattern: has {len(pattern)} elements, more than "
                f"model.num_hidden_layers {layers}"
            )
        if pattern and all(element.scaling is not None for element in pattern):
            for key, scaling in self._shared_scalings().items():
                if scaling != NoScaling():
                    raise ValueError(
                        f"{key}: no layer uses it, because every element of rope.layer_pattern has "
                        "its own scaling"
                    )
        return self

    @model_validator(mode="after")
    def _scalings_fit_the_layers(self) -> "Config":
        for stage in range(len(self.stages)):
            for element in range(len(self.rope.layer_pattern) or 1):
                self._check_scaling(stage, element)
        return self

    @model_validator(mode="after")
    def _map_fits_the_stages(self) -> "Config":
        if self.rope.map is None:
            return self
        window = self.geometry.train_length
        with_effect = False
        for number, stage in enumerate(self.stages):
            try:
                map_ = self.stage_map(number)
                if map_ is not None:
                    map_.check_layers(self.rotary_layers)
            except ValueError as error:  # begins with a key of the map
                raise ValueError(f"rope.map.{error}") from None
            if map_ is not None:
                self._check_far(map_, number)
                if map_.has_effect(window, stage.length):
                    self._check_windows_with_map(map_, number)
                    with_effect = True
        if not with_effect:
            longest = max(stage.seq_len for stage in self.stages)
            reason = f"these settings changes nothing in a stage of {longest:,} tokens"
            if self.rope.map.is_auto and longest <= window:
                reason = (
                    f"auto settings acts beyond train_length {window:,}, and no stage is longer; "
                    "give numbers"
                )
            raise ValueError(f"rope.map: {self.rope.map.type} with {reason}")
        return self

    @model_validator(mode="after")
    def _warmup_fits_the_stages(self) -> "Config":
        for first, last in self.schedule_spans():
            steps = sum(stage.steps for stage in self.stages[first:last])
            if self.optim.warmup(steps) >= steps:
                raise ValueError(
                    f"optim.warmup_steps: {self.optim.warmup_steps} is not less than the {steps} "
                    f"steps of the schedule that starts at stages[{first}]; leave it out for a "
                    "tenth of them"
                )
        return self

    @model_validator(mode="after")
    def _sweep_fits_the_encoding(self) -> "Config":
        if self.sweep is not None:
            try:
                check_encoding(self.model, self.sweep.scalings)
            except ValueError as error:
                raise ValueError(f"sweep.{error}") from None
        return self

    def _check_nothing_is_ignored(self) -> None:
        """ValueError for settings of the section `rope` that this model's encoding ignores."""
        position = self.model.position
        given = [
            f"rope.{name}"
            for name in position.ignored
            if getattr(self.rope, name) != RopeConfig.model_fields[name].default
        ]
        if not position.is_rotary:
            given = self._of_rotation() + given
        if given:
            reason = "turns each dimension by itself" if position.is_rotary else "rotates nothing"
            raise ValueError(
                f"{given[0]}: has no effect, because model.position.type {position.type} "
                f"{reason}; remove it"
            )

    def _of_rotation(self) -> list[str]:
        """Return the keys given, outside of `Encoding.ignored`, that only act on a rotation."""
        elements = {f"rope.layer_pattern.{i}": e for i, e in enumerate(self.rope.layer_pattern)}
        scalings = self._scalings()
        changed = [key for key, scaling in scalings.items() if scaling.type != "none"]
        changed += [f"{key}.base" for key, element in elements.items() if element.base]
        scales = any(scaling.query_scale for scaling in scalings.values())
        if self.rope.train_length is not None and not scales:
            changed.append("rope.train_length")
        return changed

    def _check_linear(self) -> None:
        """ValueError for what attention without softmax cannot do."""
        for i, element in enumerate(self.rope.layer_pattern):
            if element.sliding_window is not None:
                raise ValueError(
                    f"rope.layer_pattern.{i}.sliding_window: model.attention linear sums over all "
                    "keys; use blockwise or xla for sliding windows"
                )
        for key, scaling in self._scalings().items():
            if getattr(scaling, "attention_factor", None) not in (None, 1.0):
                raise ValueError(
                    f"{key}.attention_factor: scales the logits of a softmax, and model.attention "
                    "linear has none"
                )
            if scaling.query_scale is not None:
                raise ValueError(
                    f"{key}.query_scale: scales the logits of a softmax, and model.attention "
                    "linear has none"
                )

    def _check_windows(self, number: int) -> None:
        """ValueError for windows of a stage that the model's encoding cannot number so."""
        stage, key, position = self.stages[number], f"stages.{number}", self.model.position
        if stage.positions.type != "plain" and not position.uses_positions:
            raise ValueError(
                f"{key}.positions: {stage.positions.type} has no effect, because "
                f"model.position.type {position.type} does not read the tokens' positions; "
                "remove it"
            )
        if not (position.uses_positions and position.uses_distances):
            return
        reason = (
            f"does not go with model.position.type {position.type}, which also counts the tokens "
            "between a query and a key"
        )
        if stage.positions.type != "plain":
            raise ValueError(f"{key}.positions: {stage.positions.type} {reason}; give plain")
        self._check_documents(number, reason)

    def _check_windows_with_map(self, map_: PositionMap, number: int) -> None:
        """ValueError for windows of a stage in which its map would show keys at other distances."""
        stage, key = self.stages[number], f"stages.{number}"
        reason = f"does not go with rope.map {map_.type}, which counts the tokens that a query sees"
        if stage.positions.type != "plain":
            raise ValueError(f"{key}.positions: {stage.positions.type} {reason}; give plain")
        self._check_documents(number, reason)
        if stage.mixed is not None:
            raise ValueError(
                f"{key}.mixed: does not go with rope.map {map_.type}, which would act on the short "
                "windows, too; remove one of them"
            )

    def _check_documents(self, number: int, reason: str) -> None:
        """ValueError unless a stage's positions count the tokens that a query sees."""
        documents = self.stages[number].documents
        if not documents.positions_count_what_is_seen:
            other = "reset" if documents.positions == "continue" else "continue"
            raise ValueError(
                f"stages.{number}.documents.positions: {documents.positions} with mask "
                f"{documents.mask} {reason}; give {other}"
            )

    def _check_scaling(self, stage: int, element: int) -> None:
        """Check that a stage's scalings are defined and have an effect in an element's layers.

        Raises ValueError, which names the key to change, in the element or outside the pattern.
        """
        own, length = self._pattern[element].scaling, self.stages[stage].length
        if own is not None:
            self._check_in_layers(f"rope.layer_pattern.{element}.scaling", own, length, element)
            return
        self._check_in_layers(self._scaling_key(stage), self.stage_scaling(stage), length, element)
        mixed = self.stages[stage].mixed
        if mixed is not None:
            key = f"stages.{stage}.mixed.scaling"
            self._check_in_layers(key, mixed.scaling, mixed.seq_len, element)

    def _check_far(self, map_: PositionMap, stage: int) -> None:
        """Check a map's own scaling like `_check_scaling`, in layers without one of their own."""
        elements = [i for i, element in enumerate(self._pattern) if element.scaling is None]
        length = self.stages[stage].length
        for band in map_.bands(self.geometry.train_length, length):
            if band.far is None:
                continue
            if not elements:
                raise ValueError(
                    "rope.map.far: no layer uses it, because every element of rope.layer_pattern "
                    "has its own scaling"
                )
            for element in elements:
                self._check_in_layers("rope.map.far", band.far, length, element)

    def _check_in_layers(self, key: str, scaling: Scaling, length: int, element: int) -> None:
        """Check a scaling, given at `key`, in an element's layers for texts of n tokens."""
        pattern = self._pattern
        own, own_key = pattern[element], f"rope.layer_pattern.{element}"
        geometry = replace(self.geometry, base=own.base or self.rope.base)
        sections = {"base": "rope" if own.base is None else own_key}
        sections |= {"rotary_dim": "rope", "train_length": "rope"}
        layers = self.model.num_hidden_layers
        head_dim = self.model.position.rotary_dim(self.model.heads_width)
        for layer in range(element, layers, len(pattern)):
            for strategy_key, strategy in _with_inner(key, scaling):
                try:
                    in_layer = strategy.for_layer(layer, layers)
                    in_layer.check(geometry, length, head_dim)
                    in_layer.query_scale_at(geometry, np.arange(1))
                except ValueError as error:  # begins with a key of the geometry or strategy
                    section = sections.get(str(error).partition(":")[0], strategy_key)
                    raise ValueError(f"{section}.{error}") from None
            if scaling.for_layer(layer, layers) == scaling:
                break  # the element's other layers have the same scaling

    @property
    def _pattern(self) -> tuple[LayerConfig, ...]:
        """The layers' settings, with one element that changes nothing if none are given."""
        return self.rope.layer_pattern or (LayerConfig(),)

    def _scaling_key(self, stage: int) -> str:
        """Return the key that sets `stage_scaling`."""
        given = [i for i in range(stage + 1) if self.stages[i].scaling is not None]
        return f"stages.{given[-1]}.scaling" if given else "rope.scaling"

    def _shared_scalings(self) -> dict[str, Scaling]:
        """Return the scalings of layers without one of their own, by the keys that set them."""
        shared = {self._scaling_key(i): self.stage_scaling(i) for i in range(len(self.stages))}
        mixed = {f"stages.{i}.mixed.scaling": stage.mixed for i, stage in enumerate(self.stages)}
        return shared | {key: m.scaling for key, m in mixed.items() if m is not None}

    def _scalings(self) -> dict[str, Scaling]:
        """Return every scaling by the key that sets it, except that of a map."""
        elements = {f"rope.layer_pattern.{i}": e for i, e in enumerate(self.rope.layer_pattern)}
        own = {f"{key}.scaling": e.scaling for key, e in elements.items() if e.scaling is not None}
        return self._shared_scalings() | own

    @property
    def geometry(self) -> RotaryGeometry:
        """The unscaled rotary embedding, of layers that set no base."""
        return RotaryGeometry(
            rotary_dim=self.rope.rotary_dim
            or self.model.position.rotary_dim(self.model.heads_width),
            base=self.rope.base,
            train_length=self.rope.train_length or self.stages[0].seq_len,
        )

    @property
    def spans(self) -> list[Span]:
        """The stages with the global steps they cover; each begins where the previous one ends."""
        ends = np.cumsum([stage.steps for stage in self.stages]).tolist()
        return [
            Span(number, stage, end - stage.steps, end)
            for number, (stage, end) in enumerate(zip(self.stages, ends, strict=True))
        ]

    @property
    def sweep_window(self) -> int:
        """The length against which the sweep during training measures gains."""
        return (self.sweep and self.sweep.window) or self.stages[0].seq_len

    @property
    def encoding(self) -> Encoding:
        """The position encoding, with defaults that follow from the longest stage."""
        return self.model.position.fitted(max(stage.length for stage in self.stages))

    @property
    def rotary_layers(self) -> RotaryLayers:
        """The rotary embedding of every layer."""
        own = tuple(LayerOverride(e.base, e.scaling) for e in self.rope.layer_pattern)
        pattern = own or (LayerOverride(),)
        head_dim = self.model.position.rotary_dim(self.model.heads_width)
        return RotaryLayers(self.geometry, self.model.num_hidden_layers, pattern, head_dim)

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """Attention windows of the layers, as a repeating pattern."""
        return tuple(element.sliding_window for element in self.rope.layer_pattern) or (None,)

    def stage_scaling(self, stage: int) -> Scaling:
        """Return the scaling in force at a stage: its own, or the last one given before it."""
        given = [s.scaling for s in self.stages[: stage + 1] if s.scaling is not None]
        return given[-1] if given else self.rope.scaling

    def stage_map(self, stage: int) -> PositionMap | None:
        """Return the position map in force at a stage, without "auto"; None: none.

        L is `train_length`, n the stage's `length`.
        """
        length = self.stages[stage].length
        return self.rope.map and self.rope.map.at(self.geometry.train_length, length)

    def stage_at(self, step: int) -> int:
        """Return the stage that wrote the checkpoint after global step `step`."""
        end = 0
        for number, stage in enumerate(self.stages):
            end += stage.steps
            if step <= end:
                return number
        raise ValueError(f"step {step} is past the end of the last stage, {end}")

    def schedule_spans(self) -> list[tuple[int, int]]:
        """Return the stages [first, last) of each learning-rate schedule."""
        starts = [i for i, s in enumerate(self.stages) if i == 0 or s.learning_rate is not None]
        return list(zip(starts, [*starts[1:], len(self.stages)], strict=True))


def _with_inner(key: str, scaling: Scaling) -> list[tuple[str, Scaling]]:
    """Return a scaling with its key, preceded by the scaling that it wraps, if any."""
    inner = getattr(scaling, "inner", None)
    return [*([(f"{key}.inner", inner)] if inner else []), (key, scaling)]
