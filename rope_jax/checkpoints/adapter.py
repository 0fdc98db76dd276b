"""A LoRA adapter, written, or merged into the weights of its base model while these are read.

    W' = W + s·B·A,    s = lora_alpha/r, or lora_alpha/√r with use_rslora

r is the rank of a module's own factors, and alpha_pattern may give modules an alpha of their own.
Weights in modules_to_save are replaced.

Source: Hu et al., arXiv 2106.09685; the files are those of the library PEFT.

Shapes: A [r, inputs], B [outputs, r], W [outputs, inputs].
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.checkpoints.keys import ADAPTER
from rope_jax.checkpoints.opening import opened, read_json, save_tensors, without_prefix
from rope_jax.checkpoints.tensors import Tensor
from rope_jax.config.messages import show_value
from rope_jax.errors import UserError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_ADVICE = (
    "only plain LoRA can be merged here; merge the adapter with PEFT (merge_and_unload), and save "
    "the model"
)

# PEFT leaves out the adapter's name; with an adapter of the output matrix it saves that, too.
_PREFIX = "base_model.model."
_NAME = re.compile(
    r"(?:base_model\.model\.)?(.+)\.(lora_A|lora_B|base_layer)(?:\.default)?\.weight"
)


class Change(NamedTuple):
    """What the adapter has in place of W, if anything; A, B and s, if it is a matrix with them."""

    base: NDArray[np.float32] | None
    factors: tuple[NDArray[np.float32], NDArray[np.float32], float] | None = None


class Adapter(NamedTuple):
    """A folder with adapter_config.json and adapter_model.safetensors.

    base:    the model that it changes: a folder, or an id on the hub with a `revision`.
    changes: what changes, by the name of the weight.
    """

    folder: Path
    base: str
    revision: str | None
    changes: Mapping[str, Change]

    def merged(self, name: str, weight: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor of the base model with what the adapter adds to it, in float32."""
        if name not in self.changes:
            return weight
        given, factors = self.changes[name]
        changed = weight.astype(np.float32) if given is None else given
        try:
            if factors is not None:
                a, b, scale = factors
                changed = changed + np.float32(scale) * (b @ a)
            if changed.shape != weight.shape:
                raise ValueError
        except ValueError:
            raise UserError(
                f"{self.folder / WEIGHTS}: what it has for {name} does not fit its shape "
                f"{list(weight.shape)} in {self.base}"
            ) from None
        return changed


def read_adapter(folder: Path, base: str | None = None) -> Adapter | None:
    """Return the adapter in a folder, if it holds one.

    base: in place of the one that its config names.

    UserError: it is not plain LoRA.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    config = read_json(path)
    for key, value in config.items():
        is_plain = not value or value in ADAPTER["plain"].get(key, ())
        if key not in ADAPTER["read_or_ignored"] and not is_plain:
            raise UserError(f"{path}: {key}: is {show_value(value)}, and {_ADVICE}")
    changes = _changes(folder / WEIGHTS, config)
    if base is not None:
        return Adapter(folder, base, None, changes)
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(
            f"{path}: base_model_name_or_path: should name the base model, not {show_value(base)}"
        )
    return Adapter(folder, base, config.get("revision"), changes)


def _changes(path: Path, config: Mapping[str, Any]) -> dict[str, Change]:
    """Return what an adapter changes, by the name of the weight."""
    # as PEFT matches them: the end of a module's name; the first match counts
    given = config.get("alpha_pattern") or {}
    patterns = {re.compile(rf"(.*\.)?({key})$"): alpha for key, alpha in given.items()}
    if not path.is_file():
        raise UserError(f"{path}: no such file; save the adapter as safetensors")
    parts: dict[str, dict[str, NDArray[np.float32]]] = {}
    changes: dict[str, Change] = {}
    with opened(path) as file:
        for name in file.keys():  # noqa: SIM118  not a mapping
            match = _NAME.fullmatch(name)
            tensor = np.asarray(file.get_tensor(name)).astype(np.float32)
            if match is not None:
                parts.setdefault(match[1], {})[match[2]] = tensor
            elif name.rpartition(".")[0].endswith(tuple(config.get("modules_to_save") or ())):
                changes[without_prefix(name.removeprefix(_PREFIX))] = Change(tensor)
            else:
                raise UserError(f"{path}: {name}: is neither lora_A nor lora_B, and {_ADVICE}")
    for module, factors in parts.items():
        name = f"{without_prefix(module)}.weight"
        if not factors.keys() >= {"lora_A", "lora_B"}:
            raise UserError(f"{path}: {name} has only one of lora_A and lora_B")
        alphas = (alpha for pattern, alpha in patterns.items() if pattern.match(module))
        rank = len(factors["lora_A"])
        divisor = math.sqrt(rank) if config.get("use_rslora") else rank
        scale = next(alphas, config["lora_alpha"]) / divisor
        matrices = factors["lora_A"], factors["lora_B"]
        changes[name] = Change(factors.get("base_layer"), (*matrices, scale))
    return changes


def write_adapter(
    folder: Path,
    tensors: Mapping[str, Tensor],
    trained: Mapping[str, NDArray[np.float32]],
    config: Mapping[str, Any],
) -> None:
    """Write what changes of a base model with these tensors, as PEFT does.

    trained: by path; A and B below those of their kernels. config: keys of adapter_config.json.
    UserError: a tensor is more than one parameter, of which some are trained.
    """
    written: dict[str, NDArray[np.float32]] = {}
    targets, saved = set[str](), set[str]()
    for name, tensor in tensors.items():
        own = {path: x[tensor.at] for path, x in trained.items() if path.startswith(tensor.paths)}
        module, leaf = name.rsplit(".", 1)
        if own.keys() == {*tensor.paths}:
            written[_PREFIX + name] = tensor.join([own[path] for path in tensor.paths])
            saved.add(module.rpartition(".")[2])
        elif own and (len(tensor.paths) > 1 or leaf != "weight"):
            raise UserError(f"adapter: {name} is several matrices here; export the merged model")
        for path in own.keys() - {*tensor.paths}:
            written[f"{_PREFIX}{module}.{path.rpartition('/')[2]}.weight"] = own[path]
            targets.add(module.rpartition(".")[2])
    save_tensors(folder / WEIGHTS, written)
    keys = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", **config}
    keys |= {"target_modules": sorted(targets), "modules_to_save": sorted(saved) or None}
    (folder / CONFIG).write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")
