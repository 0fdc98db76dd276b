"""Pooled and paired figures, against values worked out by hand."""

import math

import numpy as np
import pytest

from rope_jax.comparison.curves import compare
from rope_jax.comparison.read import read_sweep
from rope_jax.config.presentation import CompareConfig
from rope_jax.errors import UserError
from tests.comparison.conftest import compared, read

WIDER = "hidden_size: 32"


def point(curves, name, length, *, group=0, protocol="same_tokens"):
    groups = list(dict.fromkeys(curve.group for curve in curves))
    (found,) = (
        p
        for curve in curves
        for p in curve.points
        if (curve.group, curve.name) == (groups[group], name)
        and (p.protocol, p.length) == (protocol, length)
    )
    return found


def test_a_single_run_has_the_intervals_of_its_sweep(sweep_of):
    run = sweep_of("demo")
    found = compared(run)
    (group,) = found.groups
    assert (group.label, group.marked, found.notes) == ("demo", False, [])
    assert len(found.curves) == 2
    equal = ("nll", "ci_low", "ci_high", "ppl", "bpb", "bpb_low", "bpb_high", "tokens")
    equal += ("first_position", "last_position")
    for row in read_sweep(run / "evals/demo").rows:
        p = point(found.curves, row.name, row.length, protocol=row.protocol)
        for name in equal:
            assert getattr(p, name) == pytest.approx(getattr(row, name)), name
        assert (p.documents, p.nll_by_seed) == (24, (p.nll,))
        assert p.from_first is None
        assert p.above_own in (None, p.above_truncation)


def test_seeds_are_pooled(sweep_of):
    runs = [sweep_of(f"demo-s{seed}", seed=seed, shift=0.1 * seed) for seed in range(3)]
    found = compared(*runs)
    (group,) = found.groups
    assert group.label == "demo (3 seeds)"
    p = point(found.curves, "yarn-4", 32)
    each = [sweep.sums["yarn-4", "same_tokens", 32, 100].mean() for sweep in read(*runs)]
    assert p.nll_by_seed == tuple(each)
    assert p.nll == pytest.approx(np.mean(each))
    alone = point(compared(runs[1]).curves, "yarn-4", 32)
    # t with 2 degrees of freedom × the standard error of three seeds, combined with the documents'
    seeds = 4.302653 * np.std(each, ddof=1) / math.sqrt(3)
    assert p.ci_high - p.nll > seeds
    assert p.ci_high - p.nll == pytest.approx(math.hypot(seeds, alone.ci_high - alone.nll), 0.1)
    # within a run, differences of seeds cancel: the offsets are the same for all documents
    assert p.difference == pytest.approx((0.125 - 0.5,) * 3)
    assert p.above_own == pytest.approx((0.125,) * 3)


def test_a_loss_is_above_truncation_and_usable_length_follows(sweep_of):
    found = compared(sweep_of("demo", own=None))
    (curve,) = found.curves
    assert curve.usable == (None, False, True)
    points = {(p.protocol, p.length): p for p in curve.points}
    above = {n: points["same_tokens", n].above_truncation.value for n in (8, 16, 32, 64)}
    assert above == pytest.approx({8: 0.5, 16: 0.25, 32: 0.125, 64: 0.375})  # `trained` at 16
    for n, value in above.items():
        known = points["same_tokens", n].above_own  # none below the window
        assert known is None if n < 16 else known.value == pytest.approx(value)
        assert points["whole_window", n].above_truncation is None
    (trained, _) = compared(sweep_of("two")).curves
    assert trained.usable == (16, False, True)
    assert all(p.difference is None for p in trained.points)


def test_each_stage_has_its_own_baseline_and_curves(sweep_of):
    run = sweep_of("demo", own="none", steps=(50, 100))
    config = run / "config.yaml"
    stages = (
        "stages: [{steps: 60, seq_len: 16, batch_size: 1}, {steps: 40, seq_len: 16, batch_size: 1, "
        "scaling: {type: yarn, factor: 4.0}}]"
    )
    config.write_text(config.read_text().partition("stages")[0] + stages)
    (sweep,) = read(run)
    assert sweep.baselines == {50: "none", 100: "yarn-4"}
    curves = compared(run).curves
    assert point(curves[-2:], "none", 32).difference.value == pytest.approx(0.375)
    assert [(curve.step, curve.is_newest) for curve in curves] == (
        [(50, False), (50, False), (100, True), (100, True)]
    )
    levels = {c.step: c.points[0].nll for c in curves if c.name == "none"}
    assert levels[50] - levels[100] == pytest.approx(0.1)


@pytest.fixture(scope="module")
def base(lasting):
    """Two seeds."""
    return [lasting(f"a-s{s}", seed=s, shift=0.2 * s) for s in (0, 1)]


def test_groups_are_paired_with_the_first(base, sweep_of):
    other = [sweep_of(f"b-s{s}", seed=s, shift=0.5 + 0.2 * s, model=WIDER) for s in (0, 1)]
    found = compared(*base, *other)
    assert [group.label for group in found.groups] == ["a (2 seeds)", "b (2 seeds)"]
    p = point(found.curves, "trained", 64, group=1)
    theirs = point(found.curves, "trained", 64)
    assert theirs.from_first is None
    assert p.from_first.value == pytest.approx(p.nll - theirs.nll)
    assert p.from_first.low < p.from_first.value < p.from_first.high
    # document levels cancel: the noise and seeds that remain vary far less than documents do
    assert p.from_first.high - p.from_first.low < (p.ci_high - p.ci_low) / 2


