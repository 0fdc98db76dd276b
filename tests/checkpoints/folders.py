"""Folders of Hugging Face checkpoints for tests: golden models with a tokenizer of bytes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from rope_jax.checkpoints.importing import import_checkpoint
from rope_jax.checkpoints.open import open_checkpoint
from rope_jax.checkpoints.opening import same_bits
from rope_jax.checkpoints.reading import Description, read_description
from rope_jax.checkpoints.weights import load_parameters
from rope_jax.config.checkpoints import ImportConfig
from rope_jax.config.load import validate
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import params_at
from tests.checkpoints.cases import FAMILIES, Case, golden_weight, read_cases

QUIET = plain_console(quiet=True)
# Two that differ in nearly everything; the others are compiled by `make test-all` alone.
EACH_FAMILY = [
    pytest.param(f, marks=() if f in ("gemma2", "gpt_neox") else pytest.mark.slow) for f in FAMILIES
]
# Tensors with one row for each token; in a golden model, others have as many rows.
_VOCABULARY_SIZED = {
    *("model.embed_tokens.weight", "lm_head.weight"),
    *("gpt_neox.embed_in.weight", "embed_out.weight", "transformer.word_embeddings.weight"),
    "lm_head.bias",
}


def golden_case(family: str, name: str = "default") -> Case:
    """Return one golden model."""
    return next(case for case in read_cases(family) if case.name == name)


def write_case(folder: Path, case: Case) -> Path:
    """Write a golden model as a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(case.config)
    save_file(case.weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def byte_checkpoint(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """Write a tiny checkpoint that reads bytes: a golden model with a larger vocabulary.

    changes: keys of its config.json.
    """
    case = golden_case(family)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(case.config) | {"vocab_size": 264} | changes
    (folder / "config.json").write_text(json.dumps(config))
    weights = {
        name: golden_weight(name, (264, *shape[1:]) if name in _VOCABULARY_SIZED else shape)
        for name, shape in case.tensors.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(ByteTokenizer().json(), encoding="utf-8")
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, change: Callable[[str, NDArray[Any]], Any] | None = None,
                 **added: Any) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Change each tensor to a (name, tensor), add others, named with __ for points; return all."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): t for name, t in added.items()}
    if change is not None:
        tensors = dict(change(*item) for item in tensors.items())
    save_file(tensors := {name: t for name, t in tensors.items() if t is not None}, path)
    return tensors


def imported(folder: Path | str, console: Any = QUIET, **settings: Any) -> RunDirectory:
    """Import a checkpoint to runs/ beside its folder."""
    raw = {"runs_dir": str(Path(folder).parent / "runs")} | settings
    return import_checkpoint(str(folder), validate(ImportConfig, raw, "test"), console)


def params_of(run: RunDirectory, step: int = 0) -> Params:
    """Return the parameters in one of a run's checkpoints."""
    config = run.load_config()
    model = language_model(resolve_run(config), run.open_tokenizer(config).vocab_size)
    abstract_params = (
        Placement(config.mesh).splitting(model.shardings).shard_state(model.abstract_params())
    )
    return params_at(run.checkpoints, step, abstract_params)


def assert_same(found: Any, expected: Any) -> None:
    """Two trees of arrays, with the same paths, are equal bit for bit."""
    a, b = flatten_dict(found, sep="/"), flatten_dict(expected, sep="/")
    assert a.keys() == b.keys()
    assert all(same_bits(np.asarray(a[path]), np.asarray(b[path])) for path in a)


def config_of(description: Description) -> TrainingConfig:
    """Return the training config of a run with the model that was described."""
    raw = {
        "name": "imported",
        "model": description.model,
        "rope": description.rope,
        "optim": {"warmup_steps": 0},
        "stages": [{"steps": 1, "seq_len": description.window, "batch_size": 1}],
    }
    return validate(TrainingConfig, raw, "config.json")


def windows_of(config: TrainingConfig) -> list[tuple[int | None, int | None]]:
    """Return the sliding window and the chunk of every layer."""
    layers = [
        config.pattern[i % len(config.pattern)] for i in range(config.model.num_hidden_layers)
    ]
    return [(own.sliding_window, own.attention_chunk) for own in layers]


def loaded(folder: Path, param_dtype: str = "float32") -> tuple[TrainingConfig, Params]:
    """Return the config and the parameters of a checkpoint."""
    files = open_checkpoint(str(folder), None)
    description = read_description(files.config, str(files.config_file))
    description.model["param_dtype"] = param_dtype
    config = config_of(description)
    model = language_model(resolve_run(config), description.model["vocab_size"])
    abstract_params = (
        Placement(config.mesh).splitting(model.shardings).shard_state(model.abstract_params())
    )
    return config, load_parameters(
        files, description.family.rows(config.model), config.model.stacks, abstract_params
    )


def logits_function(config: TrainingConfig) -> Any:
    """Return a function (params, tokens [1, T], rotary) -> logits [T, V]."""
    model = language_model(resolve_run(config), config.model.vocab_size or 0)
    cap = config.model.logit_softcap

    @jax.jit
    def logits(params: Any, tokens: Any, rotary: Any) -> Any:
        positions = jnp.arange(tokens.shape[1])[None]
        hidden, _ = model.hidden_states(params, tokens, positions, None, rotary)
        tied = config.model.tie_word_embeddings
        kernel = params["embed_tokens"]["embedding"].T if tied else params["lm_head"]["kernel"]
        out = hidden @ kernel + params.get("lm_head", {}).get("bias", jnp.zeros(1))[None]
        return out if cap is None else cap * jnp.tanh(out / cap)

    return logits


def logit_differences(family: str, folder: Path) -> Iterator[tuple[str, int, float]]:
    """Yield the largest difference from the golden logits of each model of a family and each text.

    Texts are padded, so that models that differ in frequencies alone share a program.
    """
    made: dict[str, Any] = {}
    for case in read_cases(family):
        config = config_of(read_description(json.loads(case.config), "config.json"))
        key = f"{config.model.model_dump_json()} {windows_of(config)} {case.tensors}"
        if key not in made:
            params = loaded(write_case(folder / case.name, case))[1]
            made[key] = logits_function(config), params
        logits, params = made[key]
        longest = max(len(text.tokens) for text in case.texts)
        for text in case.texts:
            length = len(text.tokens)
            tokens = np.pad(text.tokens, (0, longest - length))[None]
            positions = np.arange(longest)[None]
            rotary = config.rotary_layers.rotary(config.rope.scaling, positions, length)
            found = np.asarray(logits(params, tokens, rotary))[text.places]
            yield case.name, length, float(np.abs(found - text.logits).max())


def described(family: str = "llama", ignored: tuple[str, ...] = (), **changes: Any) -> Description:
    """Return what a golden config.json describes after changes; ... removes a key."""
    content = json.loads(golden_case(family).config) | changes
    given = {key: value for key, value in content.items() if value is not ...}
    return read_description(given, "config.json", ignored)


def says(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Return the one line with which a call is refused."""
    with pytest.raises(UserError) as caught:
        function(*arguments, **named)
    message = str(caught.value)
    assert "\n" not in message
    return message
