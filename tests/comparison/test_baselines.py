"""`none` on a model that was trained with none is what others call `trained`."""

import io
from dataclasses import replace

import pytest

from rope_jax.comparison.comparable import align_baselines, find_mismatches, truncation_key
from rope_jax.comparison.curves import compare
from rope_jax.config.presentation import CompareConfig
from rope_jax.console import plain_console
from rope_jax.report.comparison import comparison_markdown
from rope_jax.report.terminal import print_comparison
from tests.comparison.conftest import read


def compared(sweeps):
    return compare(sweeps, find_mismatches(sweeps), CompareConfig(resamples=50))


def test_none_stands_beside_trained(sweep_of):
    one = sweep_of("one", own="trained")
    two = sweep_of("two", own="none", shift=0.5, model="hidden_size: 32")
    found = compared(align_baselines(read(one, two)))
    assert [(c.group.label, c.name) for c in found.curves] == [
        *(("one", "trained"), ("one", "yarn-4"), ("two", "trained"), ("two", "yarn-4"))
    ]
    assert (found.baseline, found.notes) == ("trained", [])
    remark = (
        "two: its curve none is shown as trained, because the model was trained with this scaling"
    )
    assert found.remarks == (remark,)
    assert f"|\n\n{remark}.\n\n## " in comparison_markdown(found)
    stream = io.StringIO()
    print_comparison(plain_console(file=stream, width=200), found)
    assert stream.getvalue().endswith(f"\n{remark}\n")
    renamed = found.curves[2]
    for p, other in zip(renamed.points, found.curves[0].points, strict=True):
        assert p.difference is None
        assert p.from_first.value == pytest.approx(p.nll - other.nll)
    # everything else is as in a comparison of this sweep alone
    (alone, _) = compared(read(two)).curves
    assert alone.name == "none"
    assert renamed.usable == alone.usable
    assert [(p.nll, p.gain) for p in renamed.points] == [(p.nll, p.gain) for p in alone.points]


def test_seeds_with_either_name_are_pooled_and_other_sweeps_keep_their_names(sweep_of):
    runs = sweep_of("x-s0", own="trained"), sweep_of("x-s1", own="none", seed=1)
    found = compared(align_baselines(read(*runs)))
    assert [(c.name, len(c.points[0].nll_by_seed)) for c in found.curves] == [
        *(("trained", 2), ("yarn-4", 2))
    ]
    # other sweeps keep their names: the second has no curve of its own scaling
    sweeps = read(sweep_of("one"), sweep_of("two", own="none", trained_with="yarn", beta_fast=8))
    assert align_baselines(sweeps) == sweeps
    # without any `trained`, `none` stays
    sweeps = read(sweep_of("three", own="none"), sweep_of("four", own="none", seed=1, shift=0.2))
    assert align_baselines(sweeps) == sweeps


def test_truncation_is_read_from_none_where_trained_was_not_measured(sweep_of):
    (sweep,) = read(sweep_of("one", own="none"))
    assert truncation_key(sweep, 100) == ("trained", "same_tokens", 16, 100)
    sums = {key: value for key, value in sweep.sums.items() if key.name != "trained"}
    other = replace(sweep, sums=sums)
    assert truncation_key(other, 100) == ("none", "same_tokens", 16, 100)
    for one, two in zip(compared([sweep]).curves, compared([other]).curves, strict=True):
        assert one.usable == two.usable
        assert [p.gain for p in one.points] == [p.gain for p in two.points]
