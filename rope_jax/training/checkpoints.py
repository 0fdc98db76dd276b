"""Saving and restoring a run's state. Only this module imports Orbax.

Orbax writes a checkpoint to a temporary folder and renames it once it is complete. Damage done
later is detected by a fingerprint: a sum over the bits of every array, stored with the arrays.
"""

import contextlib
import functools
import glob
import hashlib
import inspect
import itertools
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array, PyTree, UInt32

from rope_jax import stopping
from rope_jax.config.inherit import saved_steps
from rope_jax.devices import processes
from rope_jax.errors import GO_ON, UserError, file_errors
from rope_jax.model.decoder import Params
from rope_jax.sealed import remove
from rope_jax.training.provenance import Record, check_record
from rope_jax.training.step import TrainState

_IN_FLIGHT = 2**26  # bytes, or the largest array
_CHUNK = 2**24  # bytes of an array that are compressed at once
_NUMBERS_AT_ONCE = 2**22  # of an array, when its fingerprint is computed
# In TensorStore's messages where the system failed: the files may be as they were saved.
_SYSTEM_FAILURES = "OS error", "RESOURCE_EXHAUSTED", "UNAVAILABLE"
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Raised by decoding. JSON, UTF-8 and TensorStore errors are all ValueErrors.
_UNDECODABLE = (ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError)


class DamagedCheckpoint(UserError):
    """A checkpoint's files are missing, do not decode, or are not what was saved."""


