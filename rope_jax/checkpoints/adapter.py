"""A LoRA adapter, merged into the weights of its base model while these are read.

    W' = W + s·B·A,    s = lora_alpha/r, or lora_alpha/√r with use_rslora

Source: Hu et al., arXiv 2106.09685; the files are those of the library PEFT.

Shapes: A [r, inputs], B [outputs, r], W [outputs, inputs].
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.checkpoints.opening import opened, read_json, without_prefix
from rope_jax.errors import UserError
from rope_jax.rope.messages import show_value

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

# Values that plain LoRA has; what else there is cannot be merged by one product for each matrix, or
# changes the base model's weights. Keys that are absent here have to be off, whatever they are.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_rslora": (True, False, None),
    "init_lora_weights": (True, False, None, "gaussian"),
}
_READ_OR_IGNORED = {
    *("base_model_name_or_path", "revision", "lora_alpha", "r", "rank_pattern", "lora_dropout"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "task_type"),
    *("auto_mapping", "inference_mode", "megatron_config", "megatron_core", "parent_library"),
    *("peft_version", "qalora_group_size"),
}
_ADVICE = (
    "only plain LoRA can be merged here; merge the adapter with PEFT (merge_and_unload), and save "
    "the model"
)

Factors = dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
"""A and B by the name of the weight that they change."""


class Adapter(NamedTuple):
    """A folder with adapter_config.json and adapter_model.safetensors.

    base:    the model that it changes: a folder, or an id on the hub with a `revision`.
    by_root: whether alpha is divided by √r instead of r.
    """

    folder: Path
    base: str
    revision: str | None
    alpha: float
    by_root: bool
    factors: Factors

    def merged(self, name: str, weight: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor of the base model with what the adapter adds to it, in float32."""
        if name not in self.factors:
            return weight
        a, b = self.factors[name]
        rank = a.shape[0]
        if a.ndim != 2 or b.shape != (weight.shape[0], rank) or a.shape[1:] != weight.shape[1:]:
            raise UserError(
                f"{self.folder / WEIGHTS}: lora_A {list(a.shape)} and lora_B {list(b.shape)} do "
                f"not fit {name} {list(weight.shape)} of {self.base}"
            )
        scale = self.alpha / (math.sqrt(rank) if self.by_root else rank)
        return weight.astype(np.float32) + np.float32(scale) * (b @ a)


def read_adapter(folder: Path) -> Adapter | None:
    """Return the adapter in a folder, if it holds one.

    UserError: it is not plain LoRA, or the folder holds a model as well.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    if models := sorted(folder.glob("model*.safetensors")):
        raise UserError(
            f"{folder}: holds an adapter ({CONFIG}) and a model ({models[0].name}); move one of "
            "them to another folder"
        )
    config = read_json(path)
    for key, value in config.items():
        plain = _PLAIN.get(key, (None, False, [], {}, ""))
        # by type as well: 1 is no flag
        if key not in _READ_OR_IGNORED and not any(
            value == x and type(value) is type(x) for x in plain
        ):
            raise UserError(f"{path}: {key}: is {show_value(value)}, and {_ADVICE}")
    base, alpha = config.get("base_model_name_or_path"), config.get("lora_alpha")
    if not isinstance(base, str) or not base:
        raise UserError(
            f"{path}: base_model_name_or_path: should name the base model, not {show_value(base)}"
        )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise UserError(f"{path}: lora_alpha: should be a number, not {show_value(alpha)}")
    by_root, factors = bool(config.get("use_rslora")), _factors(folder / WEIGHTS)
    return Adapter(folder, base, config.get("revision"), float(alpha), by_root, factors)


def _factors(path: Path) -> Factors:
    if not path.is_file():
        raise UserError(f"{path}: no such file; save the adapter as safetensors")
    parts: dict[str, dict[str, NDArray[np.float32]]] = {}
    with opened(path) as file:
        for name in file.keys():  # noqa: SIM118  not a mapping
            module, _, kind = name.removeprefix("base_model.model.").rpartition(".lora_")
            module = without_prefix(module)
            if kind not in ("A.weight", "B.weight"):
                raise UserError(f"{path}: {name}: is neither lora_A nor lora_B, and {_ADVICE}")
            factor = np.asarray(file.get_tensor(name)).astype(np.float32)
            parts.setdefault(f"{module}.weight", {})[kind[0]] = factor
    for name, factors in parts.items():
        if len(factors) < 2:
            raise UserError(f"{path}: {name} has only one of lora_A and lora_B")
    return {name: (factors["A"], factors["B"]) for name, factors in parts.items()}
