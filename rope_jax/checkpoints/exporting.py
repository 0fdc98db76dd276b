"""Export a run as a directory that transformers loads, or as a GGUF file."""

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax.traverse_util import flatten_dict
from rich.console import Console

from rope_jax.checkpoints.adapter import write_adapter
from rope_jax.checkpoints.describing import describe
from rope_jax.checkpoints.families import Family
from rope_jax.checkpoints.files import (
    ACCOMPANYING,
    CONFIG,
    GENERATION,
    GGUF,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from rope_jax.checkpoints.open import is_gguf
from rope_jax.checkpoints.opening import read_json
from rope_jax.checkpoints.reading import text_part
from rope_jax.checkpoints.tensors import tensors_of
from rope_jax.checkpoints.weights import shapes_of, write_weights
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.resolve import resolve_run
from rope_jax.config.strategy import read_strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.console import print_message, print_overview, print_warning
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.devices.memory import in_gib
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError, file_errors
from rope_jax.extras import needs_extra
from rope_jax.model.decoder import Params
from rope_jax.rope import Scaling
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import replacing, replacing_folder
from rope_jax.sweeps.model import chosen_checkpoints, mesh_for
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.program import Program

Writer = tuple[str, Callable[[Path], None]]
"""What is written, in words, and a function that writes it."""
_OUTTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


Sources = Sequence[tuple[RunDirectory, TrainingConfig]]
"""A run, and the runs that its weights come from."""


class _Export(NamedTuple):
    """What is exported.

    read: reads the parameters. length: the longest text that the model is meant for.
    original: what came with an imported checkpoint, by file.
    """

    sources: Sources
    step: int
    training: TrainingConfig
    tokenizer: Tokenizer
    program: Program
    read: Callable[[], Params]
    scaling: Scaling
    length: int
    original: dict[str, Any]


def export_run(run: RunDirectory, config: ExportConfig, out: Path, console: Console) -> None:
    """Write a run's checkpoint to a new folder: config.json, safetensors, tokenizer.

    Or to a new GGUF file, if `out` is named like one.
    """
    is_file = out.suffix.lower() == GGUF
    if out.exists():
        raise UserError(f"{out}: exists; name a new {'file' if is_file else 'folder'}")
    if config.outtype is not None and not is_file:
        raise UserError(f"outtype: is of GGUF files; name one, such as {out}{GGUF}")
    if config.adapter and is_file:
        raise UserError(f"adapter: is a folder for PEFT; name one, not {out}")
    training = run.load_config()
    tokenizer = run.open_tokenizer(training)
    program = Program(resolve_run(training), tokenizer.vocab_size, Placement(mesh_for(training)))
    shapes = program.abstract_state.params
    newest = (0,) if training.imported else None
    chosen = newest if config.step is None else (config.step,)
    warn = functools.partial(print_warning, console)
    (step,), checkpoints = chosen_checkpoints(run, chosen, shapes, warn)
    sources = run_sources(run, training)
    original = original_files(sources)
    at, runtime = training.stage_at(step), "llama.cpp" if is_file else "transformers"
    scaling, lost, fitted = _positions(training, config, at, runtime)
    trained = [stage.length for stage in training.stages[: at + 1]]
    trained += [stage.length for _, source in sources[1:] for stage in source.stages]
    declared = original.get(CONFIG, {}).get("max_position_embeddings") or 0
    length = max(fitted, declared, *trained)
    given = sources, step, training, tokenizer, program, lambda: next(checkpoints)[1]
    export = _Export(*given, scaling, length, original)
    kind, write = (_file if is_file else _folder)(export, config, out, warn)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    shown = {"checkpoint": f"{run.path}, step {step}, {in_gib(size)} GiB", "as": kind}
    shown["file" if is_file else "folder"] = str(out)
    print_overview(console, f"export {training.name}", shown)
    for what in lost:
        warn(f"{out}: written without {what}: {runtime} has no form for it")
    with file_errors(out, "written"):
        if is_file:
            out.parent.mkdir(parents=True, exist_ok=True)
        with (replacing if is_file else replacing_folder)(out) as new:
            write(new)
    print_message(console, f"exported: {out}")


def run_sources(run: RunDirectory, training: TrainingConfig) -> Sources:
    """Return a run, and the runs that its weights come from, as far as they are here."""
    sources = [(run, training)]
    while (origin := sources[-1][1].init_from) is not None:
        source = RunDirectory(Path(origin.run))
        if not source.config_file.is_file():
            break
        sources.append((source, source.load_config()))
    return sources


def _folder(
    export: _Export, config: ExportConfig, out: Path, warn: Callable[[str], None]
) -> Writer:
    """Return a writer for transformers."""
    training, length, original = export.training, export.length, export.original
    model_type = config.family or original.get(CONFIG, {}).get("model_type")
    family, keys = describe(training, export.scaling, length, export.program.vocab_size, model_type)
    longest = keys["max_position_embeddings"]
    if longest < length:
        warn(
            f"{out}: max_position_embeddings is {longest:,}, from which dynamic scaling grows, "
            f"although the model reads {length:,} tokens"
        )

    rope = f"rope_parameters {json.dumps(keys['rope_parameters'])[:300]}"
    if config.adapter:
        base, write_own = _adapter(export, family)
        return f"adapter of {base}, a {family.architecture} that needs {rope}", write_own

    def write(new: Path) -> None:
        write_weights(new, family.rows(training.model), training.model.stacks, export.read())
        _write_texts(new, keys, training, export.tokenizer, length, original)

    return f"{family.architecture}, {rope}", write


def _adapter(export: _Export, family: Family) -> Writer:
    """Return the base model, and a writer of what a run with LoRA changes of it."""
    training, run, model = export.training, export.sources[0][0], export.training.model
    if training.optim.lora is None or training.init_from is None:
        raise UserError(f"adapter: {run.path} changed no other weights (init_from) by optim.lora")
    keys: dict[str, Any] = {"r": training.optim.lora.rank, "lora_alpha": training.optim.lora.alpha}
    imported, base = export.sources[-1][1].imported, f"the export of {training.init_from.run}"
    if imported and len(export.sources) == 2 and not is_gguf(imported.model):
        base = imported.model
        keys |= {"base_model_name_or_path": base, "revision": imported.revision}

    def write(new: Path) -> None:
        state = export.program.abstract_state
        with contextlib.closing(Checkpoints(run.checkpoints, abstract=state)) as checkpoints:
            state = checkpoints.restore(export.step, state)
        trained = flatten_dict(jax.device_get(export.program.trained(state)), sep="/")
        shapes, head = shapes_of(state.params), "lm_head/kernel"
        if model.tie_word_embeddings and "embed_tokens/embedding" in trained:  # PEFT unties them
            trained[head] = trained["embed_tokens/embedding"].T
            shapes[head] = trained[head].shape
        tensors = tensors_of(family.rows(model), shapes, model.stacks)
        write_adapter(new, tensors, trained, keys)

    return base, write


def _file(export: _Export, config: ExportConfig, out: Path, warn: Callable[[str], None]) -> Writer:
    """Return a writer for llama.cpp."""
    training, scaling, length = export.training, export.scaling, export.length
    with needs_extra("gguf", f"{out}: GGUF"):
        from rope_jax.checkpoints.gguf.tokenizer import tokenizer_metadata
        from rope_jax.checkpoints.gguf.writing import copied, model_of
    if training.imported and config.outtype is None and is_gguf(training.imported.model):
        contents = copied(Path(training.imported.model).expanduser(), training, scaling, length)
        return contents.about, contents.write
    params, size = export.program.abstract_state.params, export.program.vocab_size
    model = model_of(training, scaling, length, size, params, config.family)
    outtype = config.outtype or _OUTTYPES[training.model.param_dtype]
    ids, bos = _special_ids(training, export.tokenizer, export.original), export.tokenizer.bos_ids
    if len(bos) > 1:
        raise UserError(f"tokenizer.bos: llama.cpp puts one token before a text, not {len(bos)}")
    ids |= {"bos_token_id": bos[0]} if bos else {}
    template = export.original.get(TOKENIZER_CONFIG, {}).get("chat_template")
    template = export.original.get(TEMPLATE, template)
    content = export.tokenizer.json()
    tokens = tokenizer_metadata(content, size, ids, bool(bos), template, str(out))
    contents = model.written(export.read, outtype, tokens)
    return contents.about, contents.write


def _positions(
    training: TrainingConfig, config: ExportConfig, stage: int, runtime: str
) -> tuple[Scaling, list[str], int]:
    """Return the scaling as a runtime may express it, what it cannot, and the length it is for.

    The length is 0 where no strategy says one. UserError: something is lost, and not `lossy`.
    """
    scaling, map_, fitted = training.stage_scaling(stage), training.stage_map(stage), 0
    if config.strategy is not None:
        try:
            strategy = read_strategy(config.strategy)
        except ValueError as error:
            raise UserError(f"strategy: {error}") from None
        scaling, map_ = strategy.scaling, strategy.map
        window = getattr(scaling, "window", training.geometry.train_length)  # of one over trained
        extended = window * (scaling.extension_factor or 0)
        fitted = max(strategy.made_by.get("length", [round(extended)]))
    lost = [] if map_ is None else [f"the position map {map_.type}"]
    query_scale = scaling.query_scale
    kept = ["ministral", *["constant"] * (training.model.self_attention.type == "latent")]
    if query_scale is not None and query_scale.type not in kept:
        lost.append(f"the query scale {query_scale.type}")
        scaling = scaling.model_copy(update={"query_scale": None})
    if lost and not config.lossy:
        raise UserError(
            f"lossy: {runtime} has no form for {' and '.join(lost)}, without which the model "
            "reads long texts differently; give lossy=true to write it all the same, or a strategy "
            f"that {runtime} can express"
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
    bos, ids = training.tokenizer.start, _special_ids(training, tokenizer, original)
    dtype = training.model.param_dtype
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {"bos_token": bos} if isinstance(bos, str) else {}
    settings = original.get(TOKENIZER_CONFIG, settings) | {"model_max_length": length}
    settings.pop("auto_map", None)  # code that is not exported
    contents: dict[str, Any] = {GENERATION: {"bos_token_id": ids["bos_token_id"]}} | original
    contents[CONFIG] = keys | ids | {"dtype": dtype, "torch_dtype": dtype}
    contents |= {TOKENIZER_CONFIG: settings, TOKENIZER: tokenizer.json()}
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _special_ids(
    training: TrainingConfig, tokenizer: Tokenizer, original: dict[str, Any]
) -> dict[str, Any]:
    """Return the ids of special tokens, as in config.json."""
    # transformers has no name for several
    bos_id = tokenizer.bos_ids[0] if isinstance(training.tokenizer.start, str) else None
    ids = {"bos_token_id": bos_id, "eos_token_id": None, "pad_token_id": None}
    return ids | {key: value for key, value in original.get(CONFIG, {}).items() if key in ids}


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
