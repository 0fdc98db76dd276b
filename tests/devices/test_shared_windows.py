"""A program whose devices share windows runs with parameters that are placed for another mesh."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import jax
import numpy as np
from rope_jax.config.devices import MeshConfig
from rope_jax.config.model import ModelConfig
from rope_jax.devices.mesh import Placement
from rope_jax.evaluation.decoder import scores_of_last
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.resolve import resolve_model
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling

config = ModelConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     attention="blockwise", layers="scanned")
model = LanguageModel(resolve_model(config), 257)
apart = Placement(MeshConfig())
params = model.init(0)
placed = jax.device_put(params, jax.tree.map(
    lambda leaf: leaf.sharding, apart.shard_state(jax.eval_shape(lambda: params))))
layers = RotaryLayers(RotaryGeometry(rotary_dim=8, train_length=64))
rotary = layers.rotary(parse_scaling({"type": "none"}), np.arange(64)[None], 64)
for rows in (1, 3):
    tokens = np.random.default_rng(rows).integers(0, 257, (rows, 65)).astype(np.int32)
    alone = jax.jit(scores_of_last(model, Placement(MeshConfig(), jax.devices()[:1])),
                    static_argnums=3)(params, tokens, rotary, 16)
    for context in (2, 8):
        shared = scores_of_last(model, apart.sharing_windows(context))
        found = jax.jit(shared, static_argnums=3)(placed, tokens, rotary, 16)
        np.testing.assert_allclose(found.nll, alone.nll, rtol=2e-5)
        np.testing.assert_array_equal(found.is_top1, alone.is_top1)
"""


@pytest.mark.usefixtures("commands_compile_quickly")
def test_devices_that_share_windows_take_parameters_placed_for_devices_that_do_not() -> None:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
