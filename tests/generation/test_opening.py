"""A run opened without its corpus reads as a sweep of it does."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.entries import parse_entries
from rope_jax.config.sweep import SweepConfig
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import nll_of_last
from rope_jax.generation.opening import open_model
from rope_jax.session import Session
from rope_jax.sweeps.model import load_model
from rope_jax.sweeps.resolve import resolve_run_sweep
from tests.sweeps.conftest import trained

QUIET = plain_console(quiet=True)
ENTRIES = ["trained", "yarn", {"type": "trained", "map": {"type": "rerope", "window": 8}}]


def test_its_nll_is_that_of_a_sweep_whose_texts_are_gone(tmp_path):
    run = trained(tmp_path)
    loaded = load_model(Session(*run, QUIET))
    config = SweepConfig.model_validate({"lengths": [16, 64], "scalings": ENTRIES})
    sweep = resolve_run_sweep(config, loaded.training, [2])
    plan = loaded.plan(sweep, loaded.corpus.test.texts(), 2)
    measured = loaded.measure(plan, loaded.one_checkpoint(2)[1]).measurements
    for folder in ("texts", "cache"):
        shutil.rmtree(tmp_path / folder)

    opened = open_model(Session(*run, QUIET))
    read = nll_of_last(opened.model, opened.placement)
    entries = {entry.label: entry for entry in config.scalings}
    assert len(measured) == 6
    for job, of_sweep in zip(plan.jobs(), measured, strict=False):
        rotary = opened.rotary(entries[job.entry], job.batch.length)
        nll = np.asarray(read(opened.params, jnp.asarray(job.batch.tokens()), rotary, None))
        scored = nll[job.answers(nll.shape[1]) >= 0]
        assert scored.sum() == pytest.approx(of_sweep.sums.nll.sum(), rel=1e-6)

    too_wide = {"type": "none", "map": {"type": "rerope", "window": 20}}
    with pytest.raises(UserError, match=r"strategy: rerope: map\.window"):
        opened.rotary(parse_entries(too_wide)[0], 17)
