"""A grid as jobs: names, axes, placeholders, sources, and grids that make no sense."""

import copy
import math
import random
import re
import shlex
from pathlib import Path

import pytest
import yaml

from rope_jax.config.explain import validate
from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig
from rope_jax.config.inherit import load_training
from rope_jax.config.load import dump, load
from rope_jax.config.strategy import Strategy, write_strategy
from rope_jax.errors import UserError
from rope_jax.grids.expand import expand
from rope_jax.grids.jobs import FitJob, SweepJob, TrainJob
from rope_jax.rope.strategies import PIScaling

ROOT = Path(__file__).parents[2]

# The shape of an experiment on context extension: trained runs with sweeps, fits on them, and runs
# that start from them, at four lengths.
EXTENSION = """\
name: extension
runs_dir: out
window: 128
tokens_per_step: 8192
runs:
  - name: yarn
    train: '{kind}.yaml'
    source: base
    axes: {kind: [run], factor: [2, 4.0], steps: [120, 500]}
    set:
      stages.0.steps: '{steps}'
      stages.0.seq_len: '{length}'
      stages.0.scaling: {type: yarn, factor: '{factor}'}
      data.cache_dir: cache-{factor}-of-{source}
  - name: base
    train: run.yaml
    axes: {seed: [0, 1, 2]}
    set: {seed: '{seed}'}
    sweeps: [sweep.yaml]
  - name: search
    fit: fit.yaml
    source: base
    axes: {factor: [2, 8], seed: [2]}
    set: {length: '{length}'}
    sweeps:
      - config: sweep.yaml
        set: {scalings: [trained, '{fit}/strategy.json']}
  - name: tuned
    train: run.yaml
    source: search
    axes: {factor: [8]}
    set: {rope.strategy: '{fit}/strategy.json'}
    sweeps: [{config: sweep.yaml, set: {scalings: [{type: '{fit}/strategy.json', name: fit}]}}]
  - name: again
    train: run.yaml
    source: yarn
    axes: {factor: [4.0], steps: [500], seed: [2]}
    set: {init_from: '{source}@100', stages.0.seq_len: '{length}'}
  - name: long
    train: run.yaml
    axes: {factor: [16]}
    set: {stages.0.seq_len: '{length}', stages.0.batch_size: '{batch_size}'}
compare: {output: compared, resamples: 100}
"""


def expand_text(text, *overrides):
    Path("grid.yaml").write_text(text)
    return expand(load(GridConfig, Path("grid.yaml"), overrides))


@pytest.fixture
def jobs(folder):
    """Return the jobs of EXTENSION by name."""
    Path("fit.yaml").write_text("{name: unused, learn: [far_phase], length: 512}")
    return {job.name: job for job in expand_text(EXTENSION)}


def test_names_and_order(jobs):
    yarn = [f"yarn-run-x{f}-{n}-s{s}/train" for f in (2, 4) for n in (120, 500) for s in (0, 1, 2)]
    base = [f"base-s{s}/{kind}" for s in (0, 1, 2) for kind in ("train", "sweep-short")]
    fits = [f"base-s2/{kind}-x{f}" for f in (2, 8) for kind in ("fit-search", "sweep-short-search")]
    # the sources come first, although the entry of base is the second
    more = ["tuned-x8-s2/train", "tuned-x8-s2/sweep-short", "again-run-x4-500-s2/train"]
    assert list(jobs) == [*base, *yarn, *fits, *more, "long-x16/train", "compare"]


def test_every_job_comes_after_those_that_it_needs(jobs):
    order = list(jobs)
    for name, job in jobs.items():
        assert all(order.index(other.name) < order.index(name) for other in job.needs)
    assert [job.name for job in jobs["yarn-run-x4-120-s1/train"].needs] == ["base-s1/train"]
    assert [job.name for job in jobs["base-s2/sweep-short-search-x8"].needs] == [
        "base-s2/fit-search-x8"
    ]
    sweeps = [name for name in order if "/sweep-" in name]
    assert [job.name for job in jobs["compare"].needs] == sweeps
    assert not jobs["compare"].needs_all


