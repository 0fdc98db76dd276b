"""How long a sweep takes, and what is chosen where the defaults would take hours."""

import numpy as np
import pytest

from rope_jax.config.entries import Trained
from rope_jax.config.model import ModelConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import SweepPlan, resolve_sweep
from rope_jax.model.cost import flops_per_token, window_flops
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.sweeps import resolve
from rope_jax.sweeps.model import sweep_flops
from rope_jax.sweeps.resolve import shrink_defaults

MODEL, VOCABULARY, WINDOW = ModelConfig().spec(), 257, 64
LAYERS = RotaryLayers(RotaryGeometry(32, 10000.0, WINDOW))


def plan_of(count=30, length=1100):
    """Return a function that plans a sweep of documents of one length."""
    documents = [np.arange(length) % 250 for _ in range(count)]

    def plan(config):
        trained = Trained(WINDOW, parse_scaling({"type": "none"}), None, WINDOW)
        return SweepPlan(
            resolve_sweep(config, LAYERS, [trained]), LAYERS, trained, documents, (256,)
        )

    return plan


def settings(**given):
    return SweepConfig.model_validate({"scalings": ["trained", "yarn"]} | given)


def flops(plan):
    return sweep_flops(plan, MODEL, VOCABULARY)


def test_a_forward_pass_is_a_third_of_a_training_step_without_the_unscored_head():
    whole = window_flops(MODEL, VOCABULARY, 512, 512)
    assert whole == 512 * flops_per_token(MODEL, VOCABULARY, 512) / 3
    assert window_flops(MODEL, VOCABULARY, 512, 32) == whole - 2 * 128 * 257 * 480


def test_equal_readings_count_once_and_measured_ones_not_at_all():
    """At the window, `auto` is 1, so YaRN's windows are those of the model as it is."""
    config = settings(lengths=[64, 128], max_documents=30, max_blocks=1, targets=8)
    plan = plan_of()(config)
    short, long = (30 * window_flops(MODEL, VOCABULARY, n, 8) for n in (64, 128))
    assert flops(plan) == pytest.approx(short + 2 * long, rel=1e-12)
    at_window = {job.key for job in plan.jobs() if job.length == 64}
    assert sweep_flops(plan, MODEL, VOCABULARY, at_window) == pytest.approx(2 * long, rel=1e-12)
    assert sweep_flops(plan, MODEL, VOCABULARY, {j.key for j in plan.jobs()}) == 0


def chosen(monkeypatch, share, config, **texts):
    """Return what is chosen where an hour is enough for a share of all defaults' FLOPs."""
    plan = plan_of(**texts)
    of_all = flops(plan_of()(config))
    monkeypatch.setattr(resolve, "nominal_flops", lambda: share * of_all / 3600)
    values, made, _ = shrink_defaults(
        config, WINDOW, lambda values: plan(config.model_copy(update=values)), flops
    )
    used = config.model_copy(update=values)
    if used.lengths is not None:
        assert made.sweep.lengths == used.lengths
    return made.sweep.lengths, used.max_documents, used.max_blocks


def test_defaults_become_fewer_and_shorter_until_an_hour_is_enough(monkeypatch):
    config = settings(targets=8)
    full = (32, 64, 128, 256, 512, 1024)
    assert chosen(monkeypatch, 1.0, config) == (full, 64, "auto")
    assert chosen(monkeypatch, 0.7, config) == (full, 64, 1)  # one block per document
    found = [chosen(monkeypatch, share, config) for share in (0.015, 0.008, 0.003, 1e-3, 1e-9)]
    lengths, documents, blocks = zip(*found, strict=True)
    assert set(blocks) == {1}
    assert [len(choice) for choice in lengths] == sorted(map(len, lengths), reverse=True)
    assert min(map(len, lengths)) == 3  # half the window, the window, and twice the window
    assert documents[0] == 20
    assert documents[-1] == 5  # the cheapest, though it still takes more than an hour


def test_what_is_given_is_kept(monkeypatch):
    given = settings(lengths=[64, 256], max_documents=30, max_blocks=2)
    assert chosen(monkeypatch, 1e-6, given) == ((64, 256), 30, 2)
    given = settings(lengths=[64, 256], max_blocks=2)
    assert chosen(monkeypatch, 1e-6, given) == ((64, 256), 5, 2)


def test_default_lengths_end_where_the_texts_do(monkeypatch):
    assert chosen(monkeypatch, 1.0, settings(), length=300) == ((32, 64, 128, 256), 64, "auto")
    with pytest.raises(UserError, match=r"^lengths: none of the 30 documents has the 1025 tokens"):
        chosen(monkeypatch, 1.0, settings(), length=100)
