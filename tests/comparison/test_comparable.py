"""Sweeps that cannot be compared are refused, and the difference is named."""

import pytest

from rope_jax.comparison.comparable import find_mismatches, refuse_mismatches
from rope_jax.comparison.read import read_sweep
from rope_jax.errors import UserError


@pytest.fixture
def found(sweep_of):
    """Return a function that finds the mismatches of runs made with the given settings."""

    def found(*settings):
        runs = [sweep_of(f"run{i}", **each) for i, each in enumerate(settings)]
        return find_mismatches([read_sweep(next((run / "evals").glob("[!.]*"))) for run in runs])

    return found


def test_models_seeds_and_steps_may_differ(found):
    assert found({}, {"seed": 1}, {"model": "hidden_size: 32"}, {"steps": (5, 10)}) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"corpus": "beef"},
            "corpus: run0/demo has c0ffee, run1/demo has beef; they were trained and",
        ),
        (
            {"bos": "none"},
            "bos: run0/demo has document, run1/demo has none; sweep them with the same",
        ),
        (
            {"split": "validation"},
            "split: run0/demo has test, run1/demo has validation; sweep them",
        ),
        (
            {"targets": "xyz"},
            "targets: run0/demo has abc, run1/demo has xyz (same_tokens, whole_window 8, "
            "whole_window 16, whole_window 32, whole_window 64); sweep them with the same lengths, "
            "targets, max_documents, max_blocks, stride and seed, or choose one sweep of each run",
        ),
    ],
)
def test_the_difference_is_named(found, settings, said):
    (mismatch,) = found({}, settings)
    assert mismatch.message.startswith(said)
    assert mismatch.sweep.run == "run1"


def test_a_name_must_mean_the_same_settings_everywhere(found):
    (mismatch,) = found({}, {"beta_fast": 8})
    assert mismatch.message.startswith('scalings: run0/demo has {"type":"yarn"')
    assert mismatch.message.endswith("(yarn-4); give one of them another name")


def test_numbers_that_a_fit_found_may_differ(found):
    assert found({"factors": [1.0, 2.0]}, {"factors": [1.0, 3.0]}) == []


def test_a_name_of_fitted_numbers_cannot_be_that_of_a_formula(found):
    (mismatch,) = found({"factors": [1.0, 2.0]}, {"beta_fast": 8})
    assert mismatch.message.startswith('scalings: run0/demo has {"type":"explicit"')


def test_protocols_that_the_first_sweep_lacks_must_agree_among_the_others(found):
    sliding = {"protocols": ("sliding",)}
    (mismatch,) = found(
        {"protocols": ("same_tokens",)}, sliding, sliding, sliding | {"targets": "xyz"}
    )
    assert mismatch.sweep.run == "run3"
    assert mismatch.message.startswith(
        "targets: run1/demo has abc-8, run3/demo has xyz-8 (sliding 8,"
    )


def test_several_mismatches_are_counted(found):
    refuse_mismatches([])
    both = found({}, {"corpus": "beef", "bos": "none"})
    assert len(both) == 2
    with pytest.raises(UserError) as caught:
        refuse_mismatches(both)
    assert str(caught.value).startswith("corpus: ")
    assert str(caught.value).endswith(
        "(and 1 more); with force=true they are drawn anyway, and marked"
    )
