"""Saving and restoring a run's state: the only file that imports Orbax.

Orbax writes a checkpoint beside its place and renames it when it is whole. What happens to it
after that is seen by its fingerprint: a sum over the bits of every array, stored with them.
"""

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array, UInt32

from rope_jax.errors import UserError
from rope_jax.training.step import TrainState


class Checkpoints:
    """The checkpoints/ folder of a run: asynchronous saves, the newest `keep` are kept."""

    def __init__(self, directory: Path, keep: int | None = None) -> None:
        """keep None: for reading; nothing is ever deleted."""
        writes = keep is not None
        options = ocp.CheckpointManagerOptions(
            preservation_policy=keep and ocp.checkpoint_managers.LatestN(n=keep),
            create=writes,
            cleanup_tmp_directories=writes,  # of a save that was killed
        )
        _silence_what_is_left_behind()
        self.directory = directory
        # Orbax takes absolute paths alone.
        self._manager = ocp.CheckpointManager(directory.absolute(), options=options)
        self._fingerprint = jax.jit(_fingerprint)

    def steps(self) -> list[int]:
        """The steps saved, the newest first."""
        return sorted(self._manager.all_steps(), reverse=True)

    def save(self, step: int, state: TrainState) -> None:
        """Start saving; returns once the arrays are copied off the device.

        UserError if this save cannot begin, or the one before it could not be finished.
        """
        if step in self._manager.all_steps():
            return
        args = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            opt_state=ocp.args.StandardSave(state.opt_state),
            fingerprint=ocp.args.JsonSave(
                {name: self._bits(part) for name, part in state._asdict().items()}
            ),
        )
        self._or_refuse(lambda: self._manager.save(step, args=args))

    def wait(self) -> None:
        """Until saves under way have ended; UserError if one could not be finished."""
        self._or_refuse(self._manager.wait_until_finished)

    def restore_newest(
        self, like: TrainState, tell: Callable[[str], None]
    ) -> tuple[int, TrainState | None]:
        """(step, state) of the newest whole checkpoint; (0, None) where none was ever saved.

        `like` gives shapes, dtypes and placement. A damaged checkpoint is told of and moved to
        damaged/ beside the folder, so that its step can be saved again.
        """

        def set_aside(step: int, reason: str, older: int) -> None:
            self._move_away(step)
            tell(_damage(self.directory, step, reason, older))

        return self._newest(("params", "opt_state"), like, set_aside)

    def restore_newest_params(self, like: Any, tell: Callable[[str], None]) -> tuple[int, Any]:
        """(step, parameters) of the newest whole checkpoint; damaged ones stay where they are."""

        def say(step: int, reason: str, older: int) -> None:
            tell(_damage(self.directory, step, reason, older))

        step, state = self._newest(("params",), TrainState(like, None), say)
        return step, state and state.params

    def close(self) -> None:
        """End; whether saves were finished is `wait`'s to say, and may have been said already."""
        with contextlib.suppress(Exception):
            self._manager.close()

    def _newest(
        self,
        parts: tuple[str, ...],
        like: TrainState,
        on_damage: Callable[[int, str, int], None],
    ) -> tuple[int, TrainState | None]:
        damaged: list[tuple[int, str]] = []
        for step in self.steps():
            state, reason = self._try_to_restore(step, parts, like)
            if state is not None:
                for newer, why in damaged:
                    on_damage(newer, why, step)
                return step, state
            if (self.directory / str(step)).exists():  # a run that goes on deletes its old ones
                damaged.append((step, reason))
        if damaged:
            step, reason = damaged[0]
            raise UserError(
                f"{self.directory}: no checkpoint can be read; of step {step}: {reason}; "
                "restore the folder from a copy, or delete the run and train it again"
            )
        return 0, None

    def _try_to_restore(
        self, step: int, parts: tuple[str, ...], like: TrainState
    ) -> tuple[TrainState | None, str]:
        """(state, ""), or (None, why not)."""
        try:
            return self._restore(step, parts, like), ""
        except Exception as error:  # of many kinds, by which file is damaged and how
            return None, _reason(error)

    def _restore(self, step: int, parts: tuple[str, ...], like: TrainState) -> TrainState:
        wanted = {name: getattr(like, name) for name in parts}
        args = {name: ocp.args.StandardRestore(_abstract(tree)) for name, tree in wanted.items()}
        restored = self._manager.restore(
            step, args=ocp.args.Composite(**args, fingerprint=ocp.args.JsonRestore())
        )
        for name in parts:
            if restored["fingerprint"][name] != self._bits(restored[name]):
                raise ValueError(f"the {name} are not those that were saved")
        return TrainState(restored["params"], restored.get("opt_state"))

    def _bits(self, tree: Any) -> list[int]:
        return [int(bits) for bits in jax.device_get(self._fingerprint(jax.tree.leaves(tree)))]

    def _move_away(self, step: int) -> None:
        damaged = self.directory.parent / "damaged"
        damaged.mkdir(exist_ok=True)
        taken = len(list(damaged.iterdir()))
        with contextlib.suppress(FileNotFoundError):  # another process of this run was faster
            (self.directory / str(step)).rename(damaged / f"{step}-{taken}")
        self._manager.reload()

    def _or_refuse(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # Orbax and TensorStore raise many kinds for a full disk
            newest = max(_whole_steps(self.directory), default=None)
            kept = f"that of step {newest} is whole" if newest else "there is none yet"
            raise UserError(
                f"{self.directory}: a checkpoint could not be written "
                f"({_reason(error)}); {kept}; when that is mended, the same "
                "command goes on from it"
            ) from error


def newest_params(directory: Path, like: Any, tell: Callable[[str], None]) -> tuple[int, Any]:
    """(step, parameters) of the newest whole checkpoint in a folder; `like`: see above."""
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; the run has saved no checkpoint")
    checkpoints = Checkpoints(directory)
    step, params = checkpoints.restore_newest_params(like, tell)
    checkpoints.close()
    if params is None:
        raise UserError(f"{directory}: holds no whole checkpoint; train the run further first")
    return step, params


def saved_steps(directory: Path) -> list[int]:
    """The steps of the checkpoints in a folder, rising. UserError where there is none."""
    steps = sorted(_whole_steps(directory))
    if not steps:
        raise UserError(f"{directory}: holds no checkpoint; train the run further first")
    return steps


def params_at(directory: Path, step: int, like: Any) -> Any:
    """The parameters of one checkpoint; UserError where it is damaged."""
    checkpoints = Checkpoints(directory)
    state, reason = checkpoints._try_to_restore(step, ("params",), TrainState(like, None))
    checkpoints.close()
    if state is None:
        raise UserError(f"{directory}: the checkpoint of step {step} is damaged ({reason})")
    return state.params


def _damage(directory: Path, step: int, reason: str, older: int) -> str:
    return f"{directory}: the checkpoint of step {step} is damaged ({reason}); using step {older}"


def _reason(error: Exception) -> str:
    """What an error of TensorStore's says at its end: the cause. Its beginning is long paths."""
    text = " ".join(str(error).split("[tensorstore_spec")[0].split())
    return text if len(text) <= 160 else f"{text[:60]} … {text[-90:].strip()}"


def _whole_steps(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.glob("*") if path.name.isdigit()]


def _fingerprint(leaves: list[Array]) -> list[UInt32[Array, ""]]:
    """Σ hash(bits, place) modulo 2³² of each array, the hash an invertible one of 32 bits.

    In integers, so that the order of the sum does not matter: the same on any number of devices.
    Any change of one number changes it; of several, all but one time in 2³².
    """

    def mixed(x: Array) -> Array:  # the finaliser of MurmurHash3: every bit changes every other
        x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
        return x ^ (x >> 16)

    def one(x: Array) -> Array:
        kind = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
        bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
        place, stride = jnp.zeros(x.shape, jnp.uint32), 1
        for axis in reversed(range(x.ndim)):
            index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
            place += index * np.uint32(stride % 2**32)
            stride *= x.shape[axis]
        return jnp.sum(mixed(bits ^ mixed(place + np.uint32(1))), dtype=jnp.uint32)

    return [one(leaf) for leaf in leaves]


@functools.cache
def _silence_what_is_left_behind() -> None:
    """When a read or write fails, Orbax leaves the others; each prints a traceback when it ends.

    The failure itself is raised, and told of in one line.
    """
    for name in ("asyncio", "absl"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    before = sys.unraisablehook

    def hook(found: Any) -> None:
        if not inspect.iscoroutine(found.object) and "loop is closed" not in str(found.exc_value):
            before(found)

    sys.unraisablehook = hook


def _abstract(tree: Any) -> Any:
    return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
