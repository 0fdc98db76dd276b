"""Check on a GPU or TPU what tests on a CPU cannot: attention kernels, angles, the training loop.

    make accelerator

Every attention backend that can run here is compared with `xla` in float32 on the same bfloat16
inputs, forward and backward: one document per row and several, with and without a sliding window,
for all queries of a window and for the last ones, on one device and on a mesh of all devices, with
rows, heads or windows split over them. cos and sin are compared with extended-precision values. A
few training steps run with a guard against waiting for the device.

Without an accelerator, the script says that it checked nothing; --on-cpu tries it on the CPU, with
few of the combinations.

Shapes: B batch, T queries, S length of the window, N heads, K key-value heads, H head dim.
"""

import argparse
import functools
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array

from rope_jax.attention.backends import BACKENDS, AttentionName
from rope_jax.attention.base import Inputs
from rope_jax.collectives import CONTEXT, ROWS, TENSOR, Collectives
from rope_jax.config.devices import MeshConfig
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import check_backend, resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.hardware import device_line
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.mask import BandMask
from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling
from rope_jax.runs.logs import Log
from rope_jax.training.loop import Trainer, TrainingProgress
from rope_jax.training.program import Program

N, K, H = 8, 2, 64
# bfloat16 has 8 bits of precision, and outputs here average some hundred numbers of size 1.
_TOLERANCE = 3e-2
_ANGLE_TOLERANCE = 1e-6
_HIDE_FAR, _BORDER = 100, 200

# attend(q, k, v, segment_ids, devices that share the window) -> the queries' outputs.
Attend = Callable[[Array, Array, Array, Array | None, Collectives], Array]


class Case(NamedTuple):
    """Which keys are hidden, and how many queries there are."""

    segments: bool
    window: int | None
    queries: int

    def __str__(self) -> str:
        rows = "several documents per row" if self.segments else "one document per row"
        sliding = f"sliding window {self.window}" if self.window else "no sliding window"
        return f"{rows}, {sliding}, {self.queries} queries"


