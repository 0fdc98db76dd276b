"""Peak memory of an import against the size of the model.

    python benchmarks/import_memory.py [layers=32] [folder=/tmp]

Makes a random Llama in bfloat16 (hidden size 2,048, vocabulary 32,000; 32 layers are 3.9 GB) in
shards of about 500 MB, imports it with rope-jax import in a process of its own, and prints the
largest resident memory of that process: its own (anonymous) memory, and with it the pages of the
file that it reads, which the system can drop. Linux only.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from rope_jax.data.tokenizers import ByteTokenizer

ROOT = Path(__file__).parents[1]
WIDTH, HIDDEN, VOCABULARY, HEADS, KV_HEADS = 2048, 8192, 32_000, 16, 4
SHARD = 500 * 2**20


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of the model."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    kv = WIDTH * KV_HEADS // HEADS
    for layer in range(layers):
        attention = {"q_proj": WIDTH, "k_proj": kv, "v_proj": kv, "o_proj": WIDTH}
        mlp = {
            "gate_proj": (HIDDEN, WIDTH),
            "up_proj": (HIDDEN, WIDTH),
            "down_proj": (WIDTH, HIDDEN),
        }
        prefix = f"model.layers.{layer}."
        found |= {f"{prefix}self_attn.{n}.weight": (out, WIDTH) for n, out in attention.items()}
        found |= {f"{prefix}mlp.{n}.weight": shape for n, shape in mlp.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{name}.weight"] = (WIDTH,)
    return found | {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}


def make(folder: Path, layers: int) -> tuple[int, int]:
    """Write the checkpoint; return its bytes, and those of its largest file."""
    config = {
        **{"model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH},
        **{"intermediate_size": HIDDEN, "num_hidden_layers": layers, "rope_theta": 1e4},
        **{"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS},
        **{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(ByteTokenizer().json(), encoding="utf-8")
    rng = np.random.default_rng(0)
    weight_map: dict[str, str] = {}
    sizes: list[int] = []
    shard: dict[str, np.ndarray] = {}

    def write() -> None:
        name = f"model-{len(sizes):05}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, name))
        sizes.append((folder / name).stat().st_size)
        shard.clear()

    for name, shape in shapes(layers).items():
        draws = rng.standard_normal(shape, dtype=np.float32) * 0.02
        shard[name] = draws.astype(ml_dtypes.bfloat16)
        if sum(tensor.nbytes for tensor in shard.values()) > SHARD:
            write()
    write()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sum(sizes), max(sizes)


def resident(process: int) -> tuple[int, int]:
    """Return the anonymous and the file-backed resident bytes of a process; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0, 0
    found = dict(line.split(":", 1) for line in status.splitlines())
    anonymous, file = (int(found.get(key, "0").split()[0]) * 1024 for key in ("RssAnon", "RssFile"))
    return anonymous, file


def main() -> None:
    asked = dict(word.split("=") for word in sys.argv[1:])
    with tempfile.TemporaryDirectory(dir=asked.get("folder")) as temporary:
        folder = Path(temporary)
        size, shard = make(folder, int(asked.get("layers", "32")))
        began = time.perf_counter()
        command = [sys.executable, "-m", "rope_jax", "import", str(folder), "name=big"]
        process = subprocess.Popen([*command, f"runs_dir={folder}"], stdout=subprocess.DEVNULL)
        own = both = 0
        while process.poll() is None:
            anonymous, file = resident(process.pid)
            own, both = max(own, anonymous), max(both, anonymous + file)
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        if process.returncode:
            sys.exit(f"the import ended with status {process.returncode}")
    mib = 2**20
    print(f"model {size / mib:,.0f} MiB, largest file {shard / mib:,.0f} MiB, {seconds:.0f} s")
    print(f"peak of own memory {own / mib:,.0f} MiB: {own / size:.2f} times the model")
    print(f"with the pages of the file {both / mib:,.0f} MiB: {both / size:.2f} times")
    print(f"1.2 times the model plus one file is {(1.2 * size + shard) / mib:,.0f} MiB")


if __name__ == "__main__":
    main()
