"""What cannot be compared is refused by name."""

import pytest

from rope_jax.comparison.comparable import mismatches, refuse
from rope_jax.comparison.sweeps import read
from rope_jax.errors import UserError


@pytest.fixture
def found(sweep_of):
    """Mismatches of runs, each made with these settings."""

    def found(*settings):
        runs = [sweep_of(f"run{i}", **each) for i, each in enumerate(settings)]
        return mismatches([read(next((run / "evals").glob("[!.]*"))) for run in runs])

    return found


def test_other_models_and_seeds_and_steps_may_be_compared(found):
    assert found({}, {"seed": 1}, {"model": "hidden_size: 32"}, {"steps": (5, 10)}) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"corpus": "beef"}, "corpus: run0/demo has c0ffee, run1/demo beef; they were trained and"),
        ({"bos": "none"}, "bos: run0/demo has document, run1/demo none; sweep them with the same"),
        ({"split": "validation"}, "split: run0/demo has test, run1/demo validation; sweep them"),
        (
            {"targets": "xyz"},
            "targets: run0/demo has abc, run1/demo xyz (same_tokens, whole_window 8, whole_window "
            "16, whole_window 32, whole_window 64); sweep them with the same lengths, targets, "
            "max_documents, max_blocks, stride and seed, or take one sweep of each run with sweep=",
        ),
    ],
)
def test_what_differs_is_named(found, settings, said):
    (mismatch,) = found({}, settings)
    assert mismatch.message.startswith(said)
    assert mismatch.sweep.run == "run1"


def test_one_name_has_one_meaning(found):
    (mismatch,) = found({}, {"beta_fast": 8})
    assert mismatch.message.startswith('scalings: run0/demo has {"type":"yarn"')
    assert mismatch.message.endswith("(yarn-4); give one of them another name")


def test_those_that_the_first_lacks_are_compared_with_one_another(found):
    sliding = {"protocols": ("sliding",)}
    (mismatch,) = found(
        {"protocols": ("same_tokens",)}, sliding, sliding, sliding | {"targets": "xyz"}
    )
    assert mismatch.sweep.run == "run3"
    assert mismatch.message.startswith("targets: run1/demo has abc-8, run3/demo xyz-8 (sliding 8,")


def test_several_are_counted(found):
    refuse([])
    both = found({}, {"corpus": "beef", "bos": "none"})
    assert len(both) == 2
    with pytest.raises(UserError) as caught:
        refuse(both)
    assert str(caught.value).startswith("corpus: ")
    assert str(caught.value).endswith("(and 1 more); force=true draws them all the same, marked")
