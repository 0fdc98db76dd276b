"""Compare frequencies with Hugging Face transformers on random configs, or write a golden file.

python scripts/golden_hf.py --write           # tests/rope/golden_hf.json, 15 configs per type
python scripts/golden_hf.py --compare 1000    # worst difference per type, over 1,000 configs each

Needs transformers and torch. The tests need neither; they read the golden file.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rope_jax.rope.hf import from_hf, to_hf

GOLDEN = Path(__file__).parents[1] / "tests/rope/golden_hf.json"
TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
HEAD_DIMS = (32, 48, 64, 80, 96, 128, 160, 192, 256)

# YaRN without a ramp between its ends: Kimi K2's, where a pair lies between them, and where not.
_KIMI = {
    **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    **{"beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}
_HEAD = {"head_dim": 64, "max_position_embeddings": 131072, "rope_theta": 50000.0}
STEPS = [
    ("yarn", _HEAD | {"rope_scaling": _KIMI | {"truncate": truncate}}, 1)
    for truncate in (True, False)
]


def random_config(kind: str, rng: random.Random) -> tuple[dict[str, Any], int]:
    """Return a config.json of one rope_type, in one of the forms in use, and a text length."""
    head_dim = rng.choice(HEAD_DIMS)
    share = rng.choice((1.0, 1.0, 0.25, 0.5, 0.75))
    base = round(math.exp(rng.uniform(math.log(1e3), math.log(1e8))), 2)
    original = rng.choice((256, 2048, 4096, 8192, 32768, 131072, rng.randrange(200, 1_000_000)))
    factor = rng.choice((1.0, 2.0, 4.0, 8.0, 32.0, round(rng.uniform(1, 64), 3)))
    longest = original if kind in ("default", "dynamic") else math.ceil(original * factor)
    pairs = head_dim // 2 if kind == "proportional" else int(head_dim * share) // 2
    rope: dict[str, Any] = {"rope_type": kind}
    if kind in ("linear", "dynamic", "yarn", "llama3", "longrope", "proportional"):
        rope["factor"] = factor
    if kind in ("yarn", "llama3", "longrope"):
        rope["original_max_position_embeddings"] = original
    if kind == "llama3":
        low = rng.choice((1.0, round(rng.uniform(0.1, 8), 2)))
        rope |= {"low_freq_factor": low, "high_freq_factor": low * rng.uniform(1.5, 8)}
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            rope[name] = [round(rng.uniform(1, 40), 4) for _ in range(pairs)]
        if rng.random() < 0.5:
            del rope["factor"]  # transformers then uses the ratio of the two lengths
        if rng.random() < 0.3:
            rope["attention_factor"] = round(rng.uniform(0.5, 2), 4)
    if kind == "yarn":
        rope |= _yarn_extras(rng)
    config: dict[str, Any] = {"head_dim": head_dim, "max_position_embeddings": longest}
    # the two forms: base and share in the rope parameters (5.x) or at the top level (4.x)
    place = rope if rng.random() < 0.5 else config
    place["rope_theta"] = base
    if kind == "proportional":
        rope["partial_rotary_factor"] = share
    elif share != 1.0 and kind != "default":  # unscaled Llama always rotates the whole head
        place["partial_rotary_factor"] = share
    if rng.random() < 0.3:
        rope["type"] = rope["rope_type"]
        if rng.random() < 0.5 and place is config:
            del rope["rope_type"]
    key = "rope_parameters" if place is rope or rng.random() < 0.5 else "rope_scaling"
    return config | {key: rope}, rng.choice((1, original, original + 1, 3 * original, 1_000_000))


def _yarn_extras(rng: random.Random) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if rng.random() < 0.5:
        slow = rng.uniform(0.2, 4)
        extras |= {"beta_slow": slow, "beta_fast": slow * rng.uniform(2, 40)}
    if rng.random() < 0.4:
        extras["truncate"] = rng.random() < 0.5
    choice = rng.randrange(4)
    if choice == 1:
        extras["attention_factor"] = round(rng.uniform(0.5, 2), 4)
    elif choice == 2:
        extras["mscale"] = round(rng.uniform(0.3, 1.5), 3)
        extras["mscale_all_dim"] = rng.choice((0, 1.0))
    return extras


def reference(config: dict[str, Any], seq_len: int) -> tuple[np.ndarray, float]:
    """Return the inv_freq and attention factor that transformers computes."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.utils import logging

    logging.set_verbosity_error()
    made = LlamaConfig(**json.loads(json.dumps(config)))
    kind = made.rope_parameters["rope_type"]
    if kind == "default":
        inv_freq, m = LlamaRotaryEmbedding.compute_default_rope_parameters(made)
    else:
        inv_freq, m = ROPE_INIT_FUNCTIONS[kind](made, torch.device("cpu"), seq_len=seq_len)
    return inv_freq.to(torch.float32).numpy(), float(m)