class Checkpoints:
    """The checkpoints/ folder of a run. Saves are asynchronous; only the newest `keep` remain."""

    def __init__(
        self,
        directory: Path,
        keep: int | None = None,
        provenance: Record | None = None,
        abstract: PyTree = None,
    ) -> None:
        """Open the folder; without `keep`, only for reading. UserError if that is impossible.

        abstract: shapes and dtypes of what is saved or restored, which bounds the memory for that.
        """
        policy = keep and ocp.checkpoint_managers.LatestN(n=keep)
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, create=bool(keep))
        # few bytes in flight, as Orbax's own limit is 96 GB, but below an array's size it fails
        largest = max((x.size * x.dtype.itemsize for x in jax.tree.leaves(abstract)), default=0)
        limit: Any = max(_IN_FLIGHT, 1.01 * largest) / 1e9
        limits = {"save_concurrent_gb": limit, "restore_concurrent_gb": limit}
        handlers: dict[str, Any] = {
            name: ocp.StandardCheckpointHandler(**limits) for name in TrainState._fields
        }
        handlers["fingerprint"] = ocp.JsonCheckpointHandler()
        silence_leftovers()
        self.directory, self._provenance = directory, provenance
        with file_errors(directory, *GO_ON):
            if keep is not None:
                directory.mkdir(parents=True, exist_ok=True)
                if processes.is_first():  # Orbax's own clean-up goes on after the folder is opened
                    for left in directory.glob("*.orbax-checkpoint-tmp*"):
                        remove(left)
            if "\\" in str(path := directory.absolute()) or glob.escape(str(path)) != str(path):
                raise UserError(
                    f"{path}: Orbax finds no files below a folder with *, ?, [ or a backslash in "
                    "its name; rename that folder"
                )
            self._manager = ocp.CheckpointManager(path, options=options, item_handlers=handlers)

    def save(self, step: int, state: TrainState) -> None:
        """Start saving; return once the arrays are off the device. UserError: the last failed."""
        if step in self._manager.all_steps():
            return
        args: dict[str, Any] = {}
        content: Record = {"step": step, **(self._provenance or {})}
        for name, part in _parts(state).items():
            content[name] = _fingerprints(part)
            chunks = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK), part)
            args[name] = ocp.args.StandardSave(part, save_args=chunks)
        args["fingerprint"] = ocp.args.JsonSave(content)
        self._write(lambda: self._manager.save(step, args=ocp.args.Composite(**args)))

    def wait(self) -> None:
        """Wait for saves in progress. UserError if one failed."""
        self._write(self._manager.wait_until_finished)

    def restore_newest(
        self, abstract: TrainState, warn: Callable[[str], None]
    ) -> tuple[int, TrainState | None]:
        """Return (step, state) of the newest undamaged checkpoint; (0, None) if none was saved.

        A damaged one is reported to `warn`. With an optimizer state in `abstract`, it is also moved
        to damaged/ beside the folder, so that its step can be saved again. UserError, with nothing
        moved, if a checkpoint could not be read or if all are damaged.
        """
        damaged = dict[int, str]()
        for step in reversed(saved_steps(self.directory)):
            try:
                state = self.restore(step, abstract)
                break
            except DamagedCheckpoint as error:
                if (self.directory / str(step)).exists():  # if not, training has just deleted it
                    damaged[step] = str(error)
        else:
            if damaged:
                raise DamagedCheckpoint(
                    f"{next(iter(damaged.values()))}, and so is every other; restore the folder "
                    "from a copy, or delete the run and train it again"
                )
            return 0, None
        for other, damage in damaged.items():
            if abstract.opt_state is not None:
                self._move_away(other)
            warn(f"{damage}; using step {step}")
        return step, state

    def close(self) -> None:
        """Release Orbax's threads. Failed saves are not reported here: call `wait` first."""
        with contextlib.suppress(Exception):
            self._manager.close()

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """Return the parts of a checkpoint's state that are not None in `abstract`.

        DamagedCheckpoint if their fingerprints differ; UserError if they could not be read.
        """
        args: dict[str, Any] = {
            name: ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, part))
            for name, part in _parts(abstract).items()
        }
        args["fingerprint"] = ocp.args.JsonRestore()
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(**args))
            check_record(restored["fingerprint"], step)
            for name in _parts(abstract):
                if restored["fingerprint"][name] != _fingerprints(restored[name]):
                    raise ValueError(f"the {name} are not those that were saved")
        except Exception as error:  # the type depends on which file is at fault, and how
            if shows_damage(error):
                raise DamagedCheckpoint(
                    f"{self.directory}: the checkpoint of step {step} is damaged "
                    f"({brief_reason(error)})"
                ) from error
            raise UserError(
                f"{self.directory / str(step)}: the checkpoint could not be read "
                f"({brief_reason(error)}); nothing was changed; try again"
            ) from error
        return TrainState(restored["params"], restored.get("opt_state"))

    def _move_away(self, step: int) -> None:
        damaged = self.directory.parent / "damaged"
        damaged.mkdir(exist_ok=True)
        number = next(n for n in itertools.count() if not (damaged / f"{step}-{n}").exists())
        with contextlib.suppress(FileNotFoundError):  # another process of this run moved it first
            (self.directory / str(step)).rename(damaged / f"{step}-{number}")
        self._manager.reload()

    def _write(self, action: Callable[[], Any]) -> None:
        try:
            with stopping.uninterrupted():
                action()
        except Exception as error:  # Orbax and TensorStore raise many types for a full disk
            newest = newest_step(self.directory)
            kept = f"that of step {newest} is complete" if newest else "there is none yet"
            raise UserError(
                f"{self.directory}: a checkpoint could not be written ({brief_reason(error)}); "
                f"{kept}; once that is fixed, the same command continues from it"
            ) from error


def _parts(state: TrainState) -> dict[str, Any]:
    return {name: part for name, part in state._asdict().items() if part is not None}


def newest_params(
    directory: Path, abstract: Params, warn: Callable[[str], None]
) -> tuple[int, Params]:
    """Return (step, parameters) of the newest undamaged checkpoint. UserError if there is none."""
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; the run has saved no checkpoint")
    with contextlib.closing(Checkpoints(directory, abstract=abstract)) as checkpoints:
        step, state = checkpoints.restore_newest(TrainState(abstract, None), warn)
    if state is None:
        raise UserError(f"{directory}: holds no complete checkpoint; train the run further first")
    return step, state.params


