"""Import a Hugging Face checkpoint as an ordinary run directory."""

import contextlib
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from rope_jax.checkpoints.files import GGUF, TOKENIZER, CheckpointFiles
from rope_jax.checkpoints.open import open_checkpoint
from rope_jax.checkpoints.reading import Description, read_description
from rope_jax.checkpoints.weights import load_parameters
from rope_jax.config.checkpoints import ImportConfig
from rope_jax.config.load import dump, validate
from rope_jax.config.resolve import resolve_run
from rope_jax.config.schema import different_keys
from rope_jax.config.tokenizer import Start
from rope_jax.config.training import TrainingConfig
from rope_jax.console import print_message, print_overview, print_warning
from rope_jax.data.tokenizers import JsonTokenizer, added_start, describe_tokenizer
from rope_jax.devices.memory import check_fits, device_bytes, in_gib
from rope_jax.devices.mesh import Placement
from rope_jax.devices.window_memory import bytes_per_device
from rope_jax.errors import UserError, file_errors, shortage_as
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import locked, replacing_folder, write_text
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.program import Program
from rope_jax.training.provenance import provenance_of
from rope_jax.training.step import TrainState


def import_checkpoint(model: str, config: ImportConfig, console: Console) -> RunDirectory:
    """Import a checkpoint, a local folder or an id on the hub, and return its run directory.

    The run's only checkpoint is that of step 0. The same call does nothing for one that is already
    imported. Raises UserError; no run is left then.
    """
    files = open_checkpoint(model, config.revision, config.base)
    description = read_description(files.config, str(files.config_file), config.ignored_keys)
    path = Path(model).expanduser()
    name = config.name or (path.resolve() if path.exists() else path).name.removesuffix(GGUF)
    run = RunDirectory(Path(config.runs_dir) / name)
    training, tokenizer = _training_config(model, run, config, files, description)
    for warning in files.warnings:
        print_warning(console, warning)
    busy = f"{run.path}: another process is importing into it; wait for it, or choose another name"
    lock = run.path.with_name(f".{run.path.name}.import.lock")
    with file_errors(run.path, "written"), locked(lock, busy):
        if _is_imported(run, training):
            print_message(console, f"{run.path}: already imported")
            return run
        with shortage_as("param_dtype: there is not enough memory for the weights"):
            _import(run, training, files, description, tokenizer, console)
    return run


def _training_config(
    model: str,
    run: RunDirectory,
    config: ImportConfig,
    files: CheckpointFiles,
    description: Description,
) -> tuple[TrainingConfig, JsonTokenizer]:
    file, content = files.tokenizer, files.read_tokenizer()
    bos = _published_start(files, content) if config.bos == "auto" else config.bos
    known = description.model["vocab_size"]
    tokenizer = JsonTokenizer(content, bos, str(file), known)
    if tokenizer.vocab_size > known:
        raise UserError(
            f"{file}: has {tokenizer.vocab_size:,} tokens, but config.json says that "
            f"the model knows {known:,}; use the tokenizer that belongs to it"
        )
    # vectors may be more precise: norms, the bias of a router
    stored = {info.dtype for info in files.tensors.values() if len(info.shape) > 1}
    param_dtype = config.param_dtype or ("bfloat16" if stored == {"bfloat16"} else "float32")
    raw: dict[str, Any] = {
        "name": run.path.name,
        "runs_dir": config.runs_dir,
        "imported": {"model": model, "revision": config.revision, "identity": files.identity()},
        "model": {
            **description.model,
            "param_dtype": param_dtype,
            "dtype": config.dtype or param_dtype,
            "attention": config.attention,
            "layers": config.layers,
        },
        "rope": description.rope,
        "tokenizer": {"type": "file", "path": str(run.path / TOKENIZER), "bos": bos},
        "data": config.data.model_dump(mode="json"),
        "optim": {"warmup_steps": 0},
        # It says what the checkpoint was last trained at, and is never run.
        "stages": [{"steps": 1, "seq_len": config.window or description.window, "batch_size": 1}],
        "mesh": config.mesh.model_dump(),
    }
    return validate(TrainingConfig, raw, str(files.config_file)), tokenizer


def _published_start(files: CheckpointFiles, content: str) -> Start:
    """Return what the publisher's tokenizer puts before a text. content: of its tokenizer.json.

    DeepSeek's has no post-processor that does, but `add_bos_token`, which transformers 4 follows.
    """
    settings = files.tokenizer_settings() if files.tokenizer.name == TOKENIZER else {}
    token = settings.get("bos_token") if settings.get("add_bos_token") else None
    token = token.get("content") if isinstance(token, dict) else token
    return added_start(content, str(files.tokenizer)) or token


def _is_imported(run: RunDirectory, training: TrainingConfig) -> bool:
    """Whether the run already holds this import. UserError if it holds something else."""
    if not run.path.exists():
        return False
    if not run.config_file.is_file():
        raise UserError(f"{run.path}: exists, and is not a run; give another name with name=")
    there = run.load_config()
    # The same folder has several spellings; `identity` is made of absolute paths. What `auto` is
    # does not matter, and older imports have blockwise in its place.
    same = {"imported.model", *(["model.attention"] if training.model.attention == "auto" else [])}
    different = [key for key in different_keys(training, there) if key not in same]
    if not different:
        return True
    what = "a run that was trained here" if there.imported is None else "another import"
    raise UserError(
        f"{run.path}: holds {what} ({', '.join(different)}); give this one another name with name="
    )


def _import(
    run: RunDirectory,
    training: TrainingConfig,
    files: CheckpointFiles,
    description: Description,
    tokenizer: JsonTokenizer,
    console: Console,
) -> None:
    program = Program(resolve_run(training), tokenizer.vocab_size, Placement(training.mesh))
    abstract_params = program.abstract_state.params
    leaves = jax.tree.leaves(abstract_params)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    check_fits(
        "mesh.fsdp: the weights take",
        *(bytes_per_device(abstract_params), device_bytes()),
        "split them over more devices, or give param_dtype=bfloat16",
    )
    start = describe_tokenizer(training.tokenizer, tokenizer)
    if tokenizer.bos_ids and not tokenizer.adds_start:
        start += ", which the tokenizer's own post-processor does not add"
    unread = {"ignored keys": ", ".join(description.unread)} if description.unread else {}
    print_overview(
        console,
        f"import {training.name}",
        {
            "checkpoint": f"{files.folder}, {description.family.architecture}",
            **unread,
            "weights": f"{sum(leaf.size for leaf in leaves):,} numbers, {in_gib(size)} GiB in "
            f"{'; '.join([training.model.param_dtype, *files.remarks])}",
            "positions": f"base {training.rope.base:g}, scaling {training.rope.scaling.type}, "
            f"L {training.geometry.train_length:,}, window {training.stages[0].seq_len:,} tokens",
            "tokenizer": start,
            "run": str(run.path),
        },
    )
    with console.status("reading the weights"):
        params = load_parameters(
            files, description.family.rows(training.model), training.model.stacks, abstract_params
        )
    with console.status("writing the run"), replacing_folder(run.path) as folder:
        new = RunDirectory(folder)
        write_text(new.config_file, dump(training))
        write_text(new.tokenizer_file, tokenizer.json())
        new.huggingface.mkdir()
        for name, content in files.accompanying().items():
            (new.huggingface / name).write_bytes(content)
        new.write_environment(tokenizer.name, None)
        provenance = provenance_of(training, None)
        with contextlib.closing(Checkpoints(new.checkpoints, 1, provenance, params)) as checkpoints:
            checkpoints.save(0, TrainState(params, None))
            checkpoints.wait()
