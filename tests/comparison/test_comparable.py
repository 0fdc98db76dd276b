"""Sweeps that cannot be compared are refused, and the difference is named.

`none` on a model that was trained with none is what others call `trained`.
"""

import json
from dataclasses import replace

import pytest

from rope_jax.comparison.comparable import find_mismatches, refuse_mismatches, truncation_key
from rope_jax.comparison.curves import compare
from rope_jax.comparison.read import read_sweep
from rope_jax.config.presentation import CompareConfig
from rope_jax.errors import UserError
from tests.comparison.conftest import read


@pytest.fixture
def found(sweep_of):
    """Return a function that finds the mismatches of runs made with the given settings."""

    def found(*settings):
        runs = [sweep_of(f"run{i}", **each) for i, each in enumerate(settings)]
        return find_mismatches([read_sweep(run / "evals/demo") for run in runs])

    return found


def test_models_seeds_and_steps_may_differ_and_other_differences_are_named(found):
    wanted = {
        "corpus: run0/demo has c0ffee, run4/demo has beef; they were trained": {"corpus": "beef"},
        "bos: run0/demo has document, run5/demo has none; sweep them with the": {"bos": "none"},
        "split: run0/demo has test, run6/demo has val; sweep": {"split": "validation"},
        "targets: run0/demo has abc, run7/demo has xyz (same_tokens, whole_window 8, "
        "whole_window 16, whole_window 32, whole_window 64); sweep them": {"targets": "xyz"},
        'scalings: run0/demo has {"type":"yarn"': {"beta_fast": 8},
    }
    same = {}, {"seed": 1}, {"model": "hidden_size: 32"}, {"steps": (5, 10)}
    mismatches = found(*same, *wanted.values())
    for number, (said, mismatch) in enumerate(zip(wanted, mismatches, strict=True), start=4):
        assert mismatch.message.replace("validation", "val").startswith(said)
        assert mismatch.sweep.run == f"run{number}"


@pytest.fixture
def mismatches(sweep_of):
    """Return a function that makes runs, each with a sweep of factors that a fit may have found."""

    def mismatches(*fits, found=None):
        sweeps = []
        for seed, (factors, fit) in enumerate(fits):
            run = sweep_of(f"run{seed}", seed=seed, factors=factors)
            if fit is not None:
                folder = run / "fits/yarn-4"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "fit.yaml").write_text(f"{{{fit}}}")
                scaling = {"type": "explicit", "factors": found or factors}
                (folder / "strategy.json").write_text(json.dumps({"scaling": scaling}))
            sweeps.append(read_sweep(run / "evals/demo"))
        return find_mismatches(sweeps)

    return mismatches


def test_numbers_may_differ_if_the_same_fit_of_each_run_found_them(mismatches):
    others = ("length: 32, seed: 1, name: x", "length: 64", None)
    fits = [([1.0, 3.0 + i], fit) for i, fit in enumerate(others)]
    another, none = mismatches(([1.0, 2.0], "length: 32, seed: 0"), *fits)
    for mismatch, run in ((another, "run2"), (none, "run3")):
        assert mismatch.sweep.run == run
        assert mismatch.message.startswith(
            'scalings: run0/demo has {"fit":{"step":null,"length":[32'
        )
        assert mismatch.message.endswith("(yarn-4); give one of them another name")


def test_a_strategy_file_with_other_numbers_than_the_sweep_proves_nothing(mismatches):
    fits = ([1.0, 2.0], "length: 32"), ([1.0, 3.0], "length: 32")
    (mismatch,) = mismatches(*fits, found=[1.0, 2.0])
    assert 'run1/demo has {"type":"explicit"' in mismatch.message


def test_protocols_that_the_first_sweep_lacks_must_agree_among_the_others(found):
    sliding = {"protocols": ("sliding",)}
    mismatches = found(
        *({"protocols": ("same_tokens",)}, sliding, sliding, sliding | {"targets": "xyz"}),
        {"protocols": ("same_tokens",), "targets": "xyz"},
    )
    message, other = (mismatch.message for mismatch in mismatches)
    assert message.startswith("targets: run1/demo has abc-8, run3/demo has xyz-8 (sliding 8,")
    assert "run0/demo has abc, run4/demo has xyz (same_tokens); sweep" in other


def test_several_mismatches_are_counted(found):
    refuse_mismatches([])
    both = found({}, {"corpus": "beef", "bos": "none"})
    with pytest.raises(UserError, match=r"^corpus: ") as caught:
        refuse_mismatches(both)
    assert "(and 1 more); with force=true" in str(caught.value)


def compared(sweeps):
    return compare(sweeps, find_mismatches(sweeps), CompareConfig(resamples=50))


def test_truncation_is_read_from_none_where_trained_was_not_measured(sweep_of):
    (sweep,) = read(sweep_of("one", own="none"))
    assert truncation_key(sweep, 100) == ("trained", "same_tokens", 16, 100)
    sums = {key: value for key, value in sweep.sums.items() if key.name != "trained"}
    other = replace(sweep, sums=sums)
    assert truncation_key(other, 100) == ("none", "same_tokens", 16, 100)
    for one, two in zip(compared([sweep]).curves, compared([other]).curves, strict=True):
        assert one.usable == two.usable
        assert [p.gain for p in one.points] == [p.gain for p in two.points]
