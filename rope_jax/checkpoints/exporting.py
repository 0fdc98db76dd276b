"""Export a run as a directory that transformers loads."""

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from rope_jax.checkpoints.describing import describe
from rope_jax.checkpoints.files import ACCOMPANYING, CONFIG, TOKENIZER
from rope_jax.checkpoints.opening import read_json
from rope_jax.checkpoints.weights import write_weights
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.strategy import read_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import print_message, print_overview, print_warning
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.devices.memory import in_gib
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.decoder import language_model
from rope_jax.model.resolve import resolve_run
from rope_jax.positions.maps import PositionMap
from rope_jax.rope import Scaling
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import replacing_folder
from rope_jax.sweeps.model import chosen_checkpoints, mesh_for

_GENERATION, _TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"


def export_run(run: RunDirectory, config: ExportConfig, out: Path, console: Console) -> None:
    """Write a run's checkpoint to a new folder: config.json, safetensors, tokenizer."""
    if out.exists():
        raise UserError(f"{out}: exists; name a new folder")
    training = run.load_config()
    tokenizer = run.open_tokenizer(training)
    model = language_model(resolve_run(training), tokenizer.vocab_size)
    placement = Placement(mesh_for(training))
    like = placement.shard_state(jax.eval_shape(lambda: model.init(0)))
    chosen = SweepConfig(steps=(config.step,) if config.step else None)
    warn = functools.partial(print_warning, console)
    (step,), checkpoints = chosen_checkpoints(run, chosen, like, warn)
    if config.step == 0 and step:  # only an imported run has a checkpoint of step 0
        raise UserError(f"steps: {run.checkpoints} has no step 0; its newest is {step}")
    sources = list(_sources(run, training))
    original = _original(sources)
    scaling, map_, fitted = _positions(training, config, training.stage_at(step))
    trained = (stage.length for _, source in sources for stage in source.stages)
    declared = original.get(CONFIG, {}).get("max_position_embeddings") or 0
    length = max(fitted, declared, *trained)
    scaling, lost = _without_what_is_lost(scaling, map_, lossy=config.lossy)
    own = original.get(CONFIG, {}).get("model_type")
    try:
        family, keys = describe(training, scaling, length, model.vocab_size, config.family, own)
    except ValueError as error:
        raise UserError(str(error)) from None
    _, params = next(iter(checkpoints))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    print_overview(
        console,
        f"export {training.name}",
        {
            "checkpoint": f"{run.path}, step {step}, {in_gib(size)} GiB",
            "as": f"{family.architecture}, "
            f"rope_parameters {json.dumps(keys['rope_parameters'])[:300]}",
            "folder": str(out),
        },
    )
    longest = keys["max_position_embeddings"]
    if longest < length:
        print_warning(
            console,
            f"{out}: max_position_embeddings is {longest:,}, from which dynamic scaling grows, "
            f"although the model reads {length:,} tokens",
        )
    for what in lost:
        print_warning(console, f"{out}: written without {what}: transformers has no form for it")
    try:
        with replacing_folder(out) as new:
            write_weights(new, family.rows(training.model), params)
            _write_texts(new, keys, training, tokenizer, length, original)
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot be written ({error.strerror or error})"
        ) from error
    print_message(console, f"exported: {out}")


def _positions(
    training: Config, config: ExportConfig, stage: int
) -> tuple[Scaling, PositionMap | None, int]:
    """Return the scaling and map to write, and the length that they were fitted at, or else 0."""
    if config.strategy is None:
        return training.stage_scaling(stage), training.stage_map(stage), 0
    try:
        strategy = read_strategy(config.strategy)
    except ValueError as error:
        raise UserError(f"strategy: {error}") from None
    return strategy.scaling, strategy.map, max(strategy.made_by.get("length", [0]))


def _without_what_is_lost(
    scaling: Scaling, map_: PositionMap | None, *, lossy: bool
) -> tuple[Scaling, list[str]]:
    """Return the scaling as transformers can express it, and what it cannot.

    UserError: it cannot express all, and not `lossy`.
    """
    lost = [] if map_ is None else [f"the position map {map_.type}"]
    query_scale = scaling.query_scale
    if query_scale is not None and query_scale.type != "ministral":
        lost.append(f"the query scale {query_scale.type}")
        scaling = scaling.model_copy(update={"query_scale": None})
    if lost and not lossy:
        raise UserError(
            f"lossy: transformers has no form for {' and '.join(lost)}, without which the model "
            "reads long texts differently; give lossy=true to write it all the same, or a strategy "
            "that transformers can express"
        )
    return scaling, lost


def _write_texts(
    folder: Path,
    keys: dict[str, Any],
    training: Config,
    tokenizer: Tokenizer,
    length: int,
    original: dict[str, Any],
) -> None:
    """Write all files but the weights. keys: of config.json."""
    bos, bos_id = training.tokenizer.start, tokenizer.bos_id
    ids = {"bos_token_id": bos_id, "eos_token_id": None, "pad_token_id": None}
    ids |= {key: value for key, value in original.get(CONFIG, {}).items() if key in ids}
    dtype = training.model.param_dtype
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {} if bos is None else {"bos_token": bos}
    settings = original.get(_TOKENIZER_CONFIG, settings) | {"model_max_length": length}
    settings.pop("auto_map", None)  # code that is not exported
    contents: dict[str, Any] = {_GENERATION: {"bos_token_id": bos_id}} | original
    contents[CONFIG] = keys | ids | {"dtype": dtype, "torch_dtype": dtype}
    contents |= {_TOKENIZER_CONFIG: settings, TOKENIZER: tokenizer.json()}
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _original(sources: Sequence[tuple[RunDirectory, Config]]) -> dict[str, Any]:
    """Return what came with an imported checkpoint, by file: JSON objects, other files as text."""
    folder = next((run.huggingface for run, config in sources if config.imported), None)
    if folder is None:
        return {}
    paths = [path for name in ACCOMPANYING if (path := folder / name).is_file()]
    return {
        path.name: read_json(path) if path.suffix == ".json" else path.read_text(encoding="utf-8")
        for path in paths
    }


def _sources(run: RunDirectory, training: Config) -> Iterator[tuple[RunDirectory, Config]]:
    """Yield a run and those that its weights come from, as far as they are here."""
    yield run, training
    while training.init_from is not None:
        run = RunDirectory(Path(training.init_from.run))
        if not run.config_file.is_file():
            return
        training = run.load_config()
        yield run, training
