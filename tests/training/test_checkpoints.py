"""A damaged checkpoint is always detected: every file is cut, emptied, removed or changed.

A checkpoint that could not be read is not mistaken for a damaged one.
"""

import errno
import gc
import itertools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rope_jax.config.inherit import saved_steps
from rope_jax.errors import UserError
from rope_jax.training.checkpoints import (
    Checkpoints,
    DamagedCheckpoint,
    _fingerprint,
    brief_reason,
    newest_params,
    params_at,
    shows_damage,
    silence_leftovers,
)
from rope_jax.training.step import TrainState


def state(seed: int) -> TrainState:
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape).astype(np.float32))

    params = {"layers": {"kernel": numbers(2, 16, 8)}, "norm": numbers(16)}
    adam = optax.ScaleByAdamState(jnp.asarray(seed), numbers(16), numbers(2, 16, 8))
    return TrainState(params, (adam, optax.EmptyState()))


def same(one: object, other: object) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def save(folder: Path, *steps: int) -> None:
    checkpoints = Checkpoints(folder, keep=3, provenance={"corpus": "some", "config": {}})
    for step in steps:
        checkpoints.save(step, state(step))
    checkpoints.wait()
    checkpoints.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save steps 1 to 4, of which the newest three are kept."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    save(folder, 1, 2, 3, 4)
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


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_file_is_never_restored(saved: Path, tmp_path: Path) -> None:
    fell_back, damages = [], itertools.cycle([_cut, _empty, Path.unlink])
    # one file of numbers in each folder, and all others
    kinds = {name.rpartition("/d/")[0] or name: name for name in files_of(saved / "4")}
    for index, name in enumerate(kinds.values()):
        folder = Path(shutil.copytree(saved, tmp_path / str(index) / "checkpoints"))
        next(damages)(folder / "4" / name)
        step, found, warnings = restore(folder)
        # Losing a file that restoring does not read does no harm: the state is as saved.
        assert same(found, state(step)), name
        assert (step, len(warnings)) in ((3, 1), (4, 0)), name
        fell_back += [name] * (step == 3)
    assert any("/d/" in name for name in fell_back)  # the numbers themselves
    assert any(name.startswith("opt_state") for name in fell_back)


