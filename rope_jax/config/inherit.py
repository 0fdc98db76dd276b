"""Load a training config; what it leaves out, it inherits from the run named in `init_from`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rope_jax.config.load import load, read_raw, validate
from rope_jax.config.messages import show_value
from rope_jax.config.schema import at, flat
from rope_jax.config.sections import AnyInitFrom, InitFrom
from rope_jax.config.tokenizer import ByteTokenizerConfig, FileTokenizerConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.config.types import Frozen
from rope_jax.errors import UserError, errors_in, file_errors

# Fields of `model` that change how it is computed or initialized, but not what its parameters mean.
_EXECUTION = {"dtype", "product_dtype", "param_dtype", "layers", "remat", "initializer_range"}


@dataclass(frozen=True)
class Source:
    """The run that another one starts from, and the step of the checkpoint that is used."""

    run: Path
    config: TrainingConfig
    step: int

    @property
    def checkpoint(self) -> Path:
        return self.run / "checkpoints" / str(self.step)

    def check_model(self, config: TrainingConfig) -> None:
        """UserError, naming the fields, unless this run's parameters mean the same in `config`."""
        new, old = _meaning(config), _meaning(self.config)
        differences = [
            f"{key} is {show_value(old[key])} there and {show_value(new[key])} here"
            for key in new
            if key in old and new[key] != old[key]
        ]
        if differences:
            raise UserError(
                f"init_from: the model of {self.run} differs: {'; '.join(differences)}; leave "
                "these keys out, so that they are inherited"
            )


def load_training(path: Path | None, overrides: Sequence[str] = ()) -> TrainingConfig:
    """Load a training config as `load` does, with the keys that it inherits. Raises UserError."""
    return training_config(*read_raw(path, overrides))


def find_source(start: InitFrom) -> Source:
    """Read the config of the run to start from, and find its checkpoint. UserError: none there."""
    run = Path(start.run)
    with errors_in("init_from: ", UserError, UserError), file_errors(run):
        if not (run / "config.yaml").is_file():
            raise UserError(
                f"{run}: not a run directory (it has no config.yaml); train it first, or continue "
                "a run that started from it with that run's own config.yaml"
            )
        steps = saved_steps(run / "checkpoints")
    if not steps:
        raise UserError(f"init_from: {run}: has no checkpoint; train it first")
    step = steps[-1] if start.step is None else start.step
    if step not in steps:
        shown = ", ".join(map(str, steps))
        raise UserError(f"init_from.step: {run} has no checkpoint of step {step}; it has {shown}")
    file = run / "config.yaml"
    with errors_in("init_from: ", UserError, UserError), errors_in(f"{file}: ", UserError):
        config = load(TrainingConfig, file)
        config.stage_at(step)
    return Source(run, config, step)


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, damaged or not, ascending."""
    names = (path.name for path in directory.glob("*") if path.is_dir())
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def planned_source(start: InitFrom, config: TrainingConfig) -> Source:
    """Return what a run with a config will be as a source. UserError: it will not have the step."""
    step = config.last_step if start.step is None else start.step
    with errors_in(f"init_from.step: {start.run}: ", UserError):
        config.stage_at(step)
    return Source(Path(start.run), config, step)


def training_config(
    raw: dict[str, Any], origin: str, find: Callable[[InitFrom], Source] = find_source
) -> TrainingConfig:
    """Validate a raw training config, with the keys that it inherits from the run `init_from`.

    A run inherits `model`, `data` and `rope`, key by key: the scaling and map that the checkpoint
    was trained with, and its L. It inherits the tokenizer as a whole, as the copy that the source
    keeps: with other texts, `bpe` would be another tokenizer. If a config states every section,
    as the config.yaml of a run does, nothing is inherited, and the source may have been deleted.

    origin: errors begin with it. find: returns the run and checkpoint that `init_from` names.
    """
    given = at(raw, "init_from")
    start = None if given is None else validate(_Start, {"init_from": given}, origin).init_from
    if start is None or _is_complete(raw, start):
        return validate(TrainingConfig, raw, origin)
    with errors_in(f"{origin}: ", UserError, UserError):
        source = find(start)
    config = validate(TrainingConfig, _with_inherited(raw, start, source), origin)
    with errors_in(f"{origin}: ", UserError, UserError):
        source.check_model(config)
    return config


class _Start(Frozen):
    """The part of a training config that has to be valid before the rest is complete."""

    init_from: AnyInitFrom


def _is_complete(raw: dict[str, Any], start: InitFrom) -> bool:
    """Whether a raw config states every key of its first level, as only a dumped one does."""
    try:
        config = TrainingConfig.model_validate(raw)
    except ValidationError:  # perhaps because it lacks what it inherits
        return False
    return (
        start.step is not None
        and TrainingConfig.model_fields.keys() == config.model_fields_set
        and (config.sweep is None or config.sweep.window is not None)
    )


def _with_inherited(raw: dict[str, Any], start: InitFrom, source: Source) -> dict[str, Any]:
    old = source.config
    # not the type of the weights: training needs float32, whatever they were kept in there
    model = old.model.model_dump(mode="json", exclude={"param_dtype"})
    # with the defaults that followed from the lengths of the source's stages
    model["position"] = old.encoding.model_dump(mode="json")
    scaling = old.stage_scaling(old.stage_at(source.step))
    rope = old.rope.model_dump(mode="json") | {"scaling": scaling.model_dump(mode="json")}
    if old.model.position.is_rotary or scaling.query_scale is not None:  # others have no L
        rope["train_length"] = old.geometry.train_length
    if at(raw, "rope", "strategy") is not None:  # gives these two
        del rope["scaling"], rope["map"]
    if at(raw, "model", "position", "type") not in (None, model["position"]["type"]):
        rope = {}  # it would not even be valid; `check_model` refuses the other encoding
    data = old.data.model_dump(mode="json")
    if at(raw, "data", "type") not in (None, data["type"]):
        data = {}
    merged = raw | {"init_from": start.model_dump() | {"step": source.step}}
    for name, section in (("model", model), ("rope", rope), ("data", data)):
        stated = raw.get(name, {})
        merged[name] = section | stated if isinstance(stated, dict) else stated
    tokenizer = old.tokenizer
    if not isinstance(tokenizer, ByteTokenizerConfig):  # the copy does not change
        copy = str(source.run / "tokenizer.json")
        tokenizer = FileTokenizerConfig(path=copy, bos=tokenizer.start)
    merged.setdefault("tokenizer", tokenizer.model_dump(mode="json"))
    sweep = raw.get("sweep")
    if isinstance(sweep, dict) and sweep.get("window") is None:
        merged["sweep"] = sweep | {"window": old.trained_at(source.step).window}
    return merged


def _meaning(config: TrainingConfig) -> dict[str, Any]:
    """Return the fields that decide the shapes or the meaning of parameters, by dotted key."""
    model, is_rotary = config.model, config.model.position.is_rotary
    values = model.model_dump(mode="json", exclude=_EXECUTION) | {
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.heads_width,
        "attention": "softmax" if model.backend.is_softmax else model.attention,
        "position": config.encoding.model_dump(mode="json"),
    }
    # whether two files are equal is checked when they are read
    tokenizer = {"type": "bytes" if config.tokenizer.type == "bytes" else "bpe or file"}
    rope = {"rotary_dim": config.geometry.rotary_dim, "layout": config.rope.layout}
    return flat({"model": values, "tokenizer": tokenizer, "rope": rope if is_rotary else {}})
