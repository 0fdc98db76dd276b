"""What a plan says: counts that can be checked by hand, and what training would refuse."""

import shlex

import jax
import pytest

from rope_jax.commands.main import plan
from rope_jax.config.load import load
from rope_jax.config.resolve import resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.cost import window_flops
from rope_jax.planning.plan import plan_stage, planned_vocabulary
from rope_jax.training.memory import stage_bound
from rope_jax.training.program import Program
from rope_jax.training.run import flops_after

RUN = """\
name: small
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
stages:
  - {steps: 20, seq_len: 16, batch_size: 4}
  - {steps: 5, seq_len: 64, batch_size: 2}
optim: {warmup_steps: 5}
"""


@pytest.fixture
def planned(tmp_path, monkeypatch, capsys):
    """Return a function that plans, in a folder with run.yaml, and returns what is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("rope_jax.planning.plan.peak_flops", lambda *_: (1e9, "assumed"))
    monkeypatch.setattr("rope_jax.planning.plan.device_bytes", lambda _: 2**30)
    (tmp_path / "run.yaml").write_text(RUN)

    def planned(*words):
        plan(list(words))
        return capsys.readouterr().out

    return planned


def test_a_plan_of_training_counts_parameters_tokens_and_bytes(planned, tmp_path, monkeypatch):
    plans = []

    def recorded(program, number, *, validates):
        assert validates
        plans.append(plan_stage(program, number, validates=validates))
        return plans[-1]

    monkeypatch.setattr("rope_jax.planning.plan.plan_stage", recorded)
    out = planned("run.yaml", "seed=1")
    config = load(TrainingConfig, tmp_path / "run.yaml")
    program = Program(resolve_run(config), ByteTokenizer().vocab_size, Placement(config.mesh))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(program.abstract_state.params))
    assert f"{parameters:,} parameters, a vocabulary of 257" in out
    assert "1,920 tokens in 25 steps" in out  # 20 × 4 × 16 + 5 × 2 × 64
    assert f"{1920 / parameters:.3g} per parameter" in " ".join(out.split())
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}
    assert rows["windows"] == ["4", "×", "16", "2", "×", "64"]
    state = program.abstract_state
    for name, tree in (("parameters", state.params), ("optimizer", state.opt_state)):
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        assert rows[name] == [f"{size / 2**20:.2f}"] * 2
    bounds = [stage_bound(program, number).total for number in (0, 1)]
    compiled = [stage.bytes.total for stage in plans]
    assert all(map(int.__lt__, bounds, compiled))
    assert rows["at"] == ["least*", *(f"{size / 2**20:.2f}" for size in bounds)]
    assert rows["compiled"] == [f"{size / 2**20:.2f}" for size in compiled]
    assert rows["left"] == [f"{1024 - size / 2**20:,.2f}" for size in compiled]
    assert out.splitlines()[-1] == "next: rope-jax train run.yaml seed=1"
    assert not (tmp_path / "runs").exists()


def time_of(flops):
    return describe_duration(flops / (0.9 * 1e9))  # the part of the assumed peak that is reached


def test_a_plan_of_a_sweep_counts_measurements(planned, tmp_path):
    (tmp_path / "s.yaml").write_text(
        "scalings: [trained, {type: pi, factor: auto}]\nlengths: [16]\ntargets: 8\n"
    )
    steps = "stages.0.steps=500000"
    out = planned("run.yaml", steps, "--sweep", "s.yaml")
    config = load(TrainingConfig, tmp_path / "run.yaml", [steps])
    training = time_of(flops_after(0, config, 257))
    assert f"  time      {training}, compiling and validation not counted" in out
    assert "plan of the sweep sweep of small" in out
    assert "measurements  2 per checkpoint" in out
    run = tmp_path / "runs/small"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(RUN)
    given = "lengths=[16,64,128]", "max_documents=20000"
    out = planned("runs/small", "--sweep", "s.yaml", *given)
    assert "measurements  6 per checkpoint" in out
    # up to the window of 64 tokens, the automatic factor is 1, and both curves are one reading
    short, window, long = (window_flops(config.model.spec(), 257, n, 8) for n in (16, 64, 128))
    flops = 20000 * (short + window + 2 * long)
    assert f"{flops:.3g} FLOPs for one block of each document" in out
    assert f"\ntime: {time_of(flops)}, compiling not counted; at 1 GFLOP/s, 90% of 1 (" in out
    line = f"next: rope-jax sweep runs/small --sweep s.yaml {shlex.join(given)}"
    assert out.splitlines()[-1] == line


def test_what_does_not_fit_is_refused_as_training_refuses_it(planned, capsys):
    with pytest.raises(UserError, match=r"^stages\[1\]: "):
        planned("run.yaml", "stages.1.seq_len=1000000000")
    assert "at least*" in capsys.readouterr().out  # what takes so much is shown first


def test_a_tokenizer_that_is_not_trained_yet_counts_as_large_as_asked_for(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    size = ["tokenizer.type=bpe", "tokenizer.vocab_size=1000"]
    assert planned_vocabulary(load(TrainingConfig, tmp_path / "run.yaml", size)) == 1000
    assert planned_vocabulary(load(TrainingConfig, tmp_path / "run.yaml")) == 257