def params_at(directory: Path, step: int, abstract: Params) -> Params:
    """Return the parameters of one checkpoint; DamagedCheckpoint if it is damaged."""
    with contextlib.closing(Checkpoints(directory, abstract=abstract)) as checkpoints:
        return checkpoints.restore(step, TrainState(abstract, None)).params


def newest_step(directory: Path) -> int:
    """Return the step of the newest checkpoint in a folder, damaged or not; 0 if there is none."""
    return max(saved_steps(directory), default=0)


def params_fingerprint(params: Params) -> str:
    """Return a hexadecimal fingerprint of parameters."""
    return hashlib.sha256(json.dumps(_fingerprints(params)).encode()).hexdigest()[:16]


def _fingerprints(tree: PyTree) -> list[int]:
    return [_fingerprint(leaf) for leaf in jax.tree.leaves(tree)]


def _fingerprint(leaf: Array) -> int:
    """Return Σ hash(bits, index) mod 2³² of an array, with an invertible 32-bit hash.

    Integer sums do not depend on their order, so the result is the same on any number of devices.
    A change of one number always changes it; a change of several goes unnoticed once in 2³².
    """
    # the first axis that is not split over devices: cutting along it moves no data
    shard = leaf.sharding.shard_shape(leaf.shape)
    axis = next((axis for axis in range(leaf.ndim) if shard[axis] == leaf.shape[axis] > 1), 0)
    length = leaf.shape[axis] if leaf.ndim else 1
    # A slice at a time: XLA writes the hashes of all numbers to memory before it adds them up.
    step = max(1, _NUMBERS_AT_ONCE * length // max(1, leaf.size))
    slices = ((start, min(step, length - start)) for start in range(0, length, step))
    return sum(int(_hash_slice(leaf, start, size, axis)) for start, size in slices) % 2**32


@functools.partial(jax.jit, static_argnames=("size", "axis"))
def _hash_slice(x: Array, start: int | Array, size: int, axis: int) -> UInt32[Array, ""]:
    """Return the sum of the hashes in a slice of an array, of this size along an axis."""

    def mix(x: Array) -> Array:  # MurmurHash3's finalizer: each bit affects all others
        x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
        return x ^ (x >> 16)

    part = jax.lax.dynamic_slice_in_dim(x, start, size, axis) if x.ndim else x
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(part, unsigned).astype(jnp.uint32)
    flat_index, stride = jnp.zeros(part.shape, jnp.uint32), 1
    for other in reversed(range(x.ndim)):
        index = jax.lax.broadcasted_iota(jnp.uint32, part.shape, other)
        if other == axis:
            index = index + jnp.asarray(start).astype(jnp.uint32)
        flat_index += index * np.uint32(stride % 2**32)
        stride *= x.shape[other]
    return jnp.sum(mix(bits ^ mix(flat_index + np.uint32(1))), dtype=jnp.uint32)


def shows_damage(error: Exception) -> bool:
    """Whether an error shows that files are damaged, not that the system cannot read them."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | OSError) and not isinstance(cause, _ABSENT):
            return False
        cause = cause.__cause__ or cause.__context__
    if any(failure in str(error) for failure in _SYSTEM_FAILURES):
        return False
    return isinstance(error, (*_ABSENT, *_UNDECODABLE))


def brief_reason(error: Exception) -> str:
    """Shorten an error's message to its beginning and its end, which names the cause."""
    text = " ".join(str(error).split("[tensorstore_spec")[0].split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:60]} … {text[-90:].strip()}"


@functools.cache
def silence_leftovers() -> None:
    """Silence the reads and writes that Orbax abandons after a failure, which it raises itself.

    Each of them would print another traceback seconds later.
    """
    show = sys.unraisablehook

    def show_others(unraisable: Any) -> None:
        # TensorStore's threads, which run no Python code, report to Orbax's event loop, now closed
        is_late = unraisable.object is None and str(unraisable.exc_value) == "Event loop is closed"
        if not is_late and not inspect.iscoroutine(unraisable.object):
            show(unraisable)

    sys.unraisablehook = show_others
    for name in ("absl", "asyncio"):  # Orbax alone uses them in these commands
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
