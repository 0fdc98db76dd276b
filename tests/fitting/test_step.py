"""A step of a fit: its windows, its loss against the model's own NLL, and what it changes."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.fitting.parameters import parameters_of
from rope_jax.fitting.step import FitStep, windows_within_documents
from rope_jax.session import Session
from rope_jax.sweeps.model import load_model, newest_params
from tests.fitting.conftest import WINDOW, fit_config
from tests.fitting.test_parameters import STARTS, parse_entry


@pytest.fixture(scope="module")
def loaded(run):
    return load_model(Session(*run, plain_console(quiet=True)))


@pytest.fixture(scope="module")
def params(run, loaded):
    return newest_params(run[0].checkpoints, loaded.memory.abstract_params, print)[1]


@pytest.fixture
def step_of(loaded, params):
    """Return a function that makes a step and its free parameters, which share ReRoPE's start."""

    def step_of(**settings):
        config = fit_config(learn=["far_phase"], per="model", seed=3, **settings)
        start = parse_entry(STARTS["rerope"])
        parameters = parameters_of(loaded.training, config, start, 0)
        step = FitStep(loaded, params, parameters, config, WINDOW)
        return step, parameters

    return step_of


@pytest.fixture(scope="module")
def expected_loss(loaded, params):
    """Return a function: the mean NLL of the targets that count, with the numbers of the start."""
    nll_of_last = jax.jit(loaded.nll_of_last, static_argnums=3)

    def expected_loss(parameters, objective, length, count):
        tokens = windows_within_documents(
            loaded.corpus.train, seed=3, step=1, length=length, count=count
        )
        rotary = parameters.rotary(parameters.initial(), np.arange(length)[None], length)
        nll = np.asarray(nll_of_last(params, tokens, rotary, length))
        return nll[:, WINDOW if objective == "beyond" else 0 :].mean()

    return expected_loss


def test_steps_lower_the_loss_beyond_the_window_and_leave_the_weights(
    params, step_of, expected_loss
):
    step, parameters = step_of(length=48, batch_tokens=96, steps=8)
    before = jax.tree.map(np.array, params)
    free = parameters.initial()
    opt_state = step.optimizer.init(free)
    losses = []
    for _ in range(8):  # the same windows every time
        free, opt_state, loss = step(free, opt_state, 1)
        losses.append(float(loss))
        if len(losses) == 1:
            # Adam's first step is the learning rate in every coordinate whose gradient is not 0
            np.testing.assert_allclose(np.abs(free["far_phase"]), 0.05, rtol=1e-3)
    wanted = expected_loss(parameters, "beyond", 48, 2)
    assert losses[0] == pytest.approx(wanted, rel=1e-5)
    assert losses[-1] < losses[0] - 1e-3
    # what a step returns has the types and the sharding of what it was given
    assert step._program._cache_size() == 1
    jax.tree.map(np.testing.assert_array_equal, before, params)
    start, fitted = parameters.numbers(parameters.initial()), parameters.numbers(free)
    pairs = {name: (getattr(start, name), getattr(fitted, name)) for name in start._fields}
    changed = {name for name, (a, b) in pairs.items() if a is not None and not np.array_equal(a, b)}
    assert changed == {"far_phase"}


def test_all_targets_short_windows_and_lengths_in_turn(step_of, expected_loss):
    asked = {"length": [48, 64], "batch_tokens": 96, "objective": "all", "keep_short": 0.5}
    step, parameters = step_of(**asked)
    free = parameters.initial()
    _, _, loss = step(free, step.optimizer.init(free), 1)
    wanted = expected_loss(parameters, "all", 48, 2)
    wanted += 0.5 * expected_loss(parameters, "all", WINDOW, 6)
    assert float(loss) == pytest.approx(wanted, rel=1e-5)
    read = []
    step._program = lambda *given: (read.append(given), (free, (), jnp.zeros(())))[1]
    for number in range(1, 5):
        step(free, (), number)
    assert [arguments[3].shape for arguments in read] == [(2, 49), (1, 65)] * 2
    assert not np.array_equal(read[0][3], read[2][3])
    assert not np.array_equal(read[0][4], read[2][4])


def test_windows_lie_within_documents_and_begin_everywhere(loaded):
    split = loaded.corpus.train
    shortest = int(split.lengths().min())
    length = shortest - 3  # the shortest document has three places for a window
    documents = [split.document(index) for index in range(len(split))]
    places = {
        text[offset : offset + length + 1].tobytes(): (number, offset)
        for number, text in enumerate(documents)
        for offset in range(len(text) - length)
    }
    found = windows_within_documents(split, seed=1, step=2, length=length, count=4000)
    assert found.shape == (4000, length + 1)
    drawn = [places[row.astype(split.tokens.dtype).tobytes()] for row in found]
    assert {number for number, _ in drawn} == {
        number for number, text in enumerate(documents) if len(text) > length
    }
    # every place is as likely as any other: within 5 standard deviations
    counted = Counter(drawn)
    counts = np.array([counted[place] for place in set(places.values())])
    expected = 4000 / len(counts)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_windows_are_a_function_of_seed_step_and_length(loaded):
    def drawn(**changed):
        about = {"seed": 1, "step": 2, "length": 20, "count": 3} | changed
        return windows_within_documents(loaded.corpus.train, **about)

    np.testing.assert_array_equal(drawn(), drawn())
    np.testing.assert_array_equal(drawn(count=5)[:3], drawn())
    assert not np.array_equal(drawn(seed=2), drawn())
    assert not np.array_equal(drawn(step=3), drawn())
    assert not np.array_equal(drawn(length=21)[:, :-1], drawn())
    with pytest.raises(UserError, match=r"^length: no document .* has 100,001 t"):
        drawn(length=100_000)
