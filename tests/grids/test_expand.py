"""A grid as jobs: names, axes, placeholders, sources, and grids that make no sense."""

import shlex
from pathlib import Path

import pytest
import yaml

from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig
from rope_jax.config.inherit import load_training
from rope_jax.config.load import dump, load
from rope_jax.config.strategy import Strategy, write_strategy
from rope_jax.errors import UserError
from rope_jax.grids.expand import expand
from rope_jax.grids.jobs import FitJob, TrainJob
from rope_jax.rope.strategies import PIScaling

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

EXTENSION = (HERE / "extension.yaml").read_text()
WRONG = yaml.safe_load((HERE / "wrong.yaml").read_text())


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
    of_runs = [name for name in sweeps if name.endswith("/sweep-short")]
    compare = expand_text(EXTENSION.replace("output: compared", "sweep: short"))[-1]
    assert [job.name for job in compare.needs] == of_runs


def test_the_commands(jobs):
    def command(name):
        return shlex.join(jobs[name].command()[3:])

    assert command("base-s1/train") == "train run.yaml seed=1 name=base-s1 runs_dir=out"
    assert command("yarn-run-x4-500-s2/train") == (
        "train run.yaml init_from=out/base-s2 stages.0.steps=500 stages.0.seq_len=512 "
        "'stages.0.scaling={type: yarn, factor: 4.0}' data.cache_dir=cache-4-of-out/base-s2 "
        "name=yarn-run-x4-500-s2 runs_dir=out"
    )
    assert command("long-x16/train") == (
        "train run.yaml stages.0.seq_len=2048 stages.0.batch_size=4 name=long-x16 runs_dir=out"
    )
    assert command("base-s0/sweep-short") == "sweep out/base-s0 --sweep sweep.yaml"
    # what the fit's file says, except its name
    fit = "fit out/base-s2 name=search-x8 'learn=[far_phase]' length=1024"
    assert command("base-s2/fit-search-x8") == fit
    file = "out/base-s2/fits/search-x8/strategy.json"
    assert command("base-s2/sweep-short-search-x8").endswith(
        f" 'scalings=[trained, {file}]' name=short-search-x8"
    )
    # training from a fit: the weights are those of the run that it was made on
    assert [job.name for job in jobs["tuned-x8-s2/train"].needs] == ["base-s2/fit-search-x8"]
    assert f" init_from=out/base-s2 rope.strategy={file} " in command("tuned-x8-s2/train")
    assert command("compare").startswith("compare out/base-s0/evals/short ")
    assert command("compare").endswith(" output=compared resamples=100")


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
    assert [job.command() for job in after] == [job.command() for job in before]


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/grids/*.yaml")), ids=lambda p: p.name)
def test_the_grids_of_the_repository_expand(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    jobs = expand(load(GridConfig, path))
    assert len(jobs) > 3
    assert jobs[-1].name == "compare"


def test_a_fit_may_start_from_another_one(folder):
    start = "runs/tiny/fits/f/strategy.json"
    tiny = "{name: tiny, train: run.yaml}, {name: f, fit: fit.yaml, source: tiny}"
    more = f"{{name: g, fit: fit.yaml, source: tiny, set: {{start: {start}}}}}"
    job = expand_text(f"name: g\nruns: [{tiny}, {more}]\n")[-1]
    assert isinstance(job, FitJob)
    assert f"start={start}" in job.command()
    assert [needed.name for needed in job.needs] == ["tiny/train", "tiny/fit-f"]
    Path(start).parent.mkdir(parents=True)
    write_strategy(Strategy(scaling=PIScaling(factor=2.0)), Path(start))
    found = load(FitConfig, None, job.overrides).start
    assert found is not None
    assert (found.label, found.scaling_at_window) == ("f", PIScaling(factor=2.0))


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_a_wrong_grid_is_refused(folder, case):
    with pytest.raises(UserError) as caught:
        expand_text(yaml.safe_dump({"name": "g", "window": 128, "runs": case["runs"]}))
    assert str(caught.value).removeprefix("grid.yaml: ").startswith(case["says"])


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
