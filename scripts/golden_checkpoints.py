"""Compute golden models with Hugging Face transformers, or compare exports and GGUF files with it.

python scripts/golden_checkpoints.py --write [FAMILY …]        # tests/checkpoints/golden/*.npz anew
python scripts/golden_checkpoints.py --add FAMILY MODELS.json  # more models, by name
python scripts/golden_checkpoints.py --keys            # config_keys.json, transformers_keys.toml
python scripts/golden_checkpoints.py --check DIR [DIR …]  # what check_checkpoints.py wrote

Needs an environment of its own, with torch; the tests read the golden
files and need none of it:

python -m venv /tmp/hf && /tmp/hf/bin/pip install numpy torch transformers==5.24.0
/tmp/hf/bin/python scripts/golden_checkpoints.py --write

--write: a golden file has the configs of its models, and weights follow from their names, so only
logits are computed; printed is how far they are from those before. --add: each model is what its
keys of config.json change in `TINY`. --check: the exit code is 1 if AutoTokenizer reads other
tokens in text.txt, or if the mean NLL of a length in nll.npz differs by more than 2e-3 nats.
"""

import argparse
import importlib
import inspect
import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.checkpoints.cases import FAMILIES, FOLDER, Case, Text, read_cases

TOLERANCE = 2e-3
KEYS = Path(__file__).parents[1] / "rope_jax" / "checkpoints" / "transformers_keys.toml"
TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""A scaled model is "trained" for 32 tokens (original_max_position_embeddings)."""
PUBLISHED_AS = {"exaone": "ExaoneForCausalLM", "internlm3": "InternLM3ForCausalLM"}
"""Classes in the configs of models whose code is Llama's."""
LENGTHS = (24, 80)
"""Tokens of the texts of a new model: inside and past its window."""


def old_form(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json as transformers 4 has it, or an earlier 5 where 4 lacks the family."""
    if "text_config" in config:
        return config | {"text_config": old_form(config["text_config"])}
    old = config | {"transformers_version": "4.46.0"}
    old["torch_dtype"] = old.pop("dtype", "float32")
    if layers := old.pop("per_layer_config", None):  # Gemma 4
        own = next(iter(layers.values()))
        heads = own.get("num_key_value_heads")
        names = {"global_head_dim": own["head_dim"], "num_global_key_value_heads": heads}
        return old | names
    rope = dict(old.pop("rope_parameters"))
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            old[key] = rope.pop(key)
    old["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    return old


def load(folder: Path, **where: Any) -> Any:
    """Load a model in float32, with plain attention; SystemExit: the weights do not match."""
    import torch
    from transformers import AutoConfig

    model, report = class_of(AutoConfig.from_pretrained(folder)).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **where
    )
    wrong = {what: names for what, names in report.items() if names}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return model.eval()


def class_of(config: Any) -> Any:
    """Return the class of a config's model, of some with images and of others without."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as MODELS_OF

    is_text = not hasattr(config, "text_config")
    if is_text and type(config) in MODELS_OF.keys():  # noqa: SIM118  not a mapping
        return MODELS_OF[type(config)]
    name = type(config).__name__.removesuffix("Config")
    try:
        return getattr(transformers, f"{name}ForConditionalGeneration")
    except AttributeError:
        return getattr(transformers, f"{name}ForCausalLM")


def logits_of(model: Any, tokens: NDArray[np.integer]) -> Any:
    """Return the logits [T, V] of tokens [T], as a tensor of torch."""
    import torch

    with torch.inference_mode():
        return model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0]


def computed(case: Case) -> Case:
    """Return a golden model with the logits of transformers at the places of its texts.

    SystemExit: its config in the form of version 4 gives others.
    """
    from safetensors.numpy import save_file

    texts = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_file(case.weights(), folder / "model.safetensors", {"format": "pt"})
        for text in case.texts:
            made = []
            for form in (case.config, case.old_config):
                (folder / "config.json").write_text(form, encoding="utf-8")
                # a fresh model each time: "dynamic" remembers the longest text
                made.append(logits_of(load(folder), text.tokens).numpy())
            logits, again = made
            if not np.array_equal(logits, again):
                raise SystemExit(f"{case.name}: the config of version 4 gives other logits")
            texts.append(replace(text, logits=logits[text.places]))
    return replace(case, texts=tuple(texts))


