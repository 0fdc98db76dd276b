"""Compare whole models with Hugging Face transformers, or write the golden files for tests.

python scripts/golden_checkpoints.py --write [FAMILY …]    # tests/checkpoints/golden/*.npz
python scripts/golden_checkpoints.py --keys             # tests/checkpoints/golden/config_keys.json
python scripts/golden_checkpoints.py --check DIR [DIR …]    # logits of exported models

Needs an environment of its own, with torch; the tests read the golden files and need none of it:

python -m venv /tmp/hf && /tmp/hf/bin/pip install numpy torch transformers==5.24.0
/tmp/hf/bin/python scripts/golden_checkpoints.py --write

--check: each DIR holds an exported model and, beside it, what `check_checkpoints.py exports` wrote:
tokens.npy [T], text.txt, which AutoTokenizer must give the same tokens, and logits.npy [T, V]. The
exit code is 1 if a logit differs by more than 2e-4 or a weight is missing or unused.
"""

import argparse
import copy
import importlib
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.golden_models import MODELS, VOCABULARY, WINDOW, Settings
from tests.checkpoints.cases import FOLDER, Case, Text

TOLERANCE = 2e-4


def old_form(config: Settings) -> Settings:
    """Return a config.json as transformers 4 and most of the Hub have it."""
    old = copy.deepcopy(config) | {"transformers_version": "4.46.0"}
    if "text_config" in old:
        return old | {"text_config": old_form(old["text_config"])}
    old["torch_dtype"] = old.pop("dtype", "float32")
    rope = old.pop("rope_parameters")
    if old["model_type"] == "gemma3_text":
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        old["sliding_window_pattern"] = old.pop("_sliding_window_pattern")
    rope = rope.get("full_attention", rope)
    names = {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"}
    if old["model_type"] == "gpt_neox":
        names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    if rope["rope_type"] == "proportional":
        del names["partial_rotary_factor"]  # version 4 had no such type, so keep this inside
    old |= {name: rope.pop(key) for key, name in names.items() if key in rope}
    kind = rope["rope_type"]
    if old["model_type"] == "phi3":
        rope.pop("original_max_position_embeddings", None)
    if kind in ("linear", "dynamic", "longrope") and old["model_type"] != "gemma3_text":
        rope["type"] = rope.pop("rope_type")  # its name until 4.43, which came before Gemma 3
    old["rope_scaling"] = None if kind == "default" else rope
    if old["model_type"] == "qwen3_moe":
        old["num_experts"] = old.pop("num_local_experts")
    if old["model_type"].startswith(("qwen2", "qwen3")) and not old["use_sliding_window"]:
        old["sliding_window"] = WINDOW  # given, but not in use
    return old


# --- golden files ---


def golden_tokens(length: int) -> NDArray[np.int32]:
    """Return the tokens of the text of a length."""
    raw = np.random.Philox(key=length).random_raw(length)
    return (raw % np.uint64(VOCABULARY)).astype(np.int32)


def golden_places(length: int) -> NDArray[np.int32]:
    """Return the first 24 tokens, then every eighth, and the last."""
    places = {*range(min(length, 24)), *range(24, length, 8), length - 1}
    return np.array(sorted(places), np.int32)


def logits_of(model: Any, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return the logits [B, T, V] of token ids [B, T]."""
    import torch

    with torch.inference_mode():
        ids = torch.from_numpy(tokens.astype(np.int64))
        return model(ids, use_cache=False).logits.numpy()


def load(folder: Path) -> Any:
    """Load a model in float32, with plain attention; SystemExit: the weights do not match."""
    import torch
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {what: found for what, found in report.items() if found}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return model.eval()


def mean_nll(logits: NDArray[np.float32], tokens: NDArray[np.integer]) -> float:
    """Return the mean negative log-likelihood of tokens 1 to T − 1, in nats."""
    return float(nlls(logits[:-1], tokens[1:]).mean())


def nlls(logits: NDArray[np.float32], targets: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return the negative log-likelihood of targets [T], given logits [T, V], in nats."""
    scores = logits.astype(np.float64)
    scores -= scores.max(-1, keepdims=True)
    own = np.take_along_axis(scores, targets[:, None].astype(np.int64), 1)[:, 0]
    return np.log(np.exp(scores).sum(-1)) - own


def make_case(family: str, case_name: str, settings: Settings, lengths: tuple[int, ...]) -> Case:
    """Build a model, fill it with golden weights and return what it computes."""
    from safetensors import safe_open
    from safetensors.numpy import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = AutoConfig.for_model(**{"model_type": family} | copy.deepcopy(settings))
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        text = (folder / "config.json").read_text(encoding="utf-8")
        weights = folder / "model.safetensors"
        with safe_open(weights, "np") as stored:
            names = list(stored.keys())
            tensors = {name: tuple(stored.get_slice(name).get_shape()) for name in names}
        old = old_form(json.loads(text))
        without = {key: value for key, value in old.items() if key != "layer_types"}
        loaded = AutoConfig.for_model(**copy.deepcopy(without)).to_dict()
        if loaded.get("layer_types") == json.loads(text).get("layer_types"):
            old = without
        old_text = json.dumps(old, indent=2) + "\n"
        case = Case(case_name, text, old_text, tensors, ())
        save_file(case.weights(), weights, {"format": "pt"})
        texts = []
        for length in lengths:
            tokens, places = golden_tokens(length), golden_places(length)
            made = []
            for form in (text, old_text):
                (folder / "config.json").write_text(form, encoding="utf-8")
                # a fresh model each time: "dynamic" remembers the longest text
                made.append(logits_of(load(folder), tokens[None])[0])
            logits, again = made
            if not np.array_equal(logits, again):
                raise SystemExit(f"{family} {case_name}: the old config gives other logits")
            texts.append(Text(tokens, places, logits[places], mean_nll(logits, tokens)))
    return Case(case_name, text, old_text, tensors, tuple(texts))


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


def write(families: Sequence[str]) -> None:
    for family in families:
        cases = [make_case(family, *model) for model in MODELS[family]()]
        path = write_cases(family, cases)
        widest = max(float(np.abs(text.logits).max()) for case in cases for text in case.texts)
        print(
            f"{path.name:16} {len(cases):2} models, {path.stat().st_size / 1000:.0f} kB, "
            f"logits up to {widest:.1f}"
        )


# --- keys of config.json ---


def write_keys() -> None:
    """Write the keys that transformers' modelling code of each family reads, with defaults.

    They are found in its text, so they include keys of other heads, such as num_labels.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as MODELS_OF

    keys = {}
    for family in MODELS:
        config = CONFIG_MAPPING[family]()
        # the code of some is Llama's
        text = inspect.getsource(importlib.import_module(MODELS_OF[type(config)].__module__))
        names = {*re.findall(r"config\.(\w+)", text), *re.findall(r'config, "(\w+)"', text)}
        names |= {name for name in inspect.signature(type(config)).parameters if name != "kwargs"}
        keys[family] = {
            name: value
            for name in sorted(names)
            if isinstance(value := getattr(config, name, None), str | int | float | None)
        }
    path = FOLDER / "config_keys.json"
    path.write_text(json.dumps(keys, indent=1) + "\n", encoding="utf-8")
    print(f"{path.name}: {sum(map(len, keys.values()))} keys of {len(keys)} families")


# --- exported models ---


def check(folder: Path) -> bool:
    """Compare the logits of an exported model; return whether they agree."""
    from transformers import AutoTokenizer

    model = load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens, wanted = (np.load(folder / name) for name in ("tokens.npy", "logits.npy"))
    ids = tokenizer((folder / "text.txt").read_text(encoding="utf-8"))["input_ids"]
    agree = np.array_equal(ids, tokens)
    if not agree:
        print(f"{folder}: AutoTokenizer reads text.txt as other tokens than tokens.npy has")
    gap = np.abs(logits_of(model, tokens[None])[0] - wanted)
    worst = float(gap.max())
    print(
        f"{folder}: {model.config.model_type}, {len(tokens)} tokens, "
        f"worst difference of a logit {worst:.2g}, mean {float(gap.mean()):.2g}"
    )
    return agree and worst <= TOLERANCE  # NaN does not agree either


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", nargs="*", choices=MODELS, metavar="FAMILY", help="or all")
    parser.add_argument("--keys", action="store_true", help="write the keys of config.json")
    parser.add_argument("--check", type=Path, nargs="+", metavar="DIR", help="exported models")
    arguments = parser.parse_args()
    if len(sys.argv) == 1:
        return parser.print_help()
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if arguments.write is not None:
        write(arguments.write or list(MODELS))
    if arguments.keys:
        write_keys()
    if arguments.check and not all([check(folder) for folder in arguments.check]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