def cases(count: int, seed: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield configs of every type, except backward YaRN ramps, which rope_jax rejects."""
    for kind in TYPES:
        rng, made = random.Random(f"{kind} {seed}"), 0
        while made < count:
            config, seq_len = random_config(kind, rng)
            if not is_backwards(config):
                made += 1
                yield kind, config, seq_len


def is_backwards(config: dict[str, Any]) -> bool:
    """Whether YaRN's ramp of a config goes backwards."""
    try:
        ours(config, 1)
    except ValueError as error:
        if "no pair turns between" not in str(error):
            raise
        return True
    return False


def ours(config: dict[str, Any], seq_len: int) -> tuple[np.ndarray, float]:
    """Return the inv_freq and attention factor of `from_hf`, in float64."""
    geometry, scaling = from_hf(config)
    made = scaling.frequencies(geometry, seq_len)
    return made.exact, float(made.attention_factor)


def difference(one: tuple[np.ndarray, float], other: tuple[np.ndarray, float]) -> float:
    """Return the worst relative difference in θ and m; infinite if only one of two θ is 0."""
    (a, m), (b, n) = one, other
    if a.shape != b.shape or np.any((a == 0) != (b == 0)):
        return math.inf
    turning = a != 0
    gap = np.abs(a[turning] - b[turning]) / np.abs(a[turning])
    return max(float(gap.max(initial=0)), abs(m - n) / m)


def write() -> None:
    made = []
    for _, config, seq_len in (*cases(15, 0), *STEPS):
        inv_freq, m = reference(config, seq_len)
        # the shortest decimals that round-trip in float32
        numbers = [float(str(value)) for value in inv_freq]
        made.append({"config": config, "seq_len": seq_len, "inv_freq": numbers, "m": m})
    lines = ",\n".join(json.dumps(case) for case in made)
    GOLDEN.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{GOLDEN.name}: {len(made)} configs")


def compare(count: int) -> None:
    import transformers

    print(f"transformers {transformers.__version__}, {count} configs per type, worst difference")
    read: dict[str, float] = dict.fromkeys(TYPES, 0.0)
    rewritten = dict(read)
    for kind, config, seq_len in cases(count, 1):
        wanted = reference(config, seq_len)
        read[kind] = max(read[kind], difference(ours(config, seq_len), wanted))
        written = to_hf(*from_hf(config), head_dim=config["head_dim"])
        rewritten[kind] = max(rewritten[kind], difference(reference(written, seq_len), wanted))
    for kind in TYPES:
        print(f"  {kind:13} from_hf {read[kind]:.2g}   from_hf, then to_hf {rewritten[kind]:.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", action="store_true", help="write the golden file")
    group.add_argument("--compare", type=int, metavar="N", help="configs per type")
    arguments = parser.parse_args()
    if arguments.write:
        write()
    else:
        compare(arguments.compare)


if __name__ == "__main__":
    main()
