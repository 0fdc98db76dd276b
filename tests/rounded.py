"""Runs whose weights are kept in bfloat16, as those of imported models may be."""

import contextlib
import shutil

import jax
import jax.numpy as jnp

from rope_jax.config.devices import MeshConfig
from rope_jax.config.load import dump
from rope_jax.config.resolve import resolve_run
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.training.checkpoints import Checkpoints, newest_step
from rope_jax.training.program import Program
from rope_jax.training.provenance import provenance_of


def rounded_copy(run, config, folder, dtype="bfloat16", step=0):
    """Copy a run's last checkpoint to a run in `folder`, at `step` and in another type.

    Returns its directory, its config, and its parameters.
    """
    model = config.model.model_copy(update={"param_dtype": dtype})
    new = config.model_copy(update={"model": model, "runs_dir": str(folder)})
    copied = type(run)(folder / run.path.name)
    copied.path.mkdir(parents=True)
    shutil.copy(run.environment_file, copied.environment_file)
    copied.config_file.write_text(dump(new))
    tokenizer = ByteTokenizer()
    like = Program(
        resolve_run(config), tokenizer.vocab_size, Placement(MeshConfig())
    ).abstract_state
    with contextlib.closing(Checkpoints(run.checkpoints)) as checkpoints:
        state = checkpoints.restore(newest_step(run.checkpoints), like)
    # and back, so that a copy in float32 holds the same numbers
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(dtype), state.params)
    provenance = provenance_of(new, open_corpus(config.data, tokenizer))
    with contextlib.closing(Checkpoints(copied.checkpoints, 1, provenance)) as checkpoints:
        checkpoints.save(step, state._replace(params=params))
        checkpoints.wait()
    return copied, new, params