def test_the_commands(jobs):
    def words(name):
        return jobs[name].command(Path())[1:]

    def command(name):
        return shlex.join(words(name))

    assert command("base-s1/train") == "train.py run.yaml seed=1 name=base-s1 runs_dir=out"
    assert words("yarn-run-x4-500-s2/train") == [
        "train.py",
        "run.yaml",
        "init_from=out/base-s2",
        "stages.0.steps=500",
        "stages.0.seq_len=512",
        "stages.0.scaling={type: yarn, factor: 4.0}",
        "data.cache_dir=cache-4-of-out/base-s2",
        "name=yarn-run-x4-500-s2",
        "runs_dir=out",
    ]
    assert command("long-x16/train") == (
        "train.py run.yaml stages.0.seq_len=2048 stages.0.batch_size=4 name=long-x16 runs_dir=out"
    )
    assert command("base-s0/sweep-short") == "eval_ppl.py out/base-s0 --sweep sweep.yaml"
    # what the fit's file says, except its name
    assert words("base-s2/fit-search-x8") == [
        "scripts/fit.py",
        "out/base-s2",
        "learn=[far_phase]",
        "length=1024",
        "name=search-x8",
    ]
    assert words("base-s2/sweep-short-search-x8")[-2:] == [
        "scalings=[trained, out/base-s2/fits/search-x8/strategy.json]",
        "name=short-search-x8",
    ]
    # training from a fit: the weights are those of the run that it was made on
    assert [job.name for job in jobs["tuned-x8-s2/train"].needs] == ["base-s2/fit-search-x8"]
    assert words("tuned-x8-s2/train")[2:4] == [
        "init_from=out/base-s2",
        "rope.strategy=out/base-s2/fits/search-x8/strategy.json",
    ]
    compare = words("compare")
    assert compare[:2] == ["scripts/compare.py", "out/base-s0/evals/short"]
    assert compare[-2:] == ["output=compared", "resamples=100"]


def test_what_is_inherited_is_known_before_there_is_a_run(folder):
    """What is known at expansion is what the real files give, once they are there."""
    text = EXTENSION.replace("set: {seed: '{seed}'}", "set: {seed: '{seed}', rope.base: 500.0}")
    before = expand_text(text)
    for job in before:
        if isinstance(job, TrainJob):
            config = load_training(job.config, job.overrides)
            if job.name.startswith("tuned"):
                assert config.rope.scaling == PIScaling(factor=2.0)
                assert job.planned.rope.scaling.type == "none"
            else:
                assert job.planned == config
            assert config.rope.base == (10000.0 if job.name.startswith("long") else 500.0)
            for step in (100, config.last_step):
                (job.folder / "checkpoints" / str(step)).mkdir(parents=True)
            (job.folder / "config.yaml").write_text(dump(config))
        elif isinstance(job, FitJob):
            job.folder.mkdir(parents=True)
            write_strategy(Strategy(scaling=PIScaling(factor=2.0)), job.folder / "strategy.json")
            assert load(FitConfig, None, job.overrides).name == job.folder.name
    after = expand_text(text)
    assert [job.command(None) for job in after] == [job.command(None) for job in before]
    sweeps = [
        [job.settings for job in jobs if isinstance(job, SweepJob)] for jobs in (before, after)
    ]
    assert sweeps[0] == sweeps[1]
    assert sweeps[0][-1]["strategies"] == ["out/base-s2/fits/search-x8/strategy.json"]


