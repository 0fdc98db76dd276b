"""Export a run as a directory that transformers loads."""

import json
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from rope_jax.checkpoints.describing import Written, describe
from rope_jax.checkpoints.files import CONFIG, TOKENIZER
from rope_jax.checkpoints.writing import write_weights
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.strategy import read_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import print_overview, print_warning
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.devices.memory import in_gib
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError, printable
from rope_jax.model.decoder import language_model
from rope_jax.positions.maps import PositionMap
from rope_jax.rope import Scaling
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.files import replacing_folder
from rope_jax.sweeps.checkpoints import chosen_checkpoints
from rope_jax.sweeps.model import mesh_for


def export_run(run: RunDirectory, config: ExportConfig, out: Path, console: Console) -> None:
    """Write a run's checkpoint to a new folder: config.json, safetensors, tokenizer.

    Raises UserError; nothing is left then.
    """
    if out.exists():
        raise UserError(f"{out}: exists; name a new folder")
    training = run.load_config()
    tokenizer = run.open_tokenizer(training)
    model = language_model(training, tokenizer.vocab_size)
    placement = Placement(mesh_for(training))
    like = placement.shard_state(jax.eval_shape(lambda: model.init(0)))
    chosen = SweepConfig(steps=None if config.step is None else (config.step,))
    (step,), checkpoints = chosen_checkpoints(run, chosen, like, console)
    stage = training.stage_at(step)
    scaling, map_, length = _positions(training, config, stage)
    lost = _lost(training, scaling, map_, config)
    if scaling.query_scale is not None and lost:
        scaling = _without_query_scale(scaling, lost)
    try:
        written = describe(training, scaling, length, model.vocab_size, config.family)
    except ValueError as error:
        raise UserError(str(error)) from None
    _, params = next(iter(checkpoints))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    print_overview(
        console,
        f"export {training.name}",
        {
            "checkpoint": f"{run.path}, step {step}, {in_gib(size)} GiB",
            "as": f"{written.family.architecture}, "
            f"rope_parameters {json.dumps(written.keys['rope_parameters'])[:300]}",
            "folder": str(out),
        },
    )
    for what in lost:
        print_warning(console, f"{out}: written without {what}: transformers has no form for it")
    try:
        with replacing_folder(out) as new:
            _write(new, training, written, params, tokenizer, length)
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot be written ({error.strerror or error})"
        ) from error
    console.print(f"exported: {printable(str(out))}", soft_wrap=True)


def _positions(
    training: Config, config: ExportConfig, stage: int
) -> tuple[Scaling, PositionMap | None, int]:
    """Return the scaling and map to write, and the length that they are meant for."""
    length = training.stages[stage].length
    if config.strategy is None:
        return training.stage_scaling(stage), training.stage_map(stage), length
    try:
        strategy = read_strategy(config.strategy)
    except ValueError as error:
        raise UserError(f"strategy: {error}") from None
    fitted = strategy.made_by.get("length", [length])
    return strategy.scaling, strategy.map, max([length, *fitted])


def _lost(
    training: Config, scaling: Scaling, map_: PositionMap | None, config: ExportConfig
) -> list[str]:
    """Return what transformers cannot express. UserError unless `lossy` allows to leave it out."""
    lost: list[str] = []
    if map_ is not None:
        lost.append(f"the position map {map_.type}")
    query_scale = scaling.query_scale
    if query_scale is not None and query_scale.type != "ministral":
        lost.append(f"the query scale {query_scale.type}")
    if lost and not config.lossy:
        raise UserError(
            f"lossy: transformers has no form for {' and '.join(lost)}, without which the model "
            "reads long texts differently; give lossy=true to write it all the same, or a strategy "
            "that transformers can express"
        )
    return lost


def _without_query_scale(scaling: Scaling, lost: list[str]) -> Scaling:
    if any("query scale" in what for what in lost):
        return scaling.model_copy(update={"query_scale": None})
    return scaling


def _write(
    folder: Path,
    training: Config,
    written: Written,
    params: Any,
    tokenizer: Tokenizer,
    length: int,
) -> None:
    write_weights(folder, written.family.rows(training.model), params)
    bos, bos_id = training.tokenizer.start, tokenizer.bos_id
    ids = {"bos_token_id": bos_id, "eos_token_id": None, "pad_token_id": None}
    dtype = training.model.param_dtype
    _write_json(folder / CONFIG, written.keys | ids | {"dtype": dtype, "torch_dtype": dtype})
    _write_json(folder / "generation_config.json", {"bos_token_id": bos_id})
    (folder / TOKENIZER).write_text(tokenizer.json(), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    _write_json(
        folder / "tokenizer_config.json", settings | ({} if bos is None else {"bos_token": bos})
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
