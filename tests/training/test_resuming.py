"""A finished run that is asked for more steps: it goes on where its learning rate allows it."""

import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.resolve import resolve_run
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.program import Program
from rope_jax.training.provenance import provenance_of, same_until
from rope_jax.training.run import train

pytestmark = pytest.mark.usefixtures("compiled_quickly")

CONSTANT = {"warmup_steps": 2, "final_lr_fraction": 1}
STAGE = {"steps": 4, "seq_len": 16, "batch_size": 4}


def stages(*steps: int, **more: object) -> list[dict]:
    return [STAGE | {"steps": count} for count in steps[:1]] + [
        STAGE | {"steps": count} | more for count in steps[1:]
    ]


def parameters(run: RunDirectory, config: Config) -> list[np.ndarray]:
    corpus = open_corpus(config.data, ByteTokenizer())
    program = Program(resolve_run(config), ByteTokenizer().vocab_size, Placement(config.mesh))
    checkpoints = Checkpoints(
        run.checkpoints, 9, provenance_of(config, corpus), program.abstract_state
    )
    _, state = checkpoints.restore_newest(program.abstract_state, print)
    checkpoints.close()
    return jax.tree.leaves(jax.device_get(state))


@pytest.mark.parametrize(
    ("old", "new", "optim"),
    [
        (stages(4), stages(7), CONSTANT),
        (stages(4), stages(4, 3, learning_rate=1e-3), {"warmup_steps": 1}),
    ],
    ids=["a constant rate", "a stage with a rate of its own"],
)
def test_it_equals_a_run_that_had_the_steps_from_the_beginning(
    config: Callable[..., Config], tmp_path: Path, old: list, new: list, optim: dict
) -> None:
    short = config(tmp_path, stages=old, optim=optim)
    run = train(short, plain_console(quiet=True))
    asked = config(tmp_path, stages=new, optim=optim)
    train(asked, plain_console(quiet=True))
    whole = config(tmp_path, stages=new, optim=optim, name="whole")
    wanted = train(whole, plain_console(quiet=True))
    for one, other in zip(parameters(run, asked), parameters(wanted, whole), strict=True):
        np.testing.assert_array_equal(one, other)
    steps = [json.loads(line)["step"] for line in run.metrics_file.read_text().splitlines()]
    assert steps == sorted(steps)
    assert {1, 4, 6, 7} <= set(steps) | {1}
    assert run.load_config() == asked


def test_a_schedule_that_has_decayed_says_what_to_do(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    short = config(tmp_path, stages=stages(4), optim={})
    run = train(short, plain_console(quiet=True))
    before = run.config_file.read_bytes()
    with pytest.raises(UserError) as caught:
        train(config(tmp_path, stages=stages(8), optim={}), plain_console(quiet=True))
    assert str(caught.value) == (
        f"{run.path}: holds a run with another stages.0.steps; its learning rate is planned for 4 "
        "steps (cosine), and 8 would change the steps it has trained; keep them and give its "
        "config another stage, with a learning_rate of its own, or start a new run: name=NEW "
        f"init_from={run.path}"
    )
    assert run.config_file.read_bytes() == before
    with pytest.raises(UserError, match=r"another stages.0.steps; it has been trained to step 4 a"):
        train(config(tmp_path, stages=stages(3), optim={}), plain_console(quiet=True))
    with pytest.raises(UserError, match=r"another seed; give this one another name, or delete"):
        train(config(tmp_path, stages=stages(4), optim={}, seed=1), plain_console(quiet=True))


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
    more = made(20, 5, learning_rate=1e-3)
    assert same_until(base, more, 20)
    assert not same_until(base, more, 21)
    # without a rate of its own a stage lengthens the schedule before it
    assert not same_until(base, made(20, 5), 20)