def test_a_comparison_of_one_sweep(folder):
    text = EXTENSION.replace("output: compared", "sweep: short")
    (*_, compare) = expand_text(text)
    names = [job.name for job in compare.needs]
    assert names == [
        *(f"base-s{seed}/sweep-short" for seed in (0, 1, 2)),
        "tuned-x8-s2/sweep-short",
    ]


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/grids/*.yaml")), ids=lambda p: p.name)
def test_the_grids_of_the_repository_expand(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    jobs = expand(load(GridConfig, path))
    assert len(jobs) > 3
    assert jobs[-1].name == "compare"


def test_the_grid_of_the_readme_expands(monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```yaml\n(.*?)```", Path("docs/sweeps.md").read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "axes" in block)
    jobs = expand(validate(GridConfig, yaml.safe_load(text), "docs/sweeps.md"))
    runs = [job.folder.name for job in jobs if isinstance(job, TrainJob)]
    # as the comments in it say
    long = [f"long-x{factor}-s{seed}" for seed in (0, 1) for factor in (2, 4)]
    assert runs == ["base-s0", "base-s1", *long]


TINY = "{name: tiny, train: run.yaml}"
BASE = "{name: base, train: run.yaml, axes: {seed: [0, 1]}, set: {seed: '{seed}'}}"

FIT = f"[{TINY}, {{name: f, fit: fit.yaml, source: tiny"
MORE = f"[{TINY}, {{name: more, train: run.yaml, source: tiny"

WRONG = {
    "neither train nor fit": ("[{name: a}]", "runs.0.train: is required, unless fit is given"),
    "both": (
        "[{name: a, train: run.yaml, fit: fit.yaml}]",
        "runs.0.fit: cannot be given together with train; make two entries",
    ),
    "a fit on nothing": (
        "[{name: a, fit: fit.yaml}]",
        "runs.0.source: is required with fit; name the entry with the runs to fit on",
    ),
    "one name twice": (f"[{TINY}, {TINY}]", "runs: tiny occurs twice; choose another name"),
    "an unknown source": (
        f"[{TINY}, {{name: a, train: run.yaml, source: tony}}]",
        "runs.1.source: no entry is called tony; there are tiny, a",
    ),
    "a fit of a fit": (
        f"[{TINY}, {{name: f, fit: x, source: tiny}}, {{name: g, fit: x, source: f}}]",
        "runs.2.source: f is a fit as well; name an entry with train",
    ),
    "its own source": (
        "[{name: a, train: run.yaml, source: a}]",
        "runs.0.source: a starts from a; one of them has to start from nothing",
    ),
    "a circle": (
        "[{name: a, train: run.yaml, source: b}, {name: b, train: run.yaml, source: a}]",
        "runs.0.source: a starts from b starts from a; one of them has to start from nothing",
    ),
    "a value twice": (
        "[{name: a, train: run.yaml, axes: {seed: [0, 1, 0]}}]",
        "runs.0.axes.seed: 0 occurs twice",
    ),
    "a reserved axis": (
        "[{name: a, train: run.yaml, axes: {length: [128]}}]",
        "runs.0.axes.length: {length} has a meaning of its own; choose another name",
    ),
    "an axis that is no word": (
        "[{name: a, train: run.yaml, axes: {rope.base: [128]}}]",
        "runs.0.axes.rope.base: the name of an axis consists of letters, digits and _",
    ),
    "a repeated run": (
        "[{name: a, train: run.yaml, axes: {seed: [0, 1]}}]",
        "runs.0.axes.seed: repeats the same run, because nothing refers to {seed}; use it in "
        "runs.0.set, as in seed: '{seed}'",
    ),
    "names that meet": (
        "[{name: a, train: run.yaml, axes: {seed: [1]}, set: {seed: '{seed}'}}, "
        "{name: a-s1, train: run.yaml}]",
        "runs: runs/a-s1 is made twice; give one of the two another name",
    ),
    "an axis whose values make no name": (
        "[{name: a, train: run.yaml, axes: {f: [x/y]}, set: {data.cache_dir: '{f}'}}]",
        "runs.0.axes: 'a-x/y' cannot be the name of a run",
    ),
    "an unknown placeholder": (
        "[{name: a, train: run.yaml, axes: {seed: [1]}, set: {seed: '{sede}'}}]",
        "runs.0.set.seed: {sede} is not known here; use {seed}, {window}, {name}, {run}",
    ),
    "a length without a factor": (
        "[{name: a, train: run.yaml, set: {stages.0.seq_len: '{length}'}}]",
        "runs.0.set.stages.0.seq_len: {length} is not known here; it is window × axes.factor, both "
        "numbers, and whole",
    ),
    "a batch size without tokens per step": (
        "[{name: a, train: run.yaml, axes: {factor: [2]}, set: {seed: '{batch_size}'}}]",
        "runs.0.set.seed: {batch_size} is not known here; it is tokens_per_step / {length}, and "
        "whole",
    ),
    "a name in set": (
        "[{name: a, train: run.yaml, set: {name: b}}]",
        "runs.0.set.name: follows from the grid's runs_dir and the entry's name and axes; "
        "remove it",
    ),
    "a config that is not there": (
        "[{name: a, train: no.yaml}]",
        "runs.0 (a): no.yaml: no such file",
    ),
    "a key that the config does not have": (
        "[{name: a, train: run.yaml, set: {sead: 1}}]",
        "runs.0 (a): run.yaml: sead: unknown key; did you mean seed?",
    ),
    "a sweep twice": (
        "[{name: a, train: run.yaml, sweeps: [sweep.yaml, {config: sweep.yaml, set: {seed: 1}}]}]",
        "runs: runs/a/evals/short is made twice; give one of the two another name= in its set",
    ),
    "a value that the source does not have": (
        f"[{BASE}, {{name: a, train: run.yaml, source: base, axes: {{seed: [1, 2]}}}}]",
        "runs.1.axes.seed: base has no run with 2; its values are 0, 1",
    ),
    "a fit within the window": (
        f"{FIT}, set: {{length: 128}}}}]",
        "runs.1 (f): fit.yaml: length: 128 is within the window of 128 tokens; a fit is for longer "
        "texts",
    ),
    "a fit of a step that the run does not have": (
        f"{FIT}, set: {{step: 201}}}}]",
        "runs.1 (f): fit.yaml: step: step 201 is past the end of the last stage, 200",
    ),
    "an extension with another model": (
        f"{MORE}, set: {{rope.layout: interleaved}}}}]",
        "runs.1 (more): run.yaml: init_from: the model of runs/tiny differs: rope.layout is "
        "'half' there and 'interleaved' here; leave these keys out, so that they are inherited",
    ),
    "a map beside the strategy of a fit": (
        f"{FIT}}}, {{name: b, train: run.yaml, source: f, "
        "set: {rope.strategy: '{fit}/strategy.json', rope.map: {type: rerope, window: 9}}}]",
        "runs.2 (b): run.yaml: rope.map: is given both here and in strategy; keep one",
    ),
}


def test_a_fit_may_start_from_another_one(folder):
    start = "runs/tiny/fits/f/strategy.json"
    more = f"{{name: g, fit: fit.yaml, source: tiny, set: {{start: {start}}}}}"
    job = expand_text(f"name: g\nruns: {FIT}}}, {more}]\n")[-1]
    assert isinstance(job, FitJob)
    assert f"start={start}" in job.command(None)
    assert [needed.name for needed in job.needs] == ["tiny/train", "tiny/fit-f"]
    Path(start).parent.mkdir(parents=True)
    write_strategy(Strategy(scaling=PIScaling(factor=2.0)), Path(start))
    found = load(FitConfig, None, job.overrides).start
    assert found is not None
    assert (found.label, found.scaling_at_window) == ("f", PIScaling(factor=2.0))


def test_a_batch_size_is_a_whole_number(folder):
    says = r"\{batch_size\} is not known here; it is tokens_per_step / \{length\}, and whole"
    runs = "[{name: a, train: run.yaml, axes: {factor: [4]}, set: {seed: '{batch_size}'}}]"
    with pytest.raises(UserError, match=says):
        expand_text(f"name: g\nwindow: 128\ntokens_per_step: 1000\nruns: {runs}\n")


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_grid_is_refused(folder, case):
    runs, says = WRONG[case]
    with pytest.raises(UserError) as caught:
        expand_text(f"name: g\nwindow: 128\nruns: {runs}\n")
    assert str(caught.value).removeprefix("grid.yaml: ") == says


@pytest.mark.parametrize(
    ("compare", "says"),
    [
        ("{}", "compare: no entry of runs has sweeps; give it some, or remove compare"),
        ("{sweep: x}", "compare.sweep: no sweep is called x; there are short"),
        ("{swep: x}", "grid.yaml: compare.swep: unknown key; did you mean compare.sweep?"),
    ],
)
def test_a_wrong_comparison_is_refused(folder, compare, says):
    sweeps = "" if compare == "{}" else ", sweeps: [sweep.yaml]"
    with pytest.raises(UserError) as caught:
        expand_text(f"name: g\nruns: [{{name: a, train: run.yaml{sweeps}}}]\ncompare: {compare}\n")
    assert str(caught.value) == says


STRANGE = [None, True, -1, 10**30, 1e308, math.nan, "", "{x}", "{length}", "{name}", "x" * 300]
STRANGE += ["a/../b", "\0", "${name}", "${", [], {}, [[]], {"a": 1}, [{"name": "a"}], {1: 2}]


def places(node, path=()):
    """Yield the path of every value in a raw grid."""
    yield path
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))
        else:
            yield (*path, key)


def test_any_grid_expands_or_is_a_user_error(folder):
    raw = yaml.safe_load(EXTENSION.replace("[0, 1, 2]", "[2]"))
    rng = random.Random(0)
    everywhere = [path for path in places(raw) if path]
    assert len(everywhere) > 50
    assert expand_text(yaml.safe_dump(raw))
    refused = 0
    for path in rng.choices(everywhere, k=40):
        changed = copy.deepcopy(raw)
        node = changed
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = rng.choice(STRANGE)
        try:
            assert expand_text(yaml.safe_dump(changed))
        except UserError:
            refused += 1
    assert refused > 20
