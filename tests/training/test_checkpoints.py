"""A damaged checkpoint is always detected: every file is cut, emptied, removed or changed.

A checkpoint that could not be read is not mistaken for a damaged one.
"""

import asyncio
import errno
import gc
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rope_jax.errors import UserError
from rope_jax.training.checkpoints import (
    Checkpoints,
    DamagedCheckpoint,
    newest_params,
    params_at,
    saved_steps,
)
from rope_jax.training.step import TrainState


def state(seed: int) -> TrainState:
    keys = jax.random.split(jax.random.key(seed), 2)
    params = {
        "layers": {"kernel": jax.random.normal(keys[0], (2, 16, 8))},
        "norm": jax.random.normal(keys[1], (16,)),
    }
    opt_state = optax.adamw(1e-3).init(params)
    return TrainState(params, jax.tree.map(lambda x: x + jnp.asarray(seed, x.dtype), opt_state))


def same(one: object, other: object) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save steps 1 to 4, of which the newest three are kept."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = Checkpoints(folder, keep=3)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state(step))
    checkpoints.wait()
    checkpoints.close()
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def restore(folder: Path) -> tuple[int, TrainState | None, list[str]]:
    """Restore the newest checkpoint; return (step, state, warnings)."""
    warnings: list[str] = []
    checkpoints = Checkpoints(folder, keep=3)
    step, found = checkpoints.restore_newest(state(0), warn=warnings.append)
    checkpoints.close()
    return step, found, warnings