def new_case(family: str, name: str, settings: dict[str, Any], texts: tuple[Text, ...]) -> Case:
    """Return a model whose logits are still to be computed.

    settings: what differs from `TINY`. texts: those of the family's other models.
    """
    from safetensors import safe_open
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = AutoConfig.for_model(**{"model_type": family} | TINY | settings)
        class_of(config)._from_config(config).save_pretrained(folder)
        text = (folder / "config.json").read_text(encoding="utf-8")
        with safe_open(folder / "model.safetensors", "np") as stored:
            tensors = {n: tuple(stored.get_slice(n).get_shape()) for n in [*stored.keys()]}
    old = json.dumps(old_form(json.loads(text)), indent=2) + "\n"
    return Case(name, text, old, tensors, texts)


def new_texts() -> Iterator[Text]:
    """Yield the texts of a new family."""
    for length in LENGTHS:
        raw = np.random.Philox(key=length).random_raw(length)
        tokens = (raw % np.uint64(TINY["vocab_size"])).astype(np.int32)
        places = sorted({*range(0, length, 8), length - 1})
        yield Text(tokens, np.array(places, np.int32), np.empty((0, 0), np.float32))


def write_cases(family: str, cases: Sequence[Case]) -> None:
    """Write a family's file. Texts of one length have the same tokens in all cases."""
    arrays: dict[str, NDArray] = {}
    entries = []
    for case in cases:
        for text in case.texts:
            length = len(text.tokens)
            arrays |= {f"{length}/tokens": text.tokens, f"{length}/places": text.places}
            arrays[f"{length}/{case.name}"] = text.logits
        texts = [[len(text.tokens)] for text in case.texts]
        entry = {"name": case.name, "config": case.config, "old_config": case.old_config}
        entries.append(entry | {"tensors": case.tensors, "texts": texts})
    everything: dict[str, Any] = {"cases": np.array(json.dumps(entries)), **arrays}
    np.savez_compressed(FOLDER / f"{family}.npz", **everything)


def write(families: Sequence[str]) -> None:
    """Compute the logits of families again."""
    for family in families:
        before = read_cases(family)
        cases = [computed(case) for case in before]
        pairs = [
            (text.logits, old.logits)
            for case, other in zip(cases, before, strict=True)
            for text, old in zip(case.texts, other.texts, strict=True)
        ]
        worst = max(float(np.abs(new - old).max()) for new, old in pairs)
        write_cases(family, cases)
        print(f"{family:16} {len(cases):2} models, logits {worst:.1e} from those before")


def add(family: str, file: Path) -> None:
    """Add models to a family's golden file, which need not exist."""
    cases = {case.name: case for case in (read_cases(family) if family in FAMILIES else ())}
    texts = next(iter(cases.values())).texts if cases else tuple(new_texts())
    for name, settings in json.loads(file.read_text(encoding="utf-8")).items():
        cases[name] = computed(new_case(family, name, settings, texts))
    write_cases(family, [*cases.values()])


