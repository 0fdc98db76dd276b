"""Compare the import of a GGUF file with transformers' own reading of the same file.

python scripts/compare_gguf.py MODEL.gguf TEXT.txt --lengths 2048 9000 --write FILE.npz
/tmp/hf/bin/python scripts/compare_gguf.py MODEL.gguf TEXT.txt --check FILE.npz

The first command runs in the project's environment, the second where torch, transformers and gguf
are installed (scripts/golden_checkpoints.py says how). Both read the beginning of the text, with
the document start that the tokenizer adds, in float32. Printed for each length: the NLL in nats per
token and the largest difference of one token. The exit code is 1 if the tokens differ anywhere in
the text, or an NLL by more than 2e-3 per token.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

TOLERANCE = 2e-3
_CHUNK = 512  # tokens whose logits exist at a time


def write(model: Path, text: str, lengths: list[int], out: Path, runs: Path) -> None:
    """Write the tokens of a text, and the NLL of the first ones for each length."""
    import jax.numpy as jnp

    from rope_jax.checkpoints.importing import import_checkpoint
    from rope_jax.config.checkpoints import ImportConfig
    from rope_jax.config.resolve import language_model, resolve_run
    from rope_jax.console import plain_console
    from rope_jax.devices.mesh import Placement
    from rope_jax.evaluation.decoder import nll_of_last
    from rope_jax.training.checkpoints import params_at

    settings = ImportConfig(runs_dir=str(runs), param_dtype="float32", dtype="float32")
    run = import_checkpoint(str(model), settings, plain_console())
    config = run.load_config()
    tokenizer = run.open_tokenizer(config)
    decoder = language_model(resolve_run(config), tokenizer.vocab_size)
    placement = Placement(config.mesh)
    placement = placement.splitting(decoder.shardings)
    like = placement.shard_state(decoder.abstract_params())
    params = params_at(run.checkpoints, 0, like)
    of_last = nll_of_last(decoder, placement)
    start = tokenizer.bos_ids
    tokens = np.array([*start, *tokenizer.encode(text)], np.int32)
    arrays: dict[str, Any] = {"tokens": tokens}
    for length in lengths:
        rotary = config.rotary_layers.rotary(config.rope.scaling, np.arange(length)[None], length)
        nll = of_last(params, jnp.asarray(tokens[None, : length + 1]), rotary, None)
        arrays[str(length)] = np.asarray(nll)[0]
        print(f"{length:,} tokens: {arrays[str(length)].mean():.5f} nats per token")
    np.savez(out, **arrays)


def check(model: Path, text: str, found: Any) -> bool:
    """Compare transformers' tokens and NLLs with those that `write` wrote."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    tokens = np.array(tokenizer(text)["input_ids"])
    agree = np.array_equal(tokens, found["tokens"])
    print(f"{model.name}: {len(tokens):,} tokens, {'the same' if agree else 'others'} here")
    torch_model = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    ).eval()
    ids = torch.from_numpy(found["tokens"].astype(np.int64))
    for key in found.files:
        if key == "tokens":
            continue
        length, parts = int(key), []
        with torch.inference_mode():
            hidden = torch_model.model(ids[None, :length], use_cache=False).last_hidden_state[0]
            for part, targets in zip(
                hidden.split(_CHUNK), ids[1 : length + 1].split(_CHUNK), strict=True
            ):
                logits = torch_model.lm_head(part)
                parts.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
        theirs = torch.cat(parts).numpy()
        gap = abs(float(theirs.mean() - found[key].mean()))
        worst = float(np.abs(theirs - found[key]).max())
        print(
            f"{length:,} tokens: {theirs.mean():.5f} nats per token by transformers, "
            f"{found[key].mean():.5f} here, difference {gap:.1e}, of one token {worst:.1e}"
        )
        agree = agree and gap < TOLERANCE
    return agree


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("text", type=Path, help="a text file")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048], help="tokens")
    parser.add_argument("--write", type=Path, metavar="FILE.npz", help="what the import gives")
    parser.add_argument("--check", type=Path, metavar="FILE.npz", help="against transformers")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for the import")
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8")
    if arguments.write:
        write(arguments.model, text, arguments.lengths, arguments.write, arguments.runs)
    if arguments.check and not check(arguments.model, text, np.load(arguments.check)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