def cases(length: int) -> Iterator[Case]:
    """Yield every combination."""
    for each in itertools.product((False, True), (None, _HIDE_FAR), (length, length // 8 + 1)):
        yield Case(*each)


def meshes(backend: AttentionName) -> Iterator[MeshConfig]:
    """Yield the ways in which all devices can share the work of attention."""
    count = jax.device_count()
    yield MeshConfig(data=count)
    if count % 2 == 0:
        yield MeshConfig(data=count // 2, tensor=2)
        if backend != "cudnn":  # it cannot split windows
            yield MeshConfig(data=count // 2, context=2)


def inputs(rows: int, length: int) -> tuple[Array, Array, Array, Array]:
    """Draw q [B, S, N, H], k and v [B, S, K, H] in bfloat16, and segment ids [B, S].

    Documents have some 200 tokens.
    """
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(rng.standard_normal((rows, length, heads, H)), jnp.bfloat16)
        for heads in (N, K, K)
    )
    return q, k, v, jnp.asarray(np.cumsum(rng.random((rows, length)) < 0.005, axis=1), jnp.int32)


def plain(backend: AttentionName, window: int | None) -> Attend:
    """Return attention with dot products."""

    def attend(q: Array, k: Array, v: Array, ids: Array | None, over: Collectives) -> Array:
        return BACKENDS[backend].attend(q, k, v, ids, window, over.part)

    return attend


def banded(backend: AttentionName) -> Attend:
    """Return attention with two bands, in which queries differ."""
    interaction = Interaction((BandMask(beyond=_BORDER), BandMask(nearest=_BORDER)))

    def attend(q: Array, k: Array, v: Array, ids: Array | None, over: Collectives) -> Array:
        bands = Inputs((q, q * jnp.asarray(0.5, q.dtype)), (k, k), v, ids, over.part)
        return BACKENDS[backend].attend_bands(interaction, bands)

    return attend


def output_and_gradients(attend: Attend, placement: Placement) -> Callable[..., tuple[Array, ...]]:
    """Return a function of q, k, v and segment ids that runs on all devices of a mesh."""
    over = placement.collectives

    def on_each(q: Array, k: Array, v: Array, ids: Array | None) -> tuple[Array, ...]:
        own = over.own_tokens(q, 1)
        out, pull_back = jax.vjp(lambda q, k, v: attend(q, k, v, ids, over), own, k, v)
        dq, *of_keys = pull_back(jnp.ones_like(out))
        if over.context > 1:
            of_keys = [jax.lax.psum(x.astype(jnp.float32), CONTEXT) for x in of_keys]
        return over.all_tokens(out, 1), over.all_tokens(dq, 1), *of_keys

    if placement.mesh.size == 1:
        return jax.jit(on_each)
    heads = PartitionSpec(ROWS, None, TENSOR)
    return jax.jit(
        jax.shard_map(
            on_each,
            mesh=placement.mesh,
            in_specs=(heads, heads, heads, PartitionSpec(ROWS)),
            out_specs=(heads,) * 4,
            check_vma=False,
        )
    )


@functools.cache
def exact(has_bands: bool, case: Case, length: int) -> tuple[np.ndarray, ...]:
    """Return outputs and gradients of `xla` in float32, on one device."""
    q, k, v, drawn = inputs(2 * jax.device_count(), length)
    q, ids = q[:, -case.queries :], drawn if case.segments else None
    one = Placement(MeshConfig(), jax.devices()[:1])
    attend = banded("xla") if has_bands else plain("xla", case.window)
    with jax.default_matmul_precision("highest"):
        wide = (x.astype(jnp.float32) for x in (q, k, v))
        results: tuple[np.ndarray, ...] = jax.device_get(
            output_and_gradients(attend, one)(*wide, ids)
        )
    return results


def difference(
    attend: Attend, case: Case, length: int, mesh: MeshConfig, *, has_bands: bool = False
) -> float:
    """Return the largest relative difference from `exact`, of outputs and gradients.

    Relative to the largest number in each array, because gradients of keys sum over all queries.
    """
    q, k, v, drawn = inputs(2 * jax.device_count(), length)
    q, ids = q[:, -case.queries :], drawn if case.segments else None
    found = jax.device_get(output_and_gradients(attend, Placement(mesh))(q, k, v, ids))
    differences = [
        np.abs(a.astype(np.float32) - b).max() / np.abs(b).max()
        for a, b in zip(found, exact(has_bands, case, length), strict=True)
    ]
    return float(np.max(differences))  # NaN if any of them is: Python's max may lose it


def worst_angle() -> float:
    """Return the largest error of cos and sin at positions up to 10^7."""
    geometry = RotaryGeometry(64, 1e4, 4096)
    positions = np.random.default_rng(1).integers(0, 10**7, 4096).astype(np.int32)
    frequencies = parse_scaling({"type": "none"}).frequencies(geometry)
    cos, sin = (np.asarray(x) for x in jax.jit(cos_sin)(frequencies, positions))
    angles = positions[:, None].astype(np.longdouble) * geometry.inv_freq().astype(np.longdouble)
    return float(max(np.abs(cos - np.cos(angles)).max(), np.abs(sin - np.sin(angles)).max()))


def train_guarded(folder: Path) -> None:
    """Train a few steps; an error if the loop waits for a result that it has not asked for."""
    rng = np.random.default_rng(0)
    for number in range(20):
        words = rng.choice(["rope ", "turns ", "slow\n"], 500)
        (folder / f"{number}.txt").write_text("".join(words))
    data = {"type": "text", "files": [str(folder / "*.txt")], "cache_dir": str(folder / "cache")}
    stage = {"steps": 8, "seq_len": 64, "batch_size": 2 * jax.device_count()}
    config = TrainingConfig.model_validate(
        {
            "name": "guarded",
            "log_every_steps": 1,
            "model": {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2},
            "data": data | {"validation_fraction": 0.1, "test_fraction": 0.1},
            "optim": {"warmup_steps": 2},
            "stages": [stage],
        }
    )
    corpus = open_corpus(config.data, ByteTokenizer())
    program = Program(resolve_run(config), corpus.tokenizer.vocab_size, Placement(config.mesh))
    progress = TrainingProgress(plain_console(quiet=True), stage["steps"], 0)
    checkpoints: Any = SimpleNamespace(save=lambda step, state: None)
    trainer = Trainer(program, corpus, checkpoints, Log(), progress)
    state = program.fresh_state()
    with jax.transfer_guard_device_to_host("disallow"):
        trainer.run(0, state)


def comparisons(length: int) -> Iterator[tuple[str, float]]:
    """Compare every backend that runs here with float32; yield what was compared, and `difference`.

    The kernels of accelerators come first, in case there is no time for all.
    """
    for name in (name for name, each in reversed(BACKENDS.items()) if each.is_softmax):
        try:
            check_backend(ModelConfig(attention=name, dtype="bfloat16", head_dim=H))
        except UserError as reason:
            print(f"{name}, not checked: {reason}")
            continue
        few = jax.default_backend() == "cpu"
        for mesh, case in itertools.product(meshes(name), [*cases(length)][-2 if few else 0 :]):
            if mesh.context > 1 and case.queries < length:  # shared windows have all queries
                continue
            error = difference(plain(name, case.window), case, length, mesh)
            yield f"{name}, {split(mesh)}, {case}", error
        for mesh, segments in itertools.product(meshes(name), (False, True)):
            case = Case(segments, None, length)
            error = difference(banded(name), case, length, mesh, has_bands=True)
            yield f"{name} with two bands, {split(mesh)}, {case}", error


def split(mesh: MeshConfig) -> str:
    """Return the axes of a mesh in words."""
    sizes = mesh.model_dump().items()
    return " × ".join(f"{axis} {n}" for axis, n in sizes if (n or 1) > 1) or "one device"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--length", type=int, default=1024, metavar="S", help="tokens per window (default: 1024)"
    )
    parser.add_argument("--on-cpu", action="store_true", help="run even without an accelerator")
    arguments = parser.parse_args()
    if jax.devices()[0].platform == "cpu" and not arguments.on_cpu:
        sys.exit("nothing was checked: there is no accelerator here, only a CPU")
    print(f"on {device_line('bfloat16')}, jax {jax.__version__}")
    error = worst_angle()
    print(f"cos and sin up to position 10^7: largest error {error:.2g}")
    close = error <= _ANGLE_TOLERANCE
    for compared, error in comparisons(arguments.length):
        print(f"{compared}: relative difference {error:.2g}", flush=True)
        close &= error <= _TOLERANCE
    with tempfile.TemporaryDirectory() as folder:
        train_guarded(Path(folder))
    print("training loop: it waits only for what it asked for")
    if not close:
        sys.exit(
            "failed: an error above exceeds its tolerance "
            f"({_ANGLE_TOLERANCE:g} for angles, {_TOLERANCE:g} for backends)"
        )


if __name__ == "__main__":
    main()
