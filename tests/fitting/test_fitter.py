"""The loop of a fit: the best step is kept, and what ends it. Steps and losses are made up."""

import io
import math
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rope_jax import stopping
from rope_jax.console import plain_console
from rope_jax.errors import Stopped, UserError
from rope_jax.fitting.fitter import FitProgress, first_state, run_steps
from rope_jax.fitting.step import FitStep
from rope_jax.runs.logs import Log
from tests.fitting.conftest import fit_config
from tests.fitting.test_parameters import made


class MadeUpStep(FitStep):
    """Adds 0.1 to ln s at every step, and 0 to p."""

    def __init__(self, not_finite_at: int = 0, infinite_at: int = 0) -> None:
        self.parameters = made("none", learn=["query_scale"], per="model")
        self.optimizer = optax.adam(0.1)
        self.not_finite_at, self.infinite_at = not_finite_at, infinite_at
        self.steps: list[int] = []

    def __call__(self, free, opt_state, step):
        self.steps.append(step)
        loss = jnp.float32(math.nan if step == self.not_finite_at else 1.0)
        more = np.float32(math.inf if step == self.infinite_at else 0.1)
        moved = free | {"query_scale_s": free["query_scale_s"] + more}
        with jax.numpy_dtype_promotion("standard"):
            _, opt_state = self.optimizer.update(free, opt_state, free)
        return moved, opt_state, loss


@pytest.fixture
def fit():
    """Return a function that runs the loop; it returns the state, the output and the steps."""

    def fit(losses, *, state=None, steps=12, fails=None, save=lambda state: None, **settings):
        config = fit_config(steps=steps, check_every=2, learn=["query_scale"], **settings)
        step, checks = MadeUpStep(**(fails or {})), iter(losses)
        said = plain_console(file=io.StringIO(), width=200)
        progress = FitProgress(said, steps, 0, "fitting")
        with progress.bar:
            state = state or first_state(step)
            nll = lambda strategy: {64: next(checks)}  # noqa: E731
            state = run_steps(step, nll, config, state, save, Log(), progress)
        return state, said.file.getvalue(), step.steps

    return fit


def test_the_best_check_is_kept(fit):
    state, said, _ = fit([5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 3.3], patience=9)
    assert (state.step, state.best_step, state.best_nll, state.stopped) == (12, 4, 3.0, "")
    np.testing.assert_allclose(state.best["query_scale_s"], 0.4, rtol=1e-6)
    np.testing.assert_allclose(state.free["query_scale_s"], 1.2, rtol=1e-6)
    assert [check["step"] for check in state.checks] == [0, 2, 4, 6, 8, 10, 12]
    assert "step    4/12  validation 3.0000 at 64  (best so far)" in said
    assert said.count("(best so far)") == 2


def test_short_windows_count_beside_the_mean_over_the_lengths():
    config = fit_config(length=[32, 64], keep_short=0.5, learn=["query_scale"], steps=2)
    checks = iter([{16: 3.0, 32: 3.0, 64: 5.0}, {16: 1.0, 32: 4.0, 64: 5.0}])
    step = MadeUpStep()
    progress = FitProgress(plain_console(quiet=True), 2, 0, "fitting")
    how = step, lambda strategy: next(checks), config, first_state(step)
    state = run_steps(*how, lambda state: None, Log(), progress)
    assert (state.best_step, state.best_nll) == (2, 4.5 + 0.5 * 1.0)
    assert state.checks[0] == {"step": 0.0, "16": 3.0, "32": 3.0, "64": 5.0}


def test_it_stops_when_checks_stop_improving(fit):
    state, _, steps = fit([5.0, 4.0, 4.5, 4.5, 4.5], patience=3)
    assert (state.step, state.best_step) == (8, 2)
    assert state.stopped == "no improvement in 3 checks"
    assert steps == list(range(1, 9))


def test_checks_that_end_with_the_last_step_stop_nothing(fit):
    state, _, _ = fit([5.0, 4.0, 4.5, 4.5, 4.5, 4.5, 4.5], patience=5)
    assert (state.step, state.best_step, state.stopped) == (12, 2, "")


@pytest.mark.parametrize("fails", [{"not_finite_at": 5}, {"infinite_at": 5}])
def test_what_is_not_finite_keeps_the_best(fit, fails):
    saved = []
    state, _, _ = fit([5.0, 4.0, 3.0], fails=fails, save=saved.append)
    assert state.stopped == "a number is not finite at step 5; lower learning_rate"
    assert (state.best_step, state.best_nll) == (4, 3.0)
    np.testing.assert_allclose(state.free["query_scale_s"], 0.4, rtol=1e-6)
    assert saved[-1] is state
    assert 0 < saved[0].seconds < saved[-1].seconds
    again, _, steps = fit([], state=state)
    assert (again, steps) == (state, [])


def test_a_check_that_is_not_finite_is_never_the_best(fit):
    state, _, _ = fit([5.0, math.nan, math.nan], patience=2)
    assert (state.best_step, state.stopped) == (0, "no improvement in 2 checks")


def test_a_stopped_fit_continues_from_the_file(fit, tmp_path):
    losses = [5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 3.3]
    whole, _, _ = fit(losses, patience=9)
    path = tmp_path / "state.npz"

    def save(state):
        state.save(path, "this fit")
        if state.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
            while not stopping.requested():  # another thread reads the signal
                time.sleep(0.001)

    says = r"^stopped after step 6 of 12; the same command continues"
    with stopping.listening(), pytest.raises(Stopped, match=says):
        fit(losses, save=save, patience=9)
    state = first_state(MadeUpStep()).restored(path, "this fit")
    assert state.step == 6
    before = state.seconds
    state, _, steps = fit(losses[4:], state=state, patience=9)
    assert steps == list(range(7, 13))
    assert state.seconds > before > 0
    for mine, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("bytes_kept", "says"),
    [
        (0, "is damaged (EOFError); delete it to begin the fit again"),
        (-30, "is damaged (BadZipFile); delete it to begin the fit ag"),
        (None, "belongs to a fit with another checkpoint, corpus or code; delete it to begin ag"),
    ],
)
def test_a_damaged_state_is_refused(fit, tmp_path, bytes_kept, says):
    path = tmp_path / "state.npz"
    state, _, _ = fit([5.0, 4.0], steps=2, save=lambda state: state.save(path, "this fit"))
    path.write_bytes(path.read_bytes()[:bytes_kept])
    with pytest.raises(UserError) as caught:
        state.restored(path, "that fit" if bytes_kept is None else "this fit")
    assert str(caught.value).startswith(f"{path}: {says}")
