"""A config that is too large is refused before any work, naming the key that would help."""

import contextlib
import time

import jax
import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.resolve import resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.training import memory, run
from rope_jax.training.memory import check_size, compile_stages, compiled_bytes, stage_bound
from rope_jax.training.program import Program, StageProgram
from rope_jax.training.run import train
from tests.training.conftest import quiet


def sized(stage=None, **model):
    return TrainingConfig.model_validate(
        {
            "name": "size",
            "model": model,
            "optim": {"warmup_steps": 1},
            "stages": [
                {"steps": 5, "seq_len": 16, "batch_size": 2},
                {"steps": 5, "seq_len": 128, "batch_size": 16} | (stage or {}),
            ],
        }
    )


LARGEST = 2**31 - 1
TINY = {"hidden_size": 8, "intermediate_size": 8}
# 10^20 parameters: nothing overflows
HUGE = {"hidden_size": 2**20, "intermediate_size": LARGEST, "num_hidden_layers": 10_000}
HUGE |= {"num_attention_heads": 2, "head_dim": 2**16, "layers": "scanned"}


@pytest.mark.parametrize(
    ("config_", "message"),
    [
        (
            sized({"batch_size": LARGEST}, attention="blockwise"),
            r"^stages\[1\]: 2,147,483,647 × 128 tokens at a time take at least [\d,.]+ GiB per "
            r"device, but there are only 16\.0; lower stages\.1\.batch_size or stages\.1\.seq_len",
        ),
        (
            sized(num_hidden_layers=10_000, layers="scanned"),
            r"^model: its parameters, .* take at least 29\.\d GiB .*lower hidden_size, .*"
            r"split it with mesh\.fsdp over at least 2 devices$",
        ),
        (sized(**HUGE), r"^model: its parameters, "),
        (sized({"seq_len": 16}, num_hidden_layers=10_000, layers="scanned", **TINY), None),
    ],
)
def test_a_config_too_large_is_refused_at_once(monkeypatch, config_, message):
    monkeypatch.setattr(memory, "least_available", lambda *_: 16.0 * 2**30)
    refused = pytest.raises(UserError, match=message) if message else contextlib.nullcontext()
    began = time.process_time()
    with refused:
        check_size(Program(resolve_run(config_), 257, Placement(MeshConfig())))
    assert time.process_time() - began < 2


def test_the_compilers_figure_decides_what_the_estimate_lets_pass(config, tmp_path, monkeypatch):
    """Validation needs more than a training step of many micro-batches."""
    stage = {"steps": 5, "seq_len": 64, "batch_size": 256, "grad_accumulation": 256}
    made = config(tmp_path, stages=[stage], optim={"warmup_steps": 1})
    program = Program(resolve_run(made), 257, Placement(made.mesh))
    assert program.stages[0].validation_bytes > 2 * program.stages[0].train_bytes
    training, validation = (
        compiled_bytes(program, 0, validates=validates).total for validates in (False, True)
    )
    assert stage_bound(program, 0).total < training
    warnings = []

    def compile_with(available, validates=False, warn=pytest.fail):
        monkeypatch.setattr(memory, "least_available", lambda *_: available)
        check_size(program)
        compile_stages(program, [0], validates=validates, warn=warn)

    compile_with(1.01 * training, warn=warnings.append)
    assert "if the process is killed without a message" in warnings[-1]
    compile_with(2 * training)
    with pytest.raises(UserError, match=r"^stages\[0\]: 1 × 64 tokens at a time take at least"):
        compile_with(training - 100)
    with pytest.raises(UserError, match=r"^stages\[0\]: 256 × 64 tokens at a time in validation"):
        compile_with(validation - 100, validates=True)


def test_a_shortage_in_a_stage_is_one_line_and_only_stages_that_are_left_are_compiled(
    resumed, monkeypatch
):
    compiled = []

    def fails(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\n1")

    monkeypatch.setattr(run, "compile_stages", lambda _, numbers, **__: compiled.extend(numbers))
    monkeypatch.setattr(StageProgram, "train_step", fails)
    shortage = r"^stages\[1\]: there is not enough memory; .* lower stages\.1\.batch_size"
    with pytest.raises(UserError, match=shortage):
        train(resumed[0], quiet())
    assert compiled == [1]
