"""Export a run as a directory that transformers loads."""

import functools
import json
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from rope_jax.blocks.base import BlockConfig
from rope_jax.checkpoints.families import FAMILIES, Family
from rope_jax.checkpoints.files import (
    ACCOMPANYING,
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from rope_jax.checkpoints.opening import read_json
from rope_jax.checkpoints.reading import text_part
from rope_jax.checkpoints.weights import write_weights
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.strategy import read_strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.console import print_message, print_overview, print_warning
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.devices.memory import in_gib
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError, file_errors
from rope_jax.rope import RotaryGeometry, Scaling
from rope_jax.rope.hf import to_hf
from rope_jax.rope.hf.model_types import (
    EVERY_FOURTH_UNROTATED,
    GLOBAL_LAYERS_UNROTATED,
    MAY_ROTATE_PART,
    QUERIES_SCALED,
    UNROTATED_QUERIES_SCALED,
)
from rope_jax.rope.hf.read import LENGTH
from rope_jax.rope.query_scales import Llama4Scale, QueryScale
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import replacing_folder
from rope_jax.sweeps.model import chosen_checkpoints, mesh_for

# Fields of `model` that say how it is computed or initialized, or that every family shares.
_WITHOUT_KEY = {"attention", "dtype", "feed_forward.balance", "initializer_range", "layers",
                "param_dtype", "position", "product_dtype", "remat"}  # fmt: skip


def export_run(run: RunDirectory, config: ExportConfig, out: Path, console: Console) -> None:
    """Write a run's checkpoint to a new folder: config.json, safetensors, tokenizer."""
    if out.exists():
        raise UserError(f"{out}: exists; name a new folder")
    training = run.load_config()
    tokenizer = run.open_tokenizer(training)
    model = language_model(resolve_run(training), tokenizer.vocab_size)
    placement = Placement(mesh_for(training))
    placement = placement.splitting(model.shardings)
    abstract_params = placement.shard_state(model.abstract_params())
    chosen = (config.step,) if config.step else None
    warn = functools.partial(print_warning, console)
    (step,), checkpoints = chosen_checkpoints(run, chosen, abstract_params, warn)
    if config.step == 0 and step:  # only an imported run has a checkpoint of step 0
        raise UserError(f"{run.checkpoints}: has no step 0; its newest is {step}")
    sources = run_sources(run, training)
    original = original_files(sources)
    at = training.stage_at(step)
    scaling, lost, fitted = _positions(training, config, at)
    trained = [stage.length for stage in training.stages[: at + 1]]
    trained += [stage.length for _, source in sources[1:] for stage in source.stages]
    declared = original.get(CONFIG, {}).get("max_position_embeddings") or 0
    length = max(fitted, declared, *trained)
    model_type = config.family or original.get(CONFIG, {}).get("model_type")
    family, keys = describe(training, scaling, length, model.vocab_size, model_type)
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
    with file_errors(out, "written"), replacing_folder(out) as new:
        write_weights(new, family.rows(training.model), params)
        _write_texts(new, keys, training, tokenizer, length, original)
    print_message(console, f"exported: {out}")


Sources = Sequence[tuple[RunDirectory, TrainingConfig]]


def run_sources(run: RunDirectory, training: TrainingConfig) -> Sources:
    """Return a run, and the runs that its weights come from, as far as they are here."""
    sources = [(run, training)]
    while (origin := sources[-1][1].init_from) is not None:
        source = RunDirectory(Path(origin.run))
        if not source.config_file.is_file():
            break
        sources.append((source, source.load_config()))
    return sources


def _positions(
    training: TrainingConfig, config: ExportConfig, stage: int
) -> tuple[Scaling, list[str], int]:
    """Return the scaling as transformers can express it, what it cannot, and the fitted length.

    The length is 0 where nothing was fitted. UserError: something is lost, and not `lossy`.
    """
    scaling, map_, fitted = training.stage_scaling(stage), training.stage_map(stage), 0
    if config.strategy is not None:
        try:
            strategy = read_strategy(config.strategy)
        except ValueError as error:
            raise UserError(f"strategy: {error}") from None
        scaling, map_ = strategy.scaling, strategy.map
        fitted = max(strategy.made_by.get("length", [0]))
    lost = [] if map_ is None else [f"the position map {map_.type}"]
    query_scale = scaling.query_scale
    kept = ["ministral", *["constant"] * (training.model.self_attention.type == "latent")]
    if query_scale is not None and query_scale.type not in kept:
        lost.append(f"the query scale {query_scale.type}")
        scaling = scaling.model_copy(update={"query_scale": None})
    if lost and not config.lossy:
        raise UserError(
            f"lossy: transformers has no form for {' and '.join(lost)}, without which the model "
            "reads long texts differently; give lossy=true to write it all the same, or a strategy "
            "that transformers can express"
        )
    return scaling, lost, fitted


def _write_texts(
    folder: Path,
    keys: dict[str, Any],
    training: TrainingConfig,
    tokenizer: Tokenizer,
    length: int,
    original: dict[str, Any],
) -> None:
    """Write all files but the weights. keys: of config.json."""
    bos, bos_id = training.tokenizer.start, None
    if isinstance(bos, str):  # transformers has no name for several
        (bos_id,) = tokenizer.bos_ids
    ids = {"bos_token_id": bos_id, "eos_token_id": None, "pad_token_id": None}
    ids |= {key: value for key, value in original.get(CONFIG, {}).items() if key in ids}
    dtype = training.model.param_dtype
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {"bos_token": bos} if isinstance(bos, str) else {}
    settings = original.get(TOKENIZER_CONFIG, settings) | {"model_max_length": length}
    settings.pop("auto_map", None)  # code that is not exported
    contents: dict[str, Any] = {GENERATION: {"bos_token_id": bos_id}} | original
    contents[CONFIG] = keys | ids | {"dtype": dtype, "torch_dtype": dtype}
    contents |= {TOKENIZER_CONFIG: settings, TOKENIZER: tokenizer.json()}
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def original_files(sources: Sources) -> dict[str, Any]:
    """Return what came with the checkpoint that a run's weights were imported from, {} if none was.

    By file: JSON objects, other files as text.
    """
    folder = next((run.huggingface for run, made in sources if made.imported), None)
    paths = [path for name in ACCOMPANYING if folder and (path := folder / name).is_file()]
    return {
        path.name: text_part(read_json(path)) if path.suffix == ".json" else path.read_text("utf-8")
        for path in paths
    }


def describe(
    training: TrainingConfig,
    scaling: Scaling,
    length: int,
    vocab_size: int,
    model_type: str | None = None,
) -> tuple[Family, dict[str, Any]]:
    """Return the config.json of a run's model with a scaling, and the family that it is of.

    length: the longest text that the model is meant for. model_type: of the family; None: the first
        that can express the model.

    UserError: no family can, or not the one that was asked for. The message says what those lack
    that come closest.
    """
    model = training.model.model_copy(update={"vocab_size": vocab_size})
    if model_type is not None and model_type not in FAMILIES:
        raise UserError(f"family: {model_type!r} is not one of {', '.join(FAMILIES)}")
    if model.position.type != "rope":
        raise UserError(f"model.position: {model.position.type} is in no family of transformers")
    if not model.backend.is_softmax:
        raise UserError(f"model.attention: {model.attention} is in no family of transformers")
    lacks_model: dict[str, str] = {}  # the first family that lacks something, by what that is
    lacks_positions: dict[str, str] = {}
    for family in FAMILIES.values() if model_type is None else [FAMILIES[model_type]]:
        reasons = lacks_model
        try:
            keys = _model_keys(model, family)
            reasons = lacks_positions
            return family, keys | _position_keys(training, scaling, length, family)
        except ValueError as error:
            reasons.setdefault(str(error), family.model_type)
    if model_type is not None:
        (why,) = lacks_positions or lacks_model
        raise UserError(f"family: {model_type} cannot express this model ({why}); name another")
    # a family that has the architecture says best what is missing
    closest = sorted(
        (lacks_positions or lacks_model).items(), key=lambda each: each[0].count(", no ")
    )
    why = "; ".join(f"{name}: {reason}" for reason, name in closest[:3])
    raise UserError(f"family: none can express this model ({why})")


def _model_keys(model: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the keys about everything but positions. ValueError: the family lacks something."""
    blocks = {"feed_forward": model.feed_forward, "self_attention": model.self_attention}
    expected: dict[str, Any] = {
        f"{slot}.{name}": field.default
        for slot, block in blocks.items()
        for name, field in type(block).model_fields.items()
    }
    expected |= _flat({name: field.default for name, field in ModelConfig.model_fields.items()})
    expected |= {
        "feed_forward.moe_intermediate_size": model.intermediate_size,
        "num_key_value_heads": model.num_attention_heads,
        "head_dim": model.hidden_size // model.num_attention_heads,
        "query_pre_attn_scalar": model.heads_width,
        **family.fixed,
    }
    given = _flat({name: getattr(model, name) for name in ModelConfig.model_fields})
    fields = {name: expected[name] if value is None else value for name, value in given.items()}
    settable = _WITHOUT_KEY.union(*(key.fields for key in family.keys))
    lacking = [
        f"no {name} {value}"
        for name, value in fields.items()
        if name not in settable and value != expected[name]
    ]
    written: dict[str, Any] = {}
    for key in family.keys:
        if not fields.keys() >= {*key.fields}:
            continue  # of another block, whose type the family lacks
        try:
            written[key.name] = key.written(fields)
        except ValueError as error:
            lacking.append(str(error))
    if lacking:
        raise ValueError(", ".join(lacking))
    if (scalar := written.get("query_pre_attn_scalar")) is not None:
        if scalar != int(scalar):
            raise ValueError(f"no query_pre_attn_scalar {scalar}, only whole numbers")
        written["query_pre_attn_scalar"] = int(scalar)
    return {"architectures": [family.architecture], "model_type": family.model_type} | written


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a model, with those of a block in its place, as in `feed_forward.type`."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, BlockConfig):
            flat |= {f"{name}.{x}": getattr(value, x) for x in type(value).model_fields}
        else:
            flat[name] = value
    return flat


def _position_keys(
    training: TrainingConfig, scaling: Scaling, length: int, family: Family
) -> dict[str, Any]:
    """Return the keys about rotation and sliding windows. ValueError: the family lacks some."""
    count = training.model.num_hidden_layers
    settings = [training.pattern[i % len(training.pattern)] for i in range(count)]
    for name in {"sliding_window", "attention_chunk"} - {family.windows.setting}:
        if any(getattr(layer, name) for layer in settings):
            raise ValueError(f"no {name}")
    windows = [getattr(layer, family.windows.setting) for layer in settings]
    layers = [training.rotary_layers.for_layer(i, scaling) for i in range(count)]
    keys = family.windows.written(windows)
    if training.rope.layout != family.layout:
        raise ValueError(f"no rope.layout {training.rope.layout}, only {family.layout}")
    head_dim = training.model.self_attention.rotary_dim(training.model.spec())
    rotary_dim = training.geometry.rotary_dim
    if rotary_dim != head_dim and family.model_type not in MAY_ROTATE_PART:
        raise ValueError(f"no rotary_dim {rotary_dim} in heads of {head_dim}")
    rotates = [applied.type != "drope" for _, applied in layers]
    query_scales = {applied.query_scale for _, applied in layers if applied.type == "drope"}
    if family.model_type in UNROTATED_QUERIES_SCALED:
        keys |= _temperature(query_scales)
    elif query_scales - {None}:
        raise ValueError("no query_scale in layers without rotation")
    if family.model_type in EVERY_FOURTH_UNROTATED:
        keys["no_rope_layers"] = [int(rotated) for rotated in rotates]
    elif family.model_type in GLOBAL_LAYERS_UNROTATED:
        if rotates != [window is not None or not any(windows) for window in windows]:
            raise ValueError("other layers without rotation than those without a sliding window")
    elif not all(rotates):
        raise ValueError("no layers without rotation")
    if not family.local:
        rotated = [layer for layer in layers if layer[1].type != "drope"]
        return keys | _rope_keys(rotated, family, head_dim, length)
    parts = {}
    for name, slides in (("full_attention", False), ("sliding_attention", True)):
        of_type = [x for x, w in zip(layers, windows, strict=True) if (w is not None) == slides]
        if of_type:
            parts[name] = _rope_keys(of_type, family, head_dim, length)
    # version 4 reads the other keys, and scales no layer that slides
    *_, sliding = parts.values()
    keys |= parts.get("full_attention", sliding | {"rope_scaling": None})
    if "rope_local_base_freq" in family.defaults:
        keys["rope_local_base_freq"] = sliding["rope_theta"]
    return keys | {"rope_parameters": {name: x["rope_parameters"] for name, x in parts.items()}}


def _temperature(scales: Set[QueryScale | None]) -> dict[str, Any]:
    """Return the keys about query scales, those of all layers without rotation."""
    if scales <= {None}:
        return {"attn_temperature_tuning": False}
    scale, *others = scales
    if others or not isinstance(scale, Llama4Scale):
        raise ValueError("no query_scale in layers without rotation but one llama4 for all")
    return {"attn_temperature_tuning": True, **scale.model_dump(exclude={"type"})}


def _rope_keys(
    layers: Sequence[tuple[RotaryGeometry, Scaling]], family: Family, head_dim: int, length: int
) -> dict[str, Any]:
    """Return the keys about the rotation of layers that all rotate alike.

    In the form of transformers 5 (rope_parameters) and in that of version 4, which would otherwise
    fall back to its defaults silently.
    """
    if not layers:
        raise ValueError("no model in which no layer rotates")
    geometry, scaling = layers[0]
    if any(layer != layers[0] for layer in layers):
        raise ValueError("no layers with different bases or scalings")
    longest = None if scaling.type == "dynamic_ntk" else length
    written = to_hf(
        geometry,
        scaling,
        head_dim=head_dim,
        max_position_embeddings=longest,
        model_type=family.model_type,
    )
    rope = {"rope_type": "default", **(written["rope_scaling"] or {})}
    rope_type = rope["rope_type"]
    if family.rope_types is not None and rope_type not in family.rope_types:
        raise ValueError(f"no rope_type {rope_type}, only {' and '.join(family.rope_types)}")
    keys = {"max_position_embeddings": written["max_position_embeddings"]}
    in_either = {"rope_theta": written["rope_theta"]}  # form
    if family.model_type in MAY_ROTATE_PART:
        # proportional has it among its own settings
        share = written.get("partial_rotary_factor", 1.0)
        in_either["partial_rotary_factor"] = rope.get("partial_rotary_factor", share)
    if family.local and rope.get("truncate") is False:  # read outside of the layer type, if at all
        raise ValueError("no YaRN without truncate")
    if "llama_4_scaling_beta" in rope and family.model_type not in QUERIES_SCALED:
        raise ValueError("no Ministral's query scale")
    keys["rope_parameters"] = rope | in_either
    if rope_type in ("longrope", "yarn", "llama3") or LENGTH in family.defaults:
        # at the top level it counts for every version, and Phi-3 has a default of its own there
        keys[LENGTH] = geometry.train_length
    keys |= {family.aliases.get(name, name): value for name, value in in_either.items()}
    return keys | {"rope_scaling": written["rope_scaling"]}
