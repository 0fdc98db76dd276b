"""A config that is too large is refused before any work, naming the key that would help."""

import functools
import time

import jax
import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.resolve import resolve_run
from rope_jax.training import memory
from rope_jax.training.loop import Trainer
from rope_jax.training.memory import check_size, compile_stages, compiled_bytes, stage_bound
from rope_jax.training.program import Program, StageProgram
from rope_jax.training.run import train

pytestmark = pytest.mark.usefixtures("compiled_quickly")


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


@pytest.fixture
def check(monkeypatch):
    """Return a function that checks a config against a size of memory."""

    def check(config, gib=16.0):
        monkeypatch.setattr(memory, "least_available", lambda *_: gib * 2**30)
        check_size(Program(resolve_run(config), 257, Placement(MeshConfig())))

    return check


LARGEST = 2**31 - 1


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
            sized({"batch_size": 2**19, "grad_accumulation": 2**10}),
            r"^stages\[1\]: 524,288 × 128 tokens at a time in validation take at least 33",
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
        (sized(hidden_size=2**16), r"^model: its parameters, .* over at least 65 devices$"),
        (sized(intermediate_size=LARGEST), r"^model: its parameters, .*intermediate_size"),
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
            sized(
                {"seq_len": 16, "batch_size": 2},
                num_hidden_layers=10_000,
                hidden_size=8,
                intermediate_size=8,
            ),
            r"^model\.num_hidden_layers: 10,000 unrolled .*; set model\.layers=scanned",
        ),
    ],
)
def test_a_config_too_large_is_refused_at_once(check, config_, message):
    began = time.process_time()
    with pytest.raises(UserError, match=message):
        check(config_)
    assert time.process_time() - began < 2


def test_the_demo_fits_into_half_a_gibibyte(check):
    check(sized(), gib=0.5)


def test_many_scanned_layers_are_one_program(check):
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 10_000}
    check(sized({"seq_len": 16, "batch_size": 2}, layers="scanned", **small))


def test_validation_counts_only_if_there_may_be_text_for_it(check):
    large = sized({"batch_size": 2**19, "grad_accumulation": 2**10})
    without = large.data.model_copy(update={"validation_fraction": 0.0})
    check(large.model_copy(update={"data": without}))


@pytest.fixture
def program(config, tmp_path):
    """Return the program of the tiny run."""
    config = config(tmp_path)
    return Program(resolve_run(config), 257, Placement(config.mesh))


def test_the_compilers_figure_decides_what_the_estimate_lets_pass(program, monkeypatch):
    stages = [compiled_bytes(program, number, validates=True) for number in (0, 1)]
    bounds = [stage_bound(program, number, validates=True) for number in (0, 1)]
    assert all(bound.total < stage.total for bound, stage in zip(bounds, stages, strict=True))
    leaves = jax.tree.leaves(program.abstract_state)
    copy = 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    needed = copy + max(stage.step for stage in stages)
    monkeypatch.setattr(memory, "least_available", lambda *_: needed + copy // 100)
    check_size(program)
    warnings = []
    compile_stages(program, [0, 1], validates=True, warn=warnings.append)
    assert "if the process is killed without a message" in warnings[-1]
    monkeypatch.setattr(memory, "least_available", lambda *_: 2 * needed)
    compile_stages(program, [0, 1], validates=True, warn=pytest.fail)
    monkeypatch.setattr(memory, "least_available", lambda *_: stages[1].total - 100)
    check_size(program)
    with pytest.raises(UserError, match=r"^stages\[\d\]: \d × \d\d tokens at a time take at least"):
        compile_stages(program, [0, 1], validates=True, warn=warnings.append)


def test_validation_may_need_more_than_a_training_step(config, tmp_path, monkeypatch):
    stage = {"steps": 5, "seq_len": 64, "batch_size": 256, "grad_accumulation": 256}
    config = config(tmp_path, stages=[stage], optim={"warmup_steps": 1})
    program = Program(resolve_run(config), 257, Placement(config.mesh))
    assert program.stage(0).validation_bytes > 2 * program.stage(0).train_bytes
    monkeypatch.setattr(memory, "least_available", lambda *_: 2 * program.stage(0).train_bytes)
    compile_stages(program, [0], validates=False, warn=lambda _: None)
    with pytest.raises(UserError, match=r"^stages\[0\]: 256 × 64 tokens at a time in validation"):
        compile_stages(program, [0], validates=True, warn=pytest.fail)


def test_a_run_refused_by_the_compilers_figure_writes_nothing(config, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "least_available", lambda *_: 2**16)
    monkeypatch.setattr("rope_jax.training.run.check_size", lambda *_: None)
    with pytest.raises(
        UserError, match=r"^model: its parameters, .* there are only 6\.1e-05; lower"
    ):
        train(config(tmp_path), plain_console(quiet=True))
    assert not (tmp_path / "runs").exists()


def test_memory_that_runs_out_while_training_is_one_line(config, tmp_path, monkeypatch):
    def fails(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\n1")

    config, whole = config(tmp_path), StageProgram.train_step

    def second_stage_fails(stage, state, batch):
        return fails() if batch.tokens.shape[1] == 32 else whole(stage, state, batch)

    monkeypatch.setattr(StageProgram, "train_step", second_stage_fails)
    with pytest.raises(UserError) as caught:
        train(config, plain_console(quiet=True))
    assert str(caught.value).startswith("stages[1]: there is not enough memory; end other programs")
    assert "or lower stages.1.batch_size or stages.1.seq_len, under another name" in str(
        caught.value
    )
    monkeypatch.undo()
    train(config, plain_console(quiet=True))  # continues, as the message says


def test_a_resumed_run_compiles_only_the_stages_that_are_left(config, tmp_path, monkeypatch):
    def stops(*_):
        raise KeyboardInterrupt

    config, compiled = config(tmp_path), []
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_log_step", lambda self, span, step, *_: step > 7 and stops())
        with pytest.raises(KeyboardInterrupt):
            train(config, plain_console(quiet=True))
    whole = StageProgram.__dict__["compiled_step"].func
    counted = functools.cached_property(
        lambda stage: compiled.append(stage._number) or whole(stage)
    )
    counted.__set_name__(StageProgram, "compiled_step")
    monkeypatch.setattr(StageProgram, "compiled_step", counted)
    train(config, plain_console(quiet=True))
    assert compiled == [1]
