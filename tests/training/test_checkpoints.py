"""Checkpoints: whole or told of. Every file of one is cut, emptied, removed, changed."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rope_jax.errors import UserError
from rope_jax.training.checkpoints import Checkpoints, newest_params, params_at, saved_steps
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
    """Steps 1 to 4, of which the newest three are kept."""
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
    told: list[str] = []
    checkpoints = Checkpoints(folder, keep=3)
    step, found = checkpoints.restore_newest(state(0), tell=told.append)
    checkpoints.close()
    return step, found, told


def test_the_newest_is_restored_to_the_bit(copy: Path) -> None:
    step, found, told = restore(copy)
    assert (step, told) == (4, [])
    assert same(found, state(4))
    assert sorted(path.name for path in copy.iterdir()) == ["2", "3", "4"]


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def damages() -> dict[str, object]:
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return {"cut": cut, "emptied": lambda path: path.write_bytes(b""), "removed": Path.unlink}


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_is_never_believed(saved: Path, tmp_path: Path, damage: str) -> None:
    fell_back = []
    for index, name in enumerate(files_of(saved / "4")):
        folder = Path(shutil.copytree(saved, tmp_path / str(index) / "checkpoints"))
        damages()[damage](folder / "4" / name)  # type: ignore[operator]
        step, found, told = restore(folder)
        # a file that restoring does not read may be lost; what is restored is what was saved
        assert same(found, state(step)), name
        assert step in (3, 4), name
        if step == 3:
            fell_back.append(name)
            assert len(told) == 1, name
            assert "the checkpoint of step 4 is damaged (" in told[0]
            assert told[0].endswith("; using step 3")
            assert [p.name for p in (folder.parent / "damaged").iterdir()] == ["4-0"]
    assert any("/d/" in name for name in fell_back)  # the numbers themselves
    assert any(name.startswith("opt_state") for name in fell_back)


def test_a_flipped_bit_is_found(copy: Path) -> None:
    for path in copy.glob("4/**/d/*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    step, found, told = restore(copy)
    assert step == 3
    assert len(told) == 1
    assert same(found, state(3))


def test_other_numbers_of_the_same_shapes_are_found(copy: Path) -> None:
    shutil.rmtree(copy / "4/params")
    shutil.copytree(copy / "2/params", copy / "4/params")
    step, _, told = restore(copy)
    assert step == 3
    assert "the params are not those that were saved" in told[0]


def test_the_step_of_a_damaged_checkpoint_can_be_saved_again(copy: Path) -> None:
    shutil.rmtree(copy / "4/opt_state")
    told: list[str] = []
    checkpoints = Checkpoints(copy, keep=3)
    assert checkpoints.restore_newest(state(0), tell=told.append)[0] == 3
    checkpoints.save(4, state(4))
    checkpoints.wait()
    checkpoints.close()
    assert restore(copy)[0] == 4


def test_several_damaged_ones_are_passed_over(copy: Path) -> None:
    for step in (3, 4):
        shutil.rmtree(copy / str(step) / "params")
    step, found, told = restore(copy)
    assert (step, len(told)) == (2, 2)
    assert same(found, state(2))


def test_where_none_is_whole_nothing_is_begun_anew(copy: Path) -> None:
    for step in (2, 3, 4):
        shutil.rmtree(copy / str(step) / "params")
    with pytest.raises(UserError, match=r"no checkpoint can be read; of step 4: .*delete the run"):
        restore(copy)
    assert sorted(path.name for path in copy.iterdir()) == ["2", "3", "4"]


def test_an_empty_folder_is_a_beginning(tmp_path: Path) -> None:
    assert restore(tmp_path / "checkpoints") == (0, None, [])


def test_what_a_killed_save_left_is_cleaned_up(copy: Path) -> None:
    left = copy / "5.orbax-checkpoint-tmp"
    shutil.copytree(copy / "4", left)
    step, _, told = restore(copy)
    assert (step, told) == (4, [])
    assert not left.exists()


def test_reading_the_parameters_changes_nothing(copy: Path) -> None:
    shutil.rmtree(copy / "4/params")
    before = files_of(copy)
    told: list[str] = []
    step, params = newest_params(copy, state(0).params, tell=told.append)
    assert step == 3
    assert same(params, state(3).params)
    assert "using step 3" in told[0]
    assert files_of(copy) == before
    assert not (copy.parent / "damaged").exists()


def test_the_parameters_of_a_step(copy: Path, tmp_path: Path) -> None:
    assert saved_steps(copy) == [2, 3, 4]
    assert same(params_at(copy, 2, state(0).params), state(2).params)
    shutil.rmtree(copy / "3/params")
    with pytest.raises(UserError, match=r"the checkpoint of step 3 is damaged \("):
        params_at(copy, 3, state(0).params)
    with pytest.raises(UserError, match="holds no checkpoint; train the run further first"):
        saved_steps(tmp_path / "nowhere")


def test_what_training_deletes_while_a_sweep_reads_is_no_damage(copy: Path) -> None:
    told: list[str] = []
    checkpoints = Checkpoints(copy)
    shutil.rmtree(copy / "4")
    step, params = checkpoints.restore_newest_params(state(0).params, tell=told.append)
    checkpoints.close()
    assert (step, told) == (3, [])
    assert same(params, state(3).params)


def test_a_place_that_cannot_be_written_is_one_line(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(copy, keep=3)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(checkpoints._manager, "save", lambda *_, **__: (_ for _ in ()).throw(full))
    with pytest.raises(UserError, match=r"No space left on device\); that of step 4 is whole"):
        checkpoints.save(5, state(5))
    checkpoints.close()


def test_flipped_signs_do_not_cancel() -> None:
    from rope_jax.training.checkpoints import _fingerprint

    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    y = x.copy()
    y[3] = -y[3]  # 64 highest bits: their sum is a multiple of 2^32 whatever odd weights they have
    moved = np.roll(x, 1, axis=0)
    found = {int(_fingerprint([jnp.asarray(a)])[0]) for a in (x, y, moved, x + 0)}
    assert len(found) == 3
