"""A finished run that is asked for more steps: it goes on where its learning rate allows it."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.resolve import resolve_run
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.program import Program
from rope_jax.training.provenance import same_until
from rope_jax.training.run import train

STAGE = {"steps": 4, "seq_len": 16, "batch_size": 4}


def stages(*steps: int, **more: object) -> list[dict]:
    return [STAGE | {"steps": count} for count in steps[:1]] + [
        STAGE | {"steps": count} | more for count in steps[1:]
    ]


def state(run: RunDirectory, config: Config) -> list[np.ndarray]:
    program = Program(resolve_run(config), ByteTokenizer().vocab_size, Placement(config.mesh))
    with contextlib.closing(Checkpoints(run.checkpoints)) as checkpoints:
        _, state = checkpoints.restore_newest(program.abstract_state, pytest.fail)
    return jax.tree.leaves(jax.device_get(state))


def test_another_stage_equals_a_run_that_had_it_from_the_beginning(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    def made(*steps: int, **changes: object) -> Config:
        given = {"stages": stages(*steps, learning_rate=1e-3), "optim": {"warmup_steps": 1}}
        return config(tmp_path, **given | changes)

    run, asked = train(made(4), plain_console(quiet=True)), made(4, 3)
    before = run.config_file.read_bytes()
    with pytest.raises(UserError) as caught:
        train(made(8), plain_console(quiet=True))
    assert str(caught.value) == (
        f"{run.path}: holds a run with another stages.0.steps; its learning rate is planned for 4 "
        "steps (cosine), and 8 would change the steps it has trained; keep them and give its "
        "config another stage, with a learning_rate of its own, or start a new run: name=NEW "
        f"init_from={run.path}"
    )
    with pytest.raises(UserError, match=r"another seed; give this one another name, or delete"):
        train(made(4, seed=1), plain_console(quiet=True))
    assert run.config_file.read_bytes() == before
    train(asked, plain_console(quiet=True))
    whole = train(made(4, 3, name="whole"), plain_console(quiet=True))
    for one, other in zip(state(run, asked), state(whole, asked), strict=True):
        np.testing.assert_array_equal(one, other)
    steps = [json.loads(line)["step"] for line in run.metrics_file.read_text().splitlines()]
    assert steps == sorted(steps)
    assert {4, 6, 7} <= set(steps)
    assert run.load_config() == asked


def test_the_first_steps_are_the_same_or_not(config: Callable[..., Config], tmp_path: Path) -> None:
    def made(*steps: int, optim: dict | None = None, **stage: object) -> Config:
        return config(tmp_path, stages=stages(*steps, **stage), optim=optim or {})

    base = made(20)
    assert same_until(base, base, 20)
    assert not same_until(base, made(10), 20)  # it ended before
    assert not same_until(base, made(40), 2)  # 2 steps of warm-up became 4
    assert not same_until(base, made(40, optim={"warmup_steps": 2}), 5)  # the cosine is longer
    assert same_until(base, made(20, optim={"warmup_steps": 2}), 20)  # a tenth, spelled out
    wsd = {"schedule": "wsd", "warmup_steps": 2}
    short, long = made(20, optim=wsd), made(40, optim=wsd)
    # constant until the last fifth of 18 steps
    assert same_until(short, long, 17)
    assert not same_until(short, long, 19)
    assert not same_until(base, config(tmp_path, stages=stages(20), optim={"b1": 0.8}), 5)
    other = config(tmp_path, stages=[STAGE | {"steps": 20, "batch_size": 2}], optim={})
    assert not same_until(base, other, 5)
    constant = {"warmup_steps": 2, "final_lr_fraction": 1}
    assert same_until(made(20, optim=constant), made(40, optim=constant), 20)
    more = made(20, 5, learning_rate=1e-3)
    assert same_until(base, more, 20)
    assert not same_until(base, more, 21)
    # without a rate of its own a stage lengthens the schedule before it
    assert not same_until(base, made(20, 5), 20)
