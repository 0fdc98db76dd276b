"""Folders of Hugging Face checkpoints for tests: golden models with a tokenizer of bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rope_jax.checkpoints.files import CheckpointFiles
from rope_jax.checkpoints.reading import Description, read_description
from rope_jax.checkpoints.weights import load_parameters
from rope_jax.config.explain import validate
from rope_jax.config.training import Config
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params, language_model
from rope_jax.model.resolve import resolve_run
from tests.checkpoints.cases import FAMILIES, Case, read_cases
from tests.checkpoints.weights import golden_weight

# Two that differ in nearly everything; the others are compiled by `make test-all` alone.
EACH_FAMILY = [
    pytest.param(f, marks=() if f in ("gemma2", "gpt_neox") else pytest.mark.slow) for f in FAMILIES
]
# Tensors with one row for each token; in a golden model, others have as many rows.
_VOCABULARY_SIZED = {
    *("model.embed_tokens.weight", "lm_head.weight"),
    *("gpt_neox.embed_in.weight", "embed_out.weight"),
}


def write_case(folder: Path, case: Case, config: str | None = None) -> Path:
    """Write a golden model as a checkpoint. config: another config.json of the same model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config or case.config)
    save_file(case.weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def golden_case(family: str, name: str) -> Case:
    """Return one golden model."""
    return next(case for case in read_cases(family) if case.name == name)


def byte_checkpoint(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """Write a tiny checkpoint that reads bytes: a golden model with a larger vocabulary.

    changes: keys of its config.json.
    """
    case = golden_case(family, "default")
    content = json.loads(case.config)
    shapes = {
        name: (264, *shape[1:]) if name in _VOCABULARY_SIZED else shape
        for name, shape in case.tensors.items()
    }
    content |= {"vocab_size": 264} | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    weights = {name: golden_weight(name, shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(ByteTokenizer().json(), encoding="utf-8")
    return folder


def config_of(description: Description) -> Config:
    """Return the training config of a run with the model that was described."""
    raw = {
        "name": "imported",
        "model": description.model,
        "rope": description.rope,
        "optim": {"warmup_steps": 0},
        "stages": [{"steps": 1, "seq_len": description.window, "batch_size": 1}],
    }
    return validate(Config, raw, "config.json")


def loaded(folder: Path, param_dtype: str = "float32") -> tuple[Config, Params]:
    """Return the config and the parameters of a checkpoint."""
    files = CheckpointFiles(folder)
    description = read_description(files.config, str(folder / "config.json"))
    description.model["param_dtype"] = param_dtype
    config = config_of(description)
    model = language_model(resolve_run(config), description.model["vocab_size"])
    like = Placement(config.mesh).shard_state(jax.eval_shape(lambda: model.init(0)))
    return config, load_parameters(files, description.family.rows(config.model), like)


def described(family: str = "llama", ignored: tuple[str, ...] = (), **changes: Any) -> Description:
    """Return what a golden config.json describes after changes; ... removes a key."""
    content = json.loads(golden_case(family, "default").config) | changes
    given = {key: value for key, value in content.items() if value is not ...}
    return read_description(given, "config.json", ignored)


def says(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Return the one line with which a call is refused."""
    with pytest.raises(UserError) as caught:
        function(*arguments, **named)
    message = str(caught.value)
    assert "\n" not in message
    return message


_COMPILED: dict[Any, Any] = {}


def logits_of(config: Config, params: Params, tokens: NDArray[Any]) -> NDArray[Any]:
    """Return the logits [T, V] of one text. Models that differ in frequencies share a program."""
    positions = jnp.arange(len(tokens))[None]
    rotary = config.rotary_layers.rotary(config.rope.scaling, positions, len(tokens))
    shapes = jax.tree.map(jnp.shape, rotary)
    key = config.model.model_dump_json(), config.sliding_windows, len(tokens), str(shapes)
    if key not in _COMPILED:
        model = language_model(resolve_run(config), config.model.vocab_size or 0)
        cap = config.model.logit_softcap

        def logits(params: Params, tokens: Any, rotary: Any) -> Any:
            given = tokens[None], jnp.asarray(positions), None, rotary
            hidden, _ = model.hidden_states(params, *given)
            kernel = (
                params["embed_tokens"]["embedding"].T
                if config.model.tie_word_embeddings
                else params["lm_head"]["kernel"]
            )
            out = hidden @ kernel
            return out if cap is None else cap * jnp.tanh(out / cap)

        _COMPILED[key] = jax.jit(logits)
    return np.asarray(_COMPILED[key](params, jnp.asarray(tokens), rotary))
