"""Golden files of tiny models by family: what transformers computes from a config and weights.

`scripts/golden_checkpoints.py --write` writes them; the tests only need numpy to read them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints.weights import golden_weight

FOLDER = Path(__file__).parent / "golden"

FAMILIES = (
    *("gemma2", "gemma3_text", "gpt_neox", "llama", "mistral"),
    *("olmo2", "phi3", "qwen2", "qwen3", "smollm3"),
)
"""Values of `model_type`; each has a golden file of this name."""


@dataclass(frozen=True)
class Text:
    """One text of T tokens and what a model makes of it; V is the size of the vocabulary."""

    tokens: NDArray[np.int32]
    """[T]"""
    places: NDArray[np.int32]
    """[P] The indices of the tokens whose logits are stored, ascending."""
    logits: NDArray[np.float32]
    """[P, V]"""
    mean_nll: float
    """Mean of the T − 1 negative log-likelihoods of tokens 1 to T − 1, in nats."""


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
        gemma = json.loads(self.config)["model_type"].startswith("gemma")
        return {
            name: golden_weight(name, shape, norm_mean=0.0 if gemma else 1.0)
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
                    Text(
                        tokens=stored[f"{length}/tokens"],
                        places=stored[f"{length}/places"],
                        logits=stored[f"{length}/{case['name']}"],
                        mean_nll=mean_nll,
                    )
                    for length, mean_nll in case["texts"]
                ),
            )
            for case in json.loads(str(stored["cases"]))
        ]


def write_cases(family: str, cases: Sequence[Case]) -> Path:
    """Write a family's file and return its path. Texts of one length must have the same tokens."""
    arrays: dict[str, NDArray] = {}
    entries = []
    for case in cases:
        for text in case.texts:
            length = len(text.tokens)
            shared = {f"{length}/tokens": text.tokens, f"{length}/places": text.places}
            for key, value in shared.items():
                if not np.array_equal(arrays.setdefault(key, value), value):
                    raise ValueError(f"{family} {case.name}: other {key} than the cases before")
            arrays[f"{length}/{case.name}"] = text.logits
        entries.append(
            {
                "name": case.name,
                "config": case.config,
                "old_config": case.old_config,
                "tensors": case.tensors,
                "texts": [(len(text.tokens), text.mean_nll) for text in case.texts],
            }
        )
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{family}.npz"
    everything: dict[str, Any] = {"cases": np.array(json.dumps(entries)), **arrays}
    np.savez_compressed(path, **everything)
    return path
