"""The state of a fit between two steps, and the file that keeps it."""

import json
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.errors import UserError
from rope_jax.fitting.parameters import Free
from rope_jax.sealed import replacing


@dataclass(frozen=True)
class FitState:
    """A fit after `step` steps.

    best, best_step, best_nll: the free parameters with the lowest NLL on validation so far.
    checks: one line for each check: the step and the NLL at every length, nats per token.
    stopped: why it ended before its last step; "" if it did not.
    seconds: what all processes took until it was saved, with compilation and checks.
    """

    free: Free
    opt_state: Any
    step: int
    best: Free
    best_step: int
    best_nll: float
    checks: tuple[dict[str, float], ...] = ()
    stopped: str = ""
    seconds: float = field(default=0.0, compare=False)

    def save(self, path: Path, identity: str) -> None:
        """Write the state, complete or not at all. UserError: a full disk, for instance."""
        about = {
            "identity": identity,
            "step": self.step,
            "best_step": self.best_step,
            "best_nll": self.best_nll,
            "checks": self.checks,
            "stopped": self.stopped,
            "seconds": self.seconds,
        }
        leaves = jax.tree.leaves((self.free, self.opt_state, self.best))
        arrays: dict[str, Any] = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        arrays["about"] = np.array(json.dumps(about))
        try:
            with replacing(path) as temporary:
                np.savez(temporary, **arrays)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror or error}); once that is fixed, the "
                "same command continues from the last check"
            ) from error

    def restored(self, path: Path, identity: str) -> "FitState | None":
        """Return the state in a file, with this one's structure; None if there is none.

        UserError: the file is damaged, or belongs to another fit.
        """
        if not path.exists():
            return None
        tree = self.free, self.opt_state, self.best
        expected, structure = jax.tree.flatten(tree)
        try:
            # opened here, because numpy does not close a file that is no archive
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
                leaves = [arrays[f"leaf_{i}"] for i in range(len(expected))]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise UserError(
                f"{path}: is damaged ({type(error).__name__}); delete it to begin the fit again"
            ) from None
        if about.get("identity") != identity:
            raise UserError(
                f"{path}: belongs to a fit with another checkpoint, corpus or code; delete it to "
                "begin again, or choose another name"
            )
        free, opt_state, best = jax.tree.unflatten(structure, map(jnp.asarray, leaves))
        return replace(
            self,
            free=free,
            opt_state=opt_state,
            best=best,
            step=about["step"],
            best_step=about["best_step"],
            best_nll=about["best_nll"],
            checks=tuple(about["checks"]),
            stopped=about["stopped"],
            seconds=about["seconds"],
        )
