"""Golden files of tiny models by family: what transformers computes from a config and weights.

`scripts/golden_checkpoints.py --write` writes them; the tests only need numpy to read them. Weights
are made from their names, so that the files need not store them.
"""

import json
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "golden"
FAMILIES = tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))
"""Values of `model_type`: each has a golden file of this name."""


@dataclass(frozen=True)
class Text:
    """One text of T tokens and what a model makes of it; V is the size of the vocabulary."""

    tokens: NDArray[np.int32]
    """[T]"""
    places: NDArray[np.int32]
    """[P] The indices of the tokens whose logits are stored, ascending."""
    logits: NDArray[np.float32]
    """[P, V]"""


@dataclass(frozen=True)
class Case:
    """One tiny model."""

    name: str
    """What is special about it: mostly its rope type."""
    config: str
    """config.json as `save_pretrained` of transformers 5 writes it."""
    old_config: str
    """The same model's config.json in the form of transformers 4; gives the same logits."""
    tensors: dict[str, tuple[int, ...]]
    """Names and shapes as `save_pretrained` writes them; tied ones occur once."""
    texts: tuple[Text, ...]

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights of all tensors."""
        kind = json.loads(self.config)["model_type"]
        plus_one = kind.startswith(("gemma", "nemotron", "vaultgemma", "qwen3_5", "qwen3_next"))
        plus_one &= kind != "gemma4_text"
        return {
            name: golden_weight(name, shape, norm_mean=float(not plus_one or "linear_attn" in name))
            for name, shape in self.tensors.items()
        }


def read_cases(family: str) -> list[Case]:
    """Return the cases of a family."""
    with np.load(FOLDER / f"{family}.npz", allow_pickle=False) as stored:
        return [
            Case(
                name=case["name"],
                config=case["config"],
                old_config=case["old_config"],
                tensors={name: tuple(shape) for name, shape in case["tensors"].items()},
                texts=tuple(
                    Text(*(stored[f"{length}/{x}"] for x in ("tokens", "places", case["name"])))
                    for length, *_ in case["texts"]
                ),
            )
            for case in json.loads(str(stored["cases"]))
        ]


_EMBEDDINGS = ("embed_tokens", "embed_in", "lm_head", "embed_out", "word_embeddings")
_QUERIES_AND_KEYS = ("q_proj", "k_proj", "qkv_proj", "query_key_value")


def golden_weight(
    name: str, shape: Iterable[int], *, norm_mean: float = 1.0
) -> NDArray[np.float32]:
    """Return the weight of a name, the same on every machine and with every version of numpy.

    name: as in a Hugging Face checkpoint; matrices are [out, in].
    norm_mean: about which the weights of norms lie; 0 for a family that multiplies by 1 + weight.

    Scales: embeddings and output matrices 2/√D, so logits have a standard deviation of about 2,
    also where the two are tied; queries and keys 1.6/√in, so attention is far from uniform; other
    matrices 1/√in; norms `norm_mean` ± 0.2; biases ± 0.25.
    """
    shape = tuple(shape)
    draws = _draws(name, math.prod(shape)).reshape(shape)
    *_, module, kind = name.split(".")
    if kind == "bias":
        made = 0.25 * draws
    elif "norm" in module or len(shape) == 1:
        made = norm_mean + 0.2 * draws
    else:
        scale = 1.0
        if module in _EMBEDDINGS:
            scale = 2.0
        elif module in _QUERIES_AND_KEYS:
            scale = 1.6
        made = scale / math.sqrt(shape[-1]) * draws
    return made.astype(np.float32)


def _draws(name: str, count: int) -> NDArray[np.float64]:
    """Return nearly normal numbers of mean 0 and variance 1, from integers, hence exact.

    Each is the sum of the four 16-bit parts of one raw draw (Irwin–Hall), so |draw| < 3.47. numpy
    promises that raw streams do not change; it does not promise this of distributions.
    """
    raw = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(count)
    parts = [(raw >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    total = np.stack(parts).sum(axis=0, dtype=np.float64)
    return (total - 2 * 0xFFFF) / math.sqrt((2.0**32 - 1) / 3)
