"""Names of groups: only a seed's suffix is left out, and only where seeds are pooled."""

import pytest

from rope_jax.comparison.groups import group_sweeps, without_seed
from rope_jax.comparison.read import find_sweeps, read_sweep


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("novels", "novels"),
        ("novels-s1", "novels"),
        ("runs-2", "runs"),
        ("demo-s0", "demo"),
        ("demo_seed2", "demo"),
        ("demo-seed-2", "demo"),
        ("demo.3", "demo"),
        ("demo=s4", "demo"),
        ("gpt2", "gpt2"),
        ("llama3", "llama3"),
        ("base10000", "base10000"),
        ("wide-3", "wide"),
        ("x-s", "x-s"),
        ("bass", "bass"),
        ("bass1", "bass1"),
        ("s1", "s1"),
        ("x-base2", "x-base2"),
        ("gpt-2-s1", "gpt-2"),
    ],
)
def test_only_a_suffix_behind_a_separator_names_a_seed(name, stem):
    assert without_seed(name) == stem


@pytest.mark.parametrize("name", ["runs-2", "novels-s1", "gpt2"])
def test_a_run_that_is_not_pooled_keeps_its_whole_name(sweep_of, name):
    runs = [sweep_of(name), sweep_of("other", model="hidden_size: 32")]
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    assert [group.label for group in group_sweeps(sweeps, [])] == [name, "other"]