def test_the_newest_is_restored_to_the_bit(copy: Path) -> None:
    step, found, warnings = restore(copy)
    assert (step, warnings) == (4, [])
    assert same(found, state(4))
    assert sorted(path.name for path in copy.iterdir()) == ["2", "3", "4"]


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [_cut, _empty, Path.unlink])
def test_a_damaged_file_is_never_restored(
    saved: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    fell_back = []
    for index, name in enumerate(files_of(saved / "4")):
        folder = Path(shutil.copytree(saved, tmp_path / str(index) / "checkpoints"))
        damage(folder / "4" / name)
        step, found, warnings = restore(folder)
        # Losing a file that restoring does not read does no harm: the state is as saved.
        assert same(found, state(step)), name
        assert step in (3, 4), name
        if step == 3:
            fell_back.append(name)
            assert len(warnings) == 1, name
            assert "the checkpoint of step 4 is damaged (" in warnings[0]
            assert warnings[0].endswith("; using step 3")
            assert [p.name for p in (folder.parent / "damaged").iterdir()] == ["4-0"]
    assert any("/d/" in name for name in fell_back)  # the numbers themselves
    assert any(name.startswith("opt_state") for name in fell_back)


def test_a_flipped_bit_is_detected(copy: Path) -> None:
    for path in copy.glob("4/**/d/*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    step, found, warnings = restore(copy)
    assert step == 3
    assert len(warnings) == 1
    assert same(found, state(3))


def test_other_numbers_of_the_same_shapes_are_detected(copy: Path) -> None:
    shutil.rmtree(copy / "4/params")
    shutil.copytree(copy / "2/params", copy / "4/params")
    step, _, warnings = restore(copy)
    assert step == 3
    assert "the params are not those that were saved" in warnings[0]


def test_the_step_of_a_damaged_checkpoint_can_be_saved_again(copy: Path) -> None:
    shutil.rmtree(copy / "4/opt_state")
    warnings: list[str] = []
    checkpoints = Checkpoints(copy, keep=3)
    assert checkpoints.restore_newest(state(0), warn=warnings.append)[0] == 3
    checkpoints.save(4, state(4))
    checkpoints.wait()
    checkpoints.close()
    assert restore(copy)[0] == 4


def test_several_damaged_checkpoints_are_skipped(copy: Path) -> None:
    for step in (3, 4):
        shutil.rmtree(copy / str(step) / "params")
    step, found, warnings = restore(copy)
    assert (step, len(warnings)) == (2, 2)
    assert same(found, state(2))


def test_if_all_are_damaged_training_does_not_start_over(copy: Path) -> None:
    for step in (2, 3, 4):
        shutil.rmtree(copy / str(step) / "params")
    with pytest.raises(
        UserError, match=r"of step 4 is damaged \(.*\), and so is every other; .*delete the run"
    ):
        restore(copy)
    assert sorted(path.name for path in copy.iterdir()) == ["2", "3", "4"]


@pytest.mark.parametrize("name", ["[red]x", "[2024] runs", "a*b", "a?b", "back\\slash", "[]"])
def test_a_folder_name_may_look_like_a_pattern(tmp_path: Path, name: str) -> None:
    (tmp_path / "aXb" / "checkpoints").mkdir(parents=True)  # some of the patterns match it
    folder = tmp_path / name / "checkpoints"
    checkpoints = Checkpoints(folder, keep=3)
    checkpoints.save(4, state(4))
    checkpoints.wait()
    checkpoints.close()
    assert [path.name for path in folder.iterdir()] == ["4"]
    step, restored, warnings = restore(folder)
    assert (step, warnings) == (4, [])
    assert same(restored, state(4))
    assert not list((tmp_path / "aXb" / "checkpoints").iterdir())


def test_an_empty_folder_holds_no_state(tmp_path: Path) -> None:
    assert restore(tmp_path / "checkpoints") == (0, None, [])


def test_leftovers_of_a_killed_save_are_removed(copy: Path) -> None:
    left = copy / "5.orbax-checkpoint-tmp"
    shutil.copytree(copy / "4", left)
    step, _, warnings = restore(copy)
    assert (step, warnings) == (4, [])
    assert not left.exists()


def test_a_link_in_place_of_a_leftover_is_removed_and_not_followed(
    copy: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    left = copy / "5.orbax-checkpoint-tmp"
    left.symlink_to(tmp_path / "mine")
    assert restore(copy)[0] == 4
    assert not left.is_symlink()
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_reading_the_parameters_changes_nothing(copy: Path) -> None:
    shutil.rmtree(copy / "4/params")
    before = files_of(copy)
    warnings: list[str] = []
    step, params = newest_params(copy, state(0).params, warn=warnings.append)
    assert step == 3
    assert same(params, state(3).params)
    assert "using step 3" in warnings[0]
    assert files_of(copy) == before
    assert not (copy.parent / "damaged").exists()


def test_the_parameters_of_a_chosen_step_are_read(copy: Path, tmp_path: Path) -> None:
    assert saved_steps(copy) == [2, 3, 4]
    assert same(params_at(copy, 2, state(0).params), state(2).params)
    shutil.rmtree(copy / "3/params")
    with pytest.raises(DamagedCheckpoint, match=r"the checkpoint of step 3 is damaged \("):
        params_at(copy, 3, state(0).params)
    assert saved_steps(tmp_path / "nowhere") == []


def test_a_checkpoint_that_training_deletes_during_a_sweep_is_not_damaged(copy: Path) -> None:
    warnings: list[str] = []
    checkpoints = Checkpoints(copy)
    shutil.rmtree(copy / "4")
    abstract = TrainState(state(0).params, None)
    step, found = checkpoints.restore_newest(abstract, warn=warnings.append)
    checkpoints.close()
    assert (step, warnings) == (3, [])
    assert same(found, TrainState(state(3).params, None))


def test_a_folder_that_cannot_be_written_is_reported(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(copy, keep=3)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(checkpoints._manager, "save", lambda *_, **__: (_ for _ in ()).throw(full))
    with pytest.raises(UserError, match=r"No space left on device\); that of step 4 is complete"):
        checkpoints.save(5, state(5))
    checkpoints.close()


def test_flipped_signs_do_not_cancel_in_the_fingerprint() -> None:
    from rope_jax.training.checkpoints import _fingerprint

    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    y = x.copy()
    y[3] = -y[3]  # 64 sign bits: for any odd weights their sum is a multiple of 2^32
    moved = np.roll(x, 1, axis=0)
    fingerprints = {_fingerprint(jnp.asarray(a)) for a in (x, y, moved, x + 0)}
    assert len(fingerprints) == 3


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
    ],
    ids=repr,
)
def test_a_checkpoint_that_could_not_be_read_is_not_damaged(
    copy: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    shutil.rmtree(copy / "4" / "params")  # a newer one is really damaged: it is not moved either
    before = files_of(copy.parent)
    checkpoints = Checkpoints(copy, keep=3)
    restored = checkpoints._manager.restore

    def restore_or_fail(step: int, **settings: object) -> object:
        if step == 3:
            raise error
        return restored(step, **settings)

    monkeypatch.setattr(checkpoints._manager, "restore", restore_or_fail)
    message = (
        r"checkpoints/3: the checkpoint could not be read \(.+\); nothing was changed; try again"
    )
    warnings: list[str] = []
    with pytest.raises(UserError, match=message) as refused:
        checkpoints.restore_newest(state(0), warn=warnings.append)
    assert not isinstance(refused.value, DamagedCheckpoint)
    with pytest.raises(UserError, match=message):
        checkpoints.restore_newest(TrainState(state(0).params, None), warn=warnings.append)
    checkpoints.close()
    assert warnings == []
    assert files_of(copy.parent) == before
    assert restore(copy)[0] == 3  # the next attempt reads it


def test_an_io_error_of_the_system_is_not_damage(copy: Path) -> None:
    metadata = copy / "4" / "params" / "_METADATA"
    content = metadata.read_bytes()
    metadata.unlink()
    metadata.symlink_to("/proc/self/mem")  # reading its first page fails: EIO
    with pytest.raises(UserError, match=r"could not be read \(.*Input/output error"):
        restore(copy)
    assert not (copy.parent / "damaged").exists()
    metadata.unlink()
    metadata.write_bytes(content)
    assert restore(copy)[0] == 4


def test_only_complaints_about_orbaxs_abandoned_tasks_are_silenced(
    copy: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in copy.glob("4/**/d/*"):
        path.write_bytes(b"")
    assert restore(copy)[0] == 3
    gc.collect()
    assert caplog.records == []

    for name in ("absl", "asyncio"):
        assert logging.getLogger(name).isEnabledFor(logging.WARNING)
        logging.getLogger(name).warning("of another library")

    async def fails() -> None:
        raise ValueError("of another library")

    async def abandons() -> None:
        task = asyncio.ensure_future(fails())
        await asyncio.sleep(0)
        del task

    asyncio.run(abandons())
    gc.collect()
    assert [record.name for record in caplog.records] == ["absl", "asyncio", "asyncio"]
    assert "of another library" in caplog.text