def test_every_group_is_measured_against_truncation_of_the_first(base, sweep_of):
    # the same texts, trained at 64: truncation still means 16 tokens of the first group
    longer = [
        sweep_of(f"b-s{s}", seed=s, shift=0.2 * s - 0.5, window=64, own="trained") for s in (0, 1)
    ]
    found = compared(*base, *longer)
    for name, length in (("trained", 8), ("yarn-4", 64)):
        p = point(found.curves, name, length, group=1)
        at_window = point(found.curves, "trained", 16)
        assert p.above_truncation.value == pytest.approx(p.nll - at_window.nll)
        # paired by seed, whose levels cancel
        half = p.above_truncation.high - p.above_truncation.value
        assert half < (p.ci_high - p.nll) / 5
    p = point(found.curves, "yarn-4", 64)
    assert p.above_truncation.value == pytest.approx(p.above_own.value)
    assert point(found.curves, "yarn-4", 64, protocol="whole_window").above_truncation is None


def test_other_seeds_than_the_first_groups_are_paired_by_document(base, sweep_of):
    found = compared(*base, sweep_of("b", seed=5, shift=-0.5, model=WIDER))
    p, at_window = point(found.curves, "yarn-4", 64, group=1), point(found.curves, "trained", 16)
    assert p.above_truncation.value == pytest.approx(p.nll - at_window.nll)
    assert p.above_truncation.low < p.above_truncation.value < p.above_truncation.high


def test_a_seed_without_the_newest_step_is_noted(sweep_of):
    found = compared(sweep_of("x-s0", steps=(50, 100)), sweep_of("x-s1", steps=(50,), seed=1))
    assert found.notes == ["x (2 seeds): step 100 is shown without x-s1 (not measured there)"]
    sizes = {curve.step: len(curve.points[0].nll_by_seed) for curve in found.curves}
    assert sizes == {50: 2, 100: 1}


def test_sweeps_that_cannot_be_compared_are_marked_and_not_pooled(sweep_of):
    odd = sweep_of("x-1", seed=1, targets="xyz")
    found = compared(sweep_of("x-0"), odd, sweep_of("x-2", seed=2), sweep_of("x-3", bos="none"))
    assert [(group.label, group.marked) for group in found.groups] == [
        *(("x (2 seeds)", False), ("x-1 †", True), ("x-3 †", True))
    ]
    start = "† cannot be compared with the sweeps before it: "
    for note, field in zip(found.notes, ("targets", "bos"), strict=True):
        assert note.startswith(f"{start}{field}: x-0/demo has ")
    assert point(found.curves, "trained", 64, group=1).from_first is None


def test_a_sweep_without_its_runs_config_is_not_pooled(sweep_of):
    runs = [sweep_of(f"s{seed}", seed=seed) for seed in (0, 1)]
    (runs[1] / "config.yaml").unlink()
    found = compared(*runs)
    assert [group.label for group in found.groups] == ["s0", "s1"]
    assert found.notes == [
        "s1: its run has no readable config.yaml, so it is not pooled with other seeds"
    ]


def test_points_that_a_seed_lacks_are_left_out_and_noted(sweep_of):
    runs = [sweep_of("x-s0"), sweep_of("x-s1", seed=1, lengths=(8, 16, 64))]
    found = compared(*runs, sweep_of("y", model=WIDER))
    assert found.notes == [
        f"x (2 seeds): {name} by {protocol} at 32 (step 100) was not measured for every seed "
        "and is left out"
        for name in ("trained", "yarn-4")
        for protocol in ("same_tokens", "whole_window")
    ]
    for curve in found.curves[:2]:
        assert {(p.length, len(p.nll_by_seed)) for p in curve.points} == {(8, 2), (16, 2), (64, 2)}
    # nor is there a difference from them
    known = {p.length: p.from_first is not None for p in found.curves[-1].points}
    assert known == {8: True, 16: True, 32: False, 64: True}


def test_the_comparison_has_its_own_tolerance(sweep_of):
    sweeps = read(*(sweep_of(f"x-s{seed}", seed=seed) for seed in (0, 1)))
    for tolerance, usable in ((0.6, [32, 64]), (0.02, [16, None])):
        config = CompareConfig(resamples=50, tolerance=tolerance)
        assert [c.usable[0] for c in compare(sweeps, [], config).curves] == usable


def test_the_same_seed_twice_and_seeds_with_no_point_in_common_are_refused(sweep_of):
    with pytest.raises(UserError, match=r"have the same config and the same seed, 0, so they are"):
        compared(sweep_of("one"), sweep_of("two"))
    whole = {"protocols": ("whole_window",)}
    runs = [sweep_of("x-s0", lengths=(8, 16), **whole)]
    runs.append(sweep_of("x-s1", seed=1, lengths=(32, 64), **whole))
    with pytest.raises(UserError, match=r"^x \(2 seeds\): its seeds have no point in common$"):
        compared(*runs)