def _numbers(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda path: [damage(file) for file in path.glob("**/d/*")] and None


def _params_of_another(path: Path) -> None:
    shutil.rmtree(path / "params")
    shutil.copytree(path.parent / "2/params", path / "params")


def _another_step(path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(path.parent / "3", path)


def _record(path: Path, content: str) -> None:
    (path / "fingerprint" / "metadata").write_text(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_numbers(_flip), ""),
        (_numbers(_empty), ""),
        (_params_of_another, "the params are not those that were saved"),
        (_another_step, "it is the checkpoint of step 3"),
        (lambda path: _record(path, "[" * 200_000), ""),
    ],
)
def test_what_is_not_what_was_saved_is_moved_away_quietly(
    copy: Path, damage: Callable[[Path], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (copy.parent / "damaged" / "4-0").mkdir(parents=True)  # an earlier one
    damage(copy / "4")
    step, found, warnings = restore(copy)
    assert (step, len(warnings)) == (3, 1)
    assert same(found, state(3))
    assert f"the checkpoint of step 4 is damaged ({reason}" in warnings[0]
    assert warnings[0].endswith("; using step 3")
    assert sorted(path.name for path in (copy.parent / "damaged").iterdir()) == ["4-0", "4-1"]
    gc.collect()  # of the reads that Orbax abandoned
    assert caplog.records == []


def test_several_damaged_checkpoints_are_skipped_and_saved_again(copy: Path) -> None:
    for step in (3, 4):
        shutil.rmtree(copy / str(step) / "params")
    step, found, warnings = restore(copy)
    assert (step, len(warnings)) == (2, 2)
    assert same(found, state(2))
    save(copy, 4)
    assert restore(copy)[0] == 4


def test_if_all_are_damaged_training_does_not_start_over(copy: Path) -> None:
    for step in (2, 3, 4):
        shutil.rmtree(copy / str(step) / "params")
    with pytest.raises(
        UserError, match=r"of step 4 is damaged \(.*\), and so is every other; .*delete the run"
    ):
        restore(copy)
    assert sorted(path.name for path in copy.iterdir()) == ["2", "3", "4"]


def test_a_folder_name_that_looks_like_a_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[red\]x/checkpoints: Orbax finds no files .*; rename"):
        save(tmp_path / "[red]x" / "checkpoints", 4)


def test_leftovers_of_a_killed_save_are_removed_and_links_not_followed(
    copy: Path, tmp_path: Path
) -> None:
    left, link = copy / "5.orbax-checkpoint-tmp", copy / "6.orbax-checkpoint-tmp"
    shutil.copytree(copy / "4", left)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    link.symlink_to(tmp_path / "mine")
    step, found, warnings = restore(copy)
    assert (step, warnings) == (4, [])
    assert same(found, state(4))
    assert sorted(path.name for path in copy.iterdir()) == ["2", "3", "4"]
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_reading_parameters_changes_nothing(copy: Path, tmp_path: Path) -> None:
    shutil.rmtree(copy / "4/params")
    before = files_of(copy)
    warnings: list[str] = []
    step, params = newest_params(copy, state(0).params, warn=warnings.append)
    assert step == 3
    assert same(params, state(3).params)
    assert "using step 3" in warnings[0]
    # and of a chosen step
    assert same(params_at(copy, 2, state(0).params), state(2).params)
    with pytest.raises(DamagedCheckpoint, match=r"the checkpoint of step 4 is damaged \("):
        params_at(copy, 4, state(0).params)
    assert (saved_steps(copy), saved_steps(tmp_path / "nowhere")) == ([2, 3, 4], [])
    assert files_of(copy) == before
    assert not (copy.parent / "damaged").exists()


def test_a_checkpoint_that_training_deletes_during_a_sweep_is_not_damaged(copy: Path) -> None:
    checkpoints = Checkpoints(copy)
    shutil.rmtree(copy / "4")
    step, found = checkpoints.restore_newest(TrainState(state(0).params, None), warn=pytest.fail)
    checkpoints.close()
    assert step == 3
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
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    y = x.copy()
    y[3] = -y[3]  # 64 sign bits: for any odd weights their sum is a multiple of 2^32
    moved = np.roll(x, 1, axis=0)
    fingerprints = {_fingerprint(jnp.asarray(a)) for a in (x, y, moved, x + 0)}
    assert len(fingerprints) == 3


# Which read errors are evidence of damage, and how they are named


def caused_by(cause: Exception) -> Exception:
    """Return an error like those of Orbax and decoders: of another type, with this cause."""
    error = ValueError("cannot read metadata")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("is_damage", "error"),
    [
        (False, OSError(errno.EMFILE, "Too many open files")),
        (False, caused_by(OSError(errno.EIO, "Input/output error"))),
        (False, caused_by(MemoryError())),
        (False, jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")),
        (False, ValueError('UNKNOWN: Error reading "c/0": [OS error 5: EIO Input/output error]')),
        (False, RuntimeError("something that nobody has seen yet")),
        (True, FileNotFoundError(errno.ENOENT, "No such file or directory")),
        (True, json.JSONDecodeError("Expecting value", "{oops", 1)),
        (True, ValueError('DATA_LOSS: Error opening "zarr" driver: checksum mismatch')),
    ],
    ids=repr,
)
def test_what_the_system_cannot_read_is_not_damaged(is_damage: bool, error: Exception) -> None:
    assert shows_damage(error) == is_damage


def test_a_reason_is_short_and_ends_with_the_cause() -> None:
    spec = "[tensorstore_spec='{...}']"
    long = ValueError(f"OUT_OF_RANGE: Error opening {'/long/path' * 30}: file is empty {spec}")
    assert brief_reason(long).startswith("OUT_OF_RANGE: Error opening /long/path")
    assert brief_reason(long).endswith(": file is empty")
    assert len(brief_reason(long)) < 160
    assert brief_reason(MemoryError()) == "MemoryError"


def test_unraisable_exceptions_of_other_code_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(unraisable.object))
    silence_leftovers.__wrapped__()

    class Raises:
        def __del__(self) -> None:
            raise RuntimeError("Event loop is closed")

    Raises()
    assert len(shown) == 1
