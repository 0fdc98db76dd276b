"""Saving and restoring a run's state: the only file that imports Orbax."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from rope_jax.errors import UserError
from rope_jax.train_state import TrainState


class Checkpoints:
    """The checkpoints/ folder of a run: asynchronous saves, the newest `keep` are kept."""

    def __init__(self, directory: Path, keep: int | None = None) -> None:
        """keep None: for reading; nothing is ever deleted."""
        options = ocp.CheckpointManagerOptions(
            preservation_policy=keep and ocp.checkpoint_managers.LatestN(n=keep),
            create=keep is not None,
        )
        # Orbax takes absolute paths alone.
        self._manager = ocp.CheckpointManager(directory.absolute(), options=options)

    def latest_step(self) -> int | None:
        """The newest step saved whole, or None."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState) -> None:
        """Start saving; returns once the arrays are copied off the device."""
        if step not in self._manager.all_steps():
            args = ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                opt_state=ocp.args.StandardSave(state.opt_state),
            )
            self._manager.save(step, args=args)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state saved at a step; `like` gives shapes, dtypes and placement."""
        args = ocp.args.Composite(
            params=ocp.args.StandardRestore(_abstract(like.params)),
            opt_state=ocp.args.StandardRestore(_abstract(like.opt_state)),
        )
        restored = self._manager.restore(step, args=args)
        return TrainState(restored.params, restored.opt_state)

    def restore_params(self, step: int, like: Any) -> Any:
        """The parameters alone."""
        args = ocp.args.Composite(params=ocp.args.StandardRestore(_abstract(like)))
        return self._manager.restore(step, args=args).params

    def close(self) -> None:
        """Wait for saves under way."""
        self._manager.wait_until_finished()
        self._manager.close()


def newest_params(directory: Path, like: Any) -> tuple[int, Any]:
    """(step, parameters) of the newest checkpoint in a folder."""
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; the run has saved no checkpoint")
    checkpoints = Checkpoints(directory)
    step = checkpoints.latest_step()
    if step is None:
        raise UserError(f"{directory}: holds no whole checkpoint; train the run further first")
    params = checkpoints.restore_params(step, like)
    checkpoints.close()
    return step, params


def _abstract(tree: Any) -> Any:
    return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
