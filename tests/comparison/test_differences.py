"""What differs between groups is named by the keys of the config, and nothing else is."""

import copy
import json

import pytest

from rope_jax.comparison.groups import describe_settings, distinguish, group_sweeps
from rope_jax.comparison.read import find_sweeps, read_sweep

STAGE = {"steps": 1000, "seq_len": 128, "batch_size": 16}


def experiment(**changes):
    """Return a run's config as JSON; `rope__base=1e6` sets rope.base."""
    config = {"rope": {}, "model": {}, "stages": [copy.deepcopy(STAGE)]}
    for key, value in changes.items():
        *sections, last = key.split("__")
        node = config
        for section in sections:
            node = node[int(section) if section.isdecimal() else section]
        node[last] = value
    return json.dumps(config)


BASE = experiment()


@pytest.mark.parametrize(
    ("others", "found"),
    [
        # whole numbers are written as such, and each group has the keys that any two differ in
        (
            [experiment(rope__base=5e5), experiment(rope__base=5e5, model__hidden_size=256)],
            [
                {"model.hidden_size": "128", "rope.base": "10000"},
                {"model.hidden_size": "128", "rope.base": "500000"},
                {"model.hidden_size": "256", "rope.base": "500000"},
            ],
        ),
        # of a scaling that the others do not have, only what is not the default
        (
            [
                experiment(rope__scaling={"type": "yarn", "factor": 8}),
                experiment(rope__scaling={"type": "yarn", "factor": 8, "beta_fast": 16}),
            ],
            [
                {"rope.scaling.type": "none"},
                {"rope.scaling.type": "yarn", "rope.scaling.factor": "8"},
                {
                    "rope.scaling.type": "yarn",
                    "rope.scaling.factor": "8",
                    "rope.scaling.beta_fast": "16",
                },
            ],
        ),
        # of two scalings of one type, only what differs
        (
            [experiment(rope__scaling={"type": "none", "query_scale": {"type": "logn"}})],
            [
                {"rope.scaling.query_scale.type": "absent"},
                {"rope.scaling.query_scale.type": "logn"},
            ],
        ),
        # a section that is null in the others
        (
            [experiment(rope__map={"type": "rerope", "window": 64}, stages__0__seq_len=256)],
            [
                {"rope.map.type": "absent", "stages.0.seq_len": "128"},
                {
                    "rope.map.type": "rerope",
                    "rope.map.window": "64",
                    "stages.0.seq_len": "256",
                },
            ],
        ),
        # a stage that the others do not have
        (
            [experiment(stages=[STAGE, STAGE | {"positions": {"type": "pose", "length": 512}}])],
            [
                {"stages.1": "absent"},
                {
                    "stages.1.steps": "1000",
                    "stages.1.seq_len": "128",
                    "stages.1.batch_size": "16",
                    "stages.1.positions.type": "pose",
                    "stages.1.positions.length": "512",
                },
            ],
        ),
        # a default that is spelled out is no difference, and neither is an older file without it
        ([experiment(rope__base=10000.0, model__qk_norm=False)], [{}, {}]),
        # a config that cannot be read is not compared
        (
            [None, experiment(rope__base=3.5)],
            [{"rope.base": "10000"}, {}, {"rope.base": "3.5"}],
        ),
    ],
)
def test_settings_that_differ_are_named(others, found):
    assert distinguish([BASE, *others]) == found


def test_nothing_differs_from_nothing():
    assert distinguish([]) == []
    assert distinguish([BASE]) == [{}]
    assert distinguish([BASE, None]) == [{}, {}]


def test_long_values_are_one_short_line():
    odd = experiment(data={"type": "stdlib", "cache_dir": "a\x1b[31m\n" * 20})
    _, found = distinguish([BASE, odd])
    assert found["data.cache_dir"].startswith("a\\x1b[31m\\na")
    assert len(found["data.cache_dir"]) == 60


def test_long_lists_of_settings_are_counted():
    settings = {f"rope.k{i}": str(i) for i in range(7)}
    assert describe_settings({}, briefly=True) == ""
    assert describe_settings(settings, briefly=True) == (
        "rope.k0 0, rope.k1 1, rope.k2 2 and 4 more"
    )
    assert describe_settings(settings, briefly=False).count(",") == 6


def test_groups_know_their_settings(sweep_of):
    """Neither the seed, the name and the folder of a run nor defaults distinguish it."""
    runs = [sweep_of(f"a-s{seed}", seed=seed) for seed in (0, 1)]
    runs.append(sweep_of("b", model="hidden_size: 32", trained_with="yarn"))
    config = runs[1] / "config.yaml"
    config.write_text(config.read_text() + "validation: {batches: 2}\nimported: null\n")
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    first, second = group_sweeps(sweeps, [])
    assert (first.label, second.label) == ("a (2 seeds)", "b")
    assert first.settings == {"model.hidden_size": "16", "rope.scaling.type": "none"}
    assert second.settings == {
        "model.hidden_size": "32",
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": "4",
    }
