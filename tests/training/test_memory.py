"""A config that is too large is refused before any work, naming the key that would help."""

import shutil
import time
from pathlib import Path

import jax
import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.resolve import resolve_run
from rope_jax.training import memory, run
from rope_jax.training.memory import check_size, compile_stages, compiled_bytes, stage_bound
from rope_jax.training.program import Program, StageProgram
from rope_jax.training.run import train


def sized(stage=None, **model):
    return Config.model_validate(
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


@pytest.mark.parametrize(
    ("config_", "message"),
    [
        (
            sized({"batch_size": LARGEST}),
            r"^stages\[1\]: 2,147,483,647 × 128 tokens at a time take at least [\d,.]+ GiB per "
            r"device, but there are only 16\.0; raise stages\.1\.grad_accumulation, or set .*"
            r"or lower stages\.1\.batch_size, or split windows",
        ),
        (
            sized({"batch_size": 1, "seq_len": 10**9}, attention="xla"),
            r"; set model\.attention=blockwise, or set model\.remat=layer with "
            r"model\.layers=scanned, or lower stages\.1\.seq_len, or split windows over more "
            r"devices with mesh\.context$",
        ),
        (
            sized({"batch_size": 1, "seq_len": 10**9}, attention="blockwise", remat="layer"),
            r"; lower stages\.1\.seq_len, or split windows over more devices with mesh\.context$",
        ),
        (
            sized(num_hidden_layers=10_000, layers="scanned"),
            r"^model: its parameters, .* take at least 29\.\d GiB .*lower hidden_size, .*"
            r"split it with mesh\.fsdp over at least 2 devices$",
        ),
        (
            sized(  # 10^23 parameters: nothing overflows
                layers="scanned",
                hidden_size=LARGEST - 1,
                intermediate_size=LARGEST,
                num_hidden_layers=10_000,
                num_attention_heads=2,
                head_dim=2**16,
            ),
            r"^model: its parameters, ",
        ),
        (
            sized({"seq_len": 16, "batch_size": 2}, num_hidden_layers=10_000, **TINY),
            r"^model\.num_hidden_layers: 10,000 unrolled .*; set model\.layers=scanned",
        ),
        (sized({"seq_len": 16}, num_hidden_layers=10_000, layers="scanned", **TINY), None),
    ],
)
def test_a_config_too_large_is_refused_at_once(monkeypatch, config_, message):
    monkeypatch.setattr(memory, "least_available", lambda *_: 16.0 * 2**30)
    program, began = None, time.process_time()
    if message is not None:
        with pytest.raises(UserError, match=message):
            check_size(Program(resolve_run(config_), 257, Placement(MeshConfig())))
        assert time.process_time() - began < 2
        return
    program = Program(resolve_run(config_), 257, Placement(MeshConfig()))
    check_size(program)


def test_the_compilers_figure_decides_what_the_estimate_lets_pass(config, tmp_path, monkeypatch):
    made = config(tmp_path)
    program = Program(resolve_run(made), 257, Placement(made.mesh))
    stages = [compiled_bytes(program, number, validates=False).total for number in (0, 1)]
    bounds = [stage_bound(program, number).total for number in (0, 1)]
    assert all(bound < stage for bound, stage in zip(bounds, stages, strict=True))
    warnings = []

    def compile_with(available, **how):
        monkeypatch.setattr(memory, "least_available", lambda *_: available)
        check_size(program)
        compile_stages(program, [0, 1], validates=False, **how)

    compile_with(1.01 * max(stages), warn=warnings.append)
    assert "if the process is killed without a message" in warnings[-1]
    compile_with(2 * max(stages), warn=pytest.fail)
    with pytest.raises(UserError, match=r"^stages\[\d\]: \d × \d\d tokens at a time take at least"):
        compile_with(max(stages) - 100, warn=warnings.append)


def test_validation_may_need_more_than_a_training_step(config, tmp_path, monkeypatch):
    stage = {"steps": 5, "seq_len": 64, "batch_size": 256, "grad_accumulation": 256}
    config = config(tmp_path, stages=[stage], optim={"warmup_steps": 1})
    program = Program(resolve_run(config), 257, Placement(config.mesh))
    assert program.stages[0].validation_bytes > 2 * program.stages[0].train_bytes
    monkeypatch.setattr(memory, "least_available", lambda *_: 2 * program.stages[0].train_bytes)
    compile_stages(program, [0], validates=False, warn=lambda _: None)
    with pytest.raises(UserError, match=r"^stages\[0\]: 256 × 64 tokens at a time in validation"):
        compile_stages(program, [0], validates=True, warn=pytest.fail)


def test_a_run_refused_by_the_compilers_figure_writes_nothing(config, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "least_available", lambda *_: 2**16)
    monkeypatch.setattr(run, "check_size", lambda *_: None)
    with pytest.raises(UserError, match=r"^model: its parameters, .* only 6\.1e-05; lower"):
        train(config(tmp_path), plain_console(quiet=True))
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def resumed(whole, tmp_path):
    """The config of a copy of a run, of which the last step is left."""
    runs = Path(shutil.copytree(whole[1].path.parent, tmp_path / "runs"))
    shutil.rmtree(runs / "tiny" / "checkpoints" / "9")
    return whole[0].model_copy(update={"runs_dir": str(runs)})


def test_a_shortage_in_a_stage_is_one_line_and_only_stages_that_are_left_are_compiled(
    resumed, monkeypatch
):
    compiled, compile_all = [], run.compile_stages

    def counted(program, numbers, **how):
        compiled.extend(numbers)
        compile_all(program, numbers, **how)

    def fails(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\n1")

    monkeypatch.setattr(run, "compile_stages", counted)
    monkeypatch.setattr(StageProgram, "train_step", fails)
    with pytest.raises(UserError) as caught:
        train(resumed, plain_console(quiet=True))
    assert compiled == [1]
    said = str(caught.value)
    assert said.startswith("stages[1]: there is not enough memory; end other programs")
    assert said.endswith("or lower stages.1.batch_size or stages.1.seq_len, under another name")