def write_keys() -> None:
    """Write the keys of config.json that transformers' code reads.

    Of each family here, those of its modelling code, with defaults. They are found in its text, so
    they include keys of other heads, such as num_labels. Of all causal language models with
    rotary embeddings, the names of those that a configuration declares or accepts, or that its
    model asks for, for `rope_jax/checkpoints/keys.py`; and other names that the configurations of
    the families accept, what they declare as defaults, and the classes of their models.
    """
    from transformers import PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as MODELS_OF

    defaults, declared_defaults, architectures, other_names, read = {}, {}, {}, {}, set()
    of_all = inspect.signature(PreTrainedConfig).parameters
    for kind in MODELS_OF:
        # the code of some is Llama's
        model = inspect.getsource(importlib.import_module(MODELS_OF[kind].__module__))
        own = inspect.getsource(sys.modules[kind.__module__])
        declared = inspect.signature(kind).parameters.keys() - {"kwargs"}
        named = {*re.findall(r"config\.([a-z]\w+)", model)}
        asked = {*re.findall(r'config, "([a-z]\w+)"', model)}
        popped = {*re.findall(r'kwargs\.(?:pop|get|setdefault)\("(\w+)"', own)}
        if "rope_parameters" in declared:
            used = {name for name in declared if name in named or f"self.{name}" in own}
            read |= (used | asked | popped) - of_all.keys()
        if (family := kind.model_type) not in FAMILIES:
            continue
        config = CONFIG_MAPPING[family]()
        config.allow_global_per_layer_attribute_access = True  # Gemma 4's heads
        defaults[family] = {
            name: value
            for name in sorted({*named, *asked, *declared})
            if isinstance(value := getattr(config, name, None), str | int | float | None)
        }
        architectures[family] = PUBLISHED_AS.get(family, MODELS_OF[kind].__name__)
        declared_defaults[family] = {
            name: parameter.default
            for name, parameter in inspect.signature(kind).parameters.items()
            if isinstance(parameter.default, str | int | float)
            and not (name in of_all or name.endswith(("token_id", "dropout")))
        }
        # besides attribute_map: a number given under another name is found under its own
        found = {
            (name, key)
            for name in popped - declared - {"rope_scaling"}
            for key, value in vars(kind(**{name: 96})).items()
            if value == 96 != defaults[family].get(key) and key in declared
        }
        other_names[family] = {**kind.attribute_map, **dict(found)}
    path = FOLDER / "config_keys.json"
    path.write_text(json.dumps(defaults, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    lines = ["# Keys of config.json in transformers, by scripts/golden_checkpoints.py --keys.", ""]
    lines += ["# What the code of its causal language models with rotary embeddings reads."]
    lines += ['read = """', *textwrap.wrap(" ".join(sorted(read)), 100), '"""', ""]
    lines += ["# The classes of the families' models.", "[architectures]"]
    lines += [f'{family} = "{name}"' for family, name in sorted(architectures.items())]
    lines += ["", "# Defaults of the families' configurations that are not null.", "[defaults]"]
    for family, values in sorted(declared_defaults.items()):
        pairs = (f"{name} = {json.dumps(value)}" for name, value in sorted(values.items()))
        lines += [f"{family} = {{{', '.join(pairs)}}}"]
    lines += ["", "# Names that its configurations accept for other keys."]
    for family, names in sorted(other_names.items()):
        pairs = (f'{name} = "{key}"' for name, key in sorted(names.items()))
        lines += [f"[other_names.{family}]", *pairs] if names else []
    KEYS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def check(folder: Path) -> bool:
    """Compare tokens and NLLs of an exported model; return whether they agree.

    folder: holds the model, text.txt, and nll.npz: the tokens of the text, and by length the NLL
    of each next token.
    """
    import torch
    from transformers import AutoTokenizer

    model, ours = load(folder), np.load(folder / "nll.npz")
    tokenizer, tokens = AutoTokenizer.from_pretrained(folder), ours["tokens"]
    text = (folder / "text.txt").read_text(encoding="utf-8")
    agree = np.array_equal(tokenizer(text)["input_ids"], tokens)
    print(f"{folder}: {len(tokens):,} tokens, {'the same' if agree else 'others'} by transformers")
    for key in (key for key in ours.files if key != "tokens"):
        length = int(key)
        logits = logits_of(model, tokens[:length])
        targets = torch.from_numpy(tokens[1 : length + 1].astype(np.int64))
        theirs = torch.nn.functional.cross_entropy(logits, targets, reduction="none").numpy()
        gap, worst = abs(theirs.mean() - ours[key].mean()), np.abs(theirs - ours[key]).max()
        print(
            f"{length:,} tokens: {theirs.mean():.5f} nats per token by transformers, "
            f"{ours[key].mean():.5f} here, difference {gap:.1e}, of one token {worst:.1e}"
        )
        agree = agree and bool(gap < TOLERANCE)  # NaN does not agree either
    return agree


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", nargs="*", choices=FAMILIES, metavar="FAMILY", help="or all")
    parser.add_argument("--add", nargs=2, metavar=("FAMILY", "MODELS.json"))
    parser.add_argument("--keys", action="store_true", help="write the keys of config.json")
    parser.add_argument("--check", type=Path, nargs="+", metavar="DIR", help="models and NLLs")
    arguments = parser.parse_args()
    if len(sys.argv) == 1:
        return parser.print_help()
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if arguments.write is not None:
        write(arguments.write or FAMILIES)
    if arguments.add:
        add(arguments.add[0], Path(arguments.add[1]))
    if arguments.keys:
        write_keys()
    if arguments.check and not all([check(folder) for folder in arguments.check]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
