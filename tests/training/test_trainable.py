"""LoRA and frozen parameters, against LoRA written out: W + s·B·A, differentiated by A and B.

Run as a script with eight devices, this file prints how far a mesh is from one device.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from rope_jax.checkpoints.opening import same_bits
from rope_jax.config.resolve import resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.devices.mesh import Placement
from rope_jax.devices.window_memory import bytes_per_device
from rope_jax.rope import Rotary
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.optimizer import learning_rate
from rope_jax.training.program import Program
from rope_jax.training.run import train
from rope_jax.training.step import TrainState, loss_sums
from tests.devices.test_split_programs import SIZES, VOCABULARY, B, T, batch
from tests.training.conftest import quiet

STEPS = 3
# eps: Adam's step of a gradient near 0 would magnify rounding
OPTIM = {"learning_rate": 0.05, "warmup_steps": 0, "eps": 1e-3, "clip_norm": 0.05}
LONG_LORA = {"lora": {"rank": 3, "alpha": 12.0}, "trainable": ["norms", "embeddings"]}
EXPERTS = {"type": "experts", "num_experts": 4, "moe_intermediate_size": 12, "balance": 0.0}


def made(optim: dict[str, Any], mesh: dict[str, int] | None = None, **model: Any) -> Program:
    stage = {"steps": STEPS, "seq_len": T, "batch_size": B, "grad_accumulation": 2}
    settings = {"optim": OPTIM | optim, "model": SIZES | model, "stages": [stage]}
    config = TrainingConfig.model_validate({"name": "lora", "mesh": mesh or {}} | settings)
    placement = Placement(config.mesh, None if mesh else jax.devices()[:1])
    return Program(resolve_run(config), VOCABULARY, placement)


def trained(program: Program, state: TrainState) -> tuple[TrainState, list[float]]:
    norms, rows = [], program.placement.batch(batch, B)
    for _ in range(STEPS):
        state, metrics = program.stages[0].train_step(state, rows)
        norms.append(float(metrics.grad_norm))
    return jax.device_get(state), norms


def trained_by_hand(program: Program) -> tuple[dict[Any, Any], list[float]]:
    """Train A, B, norms and embeddings by plain AdamW; return the merged weights."""
    params, (factors, _) = program.fresh_state()
    flat, optim = flatten_dict(params), program.config.optim
    tree: dict[str, dict[Any, Any]] = {"lora_A": {}, "lora_B": {}, "whole": {}}
    for path, leaf in flatten_dict(factors).items():
        tree[path[-1]][path[:-1]] = leaf
    tree["whole"] = {path: leaf for path, leaf in flat.items() if path[-1] != "kernel"}

    def merged(tree: Any) -> dict[Any, Any]:
        changed = {
            path: flat[path] + 4.0 * jnp.swapaxes(b @ tree["lora_A"][path], -1, -2)
            for path, b in tree["lora_B"].items()
        }
        return flat | tree["whole"] | changed

    def loss(tree: Any, rows: Any) -> Any:
        frequencies = program.config.rope.scaling.frequencies(program.config.geometry)
        rotary = Rotary.shared(frequencies)
        return loss_sums(program.model, unflatten_dict(merged(tree)), rows, rotary).mean()

    adamw = optax.adamw(
        *(learning_rate(program.config), optim.b1, optim.b2, optim.eps),
        weight_decay=optim.weight_decay,
        mask={"lora_A": True, "lora_B": True, "whole": False},
    )
    transform = optax.chain(optax.clip_by_global_norm(optim.clip_norm), adamw)
    state, norms, gradient = transform.init(tree), [], jax.jit(jax.grad(loss))
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(STEPS):
            own = gradient(tree, batch())
            updates, state = transform.update(own, state, tree)
            tree = optax.apply_updates(tree, updates)
            norms.append(float(optax.tree.norm(own)))
    return merged(tree), norms


ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(
    ("modules", "model"),
    [
        (ATTENTION, {"layers": "unrolled"}),
        (ATTENTION, {"layers": "scanned"}),
        # [layers, experts, inputs, outputs]
        ({"gate_proj", "down_proj"}, {"feed_forward": EXPERTS}),
    ],
)
def test_a_run_is_lora_written_out(modules: set[str], model: dict[str, Any]) -> None:
    lora = LONG_LORA["lora"] | {"target_modules": sorted(modules)}
    program = made(LONG_LORA | {"lora": lora}, **model)
    first = program.fresh_state()
    before, factors = (flatten_dict(jax.device_get(x)) for x in (first.params, first[1].factors))
    for path, leaf in factors.items():  # A in ±1/√inputs
        largest = leaf.shape[-1] ** -0.5 if path[-1] == "lora_A" else 0
        assert 0.8 * largest <= np.abs(leaf).max() <= largest
    trains = [leaf for path, leaf in before.items() if path[-1] != "kernel"]
    numbers = sum(leaf.size for leaf in [*trains, *factors.values()])
    assert f" parameters, {numbers:,} trained" in program.describe_parameters()
    moments, counts = 2 * numbers, 2  # none of frozen weights
    adamw = program.abstract_state.opt_state.adamw
    assert bytes_per_device(adamw) == 4 * (moments + counts)

    state, norms = trained(program, first)
    wanted, norms_by_hand = trained_by_hand(program)
    np.testing.assert_allclose(norms, norms_by_hand, rtol=1e-5)
    for path, leaf in flatten_dict(state.params).items():
        np.testing.assert_allclose(leaf, wanted[path], atol=2e-6, err_msg=str(path))
        if path[-1] == "kernel" and path[-2] not in modules:
            assert same_bits(leaf, before[path])
        else:
            assert np.abs(leaf - before[path]).max() > 1e-3


def test_a_run_resumes_bit_equal(config: Any, tmp_path: Path) -> None:
    asked = config(tmp_path, optim={"warmup_steps": 2, **LONG_LORA})
    run = train(asked, quiet())
    abstract = Program(resolve_run(asked), 257, Placement(asked.mesh)).abstract_state

    def last() -> list[bytes]:
        state = Checkpoints(run.checkpoints).restore(9, abstract)
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]

    uninterrupted = last()
    shutil.rmtree(run.checkpoints / "9")
    train(asked, quiet())
    assert last() == uninterrupted


def test_a_mesh_trains_as_one_device() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "XLA_FLAGS": flags}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 0 <= float(done.stdout) < 2e-5


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    meshes = {"fsdp": 2, "tensor": 2, "data": 2}, None
    programs = [made(LONG_LORA, mesh) for mesh in meshes]
    states, norms = zip(*(trained(p, p.fresh_state()) for p in programs), strict=True)
    np.testing.assert_allclose(*norms, rtol=1e-4)
    far = jax.tree.map(lambda a, b: np.abs(a - b).max(), *states)
    print(max(map(float, jax.tree.leaves(far))))
