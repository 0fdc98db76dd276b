"""A tiny run extended from 64 to 256 tokens: what is swept, written, resumed and refused."""

import io
import itertools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import pytest

from rope_jax.config.data import TextData
from rope_jax.config.extend import ExtendConfig, ExtendPlan
from rope_jax.config.load import load, validate
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.extending import planning
from rope_jax.extending import run as extending
from rope_jax.extending.planning import lacks_for_fit, lengths_to, shortlist
from rope_jax.extending.run import extend_run
from rope_jax.fitting.fitter import Fit
from rope_jax.fitting.step import FitStep
from rope_jax.rope.hf import from_hf
from rope_jax.runs.directory import RunDirectory
from tests.sweeps import conftest
from tests.sweeps.conftest import SMALL, blank_figures, rows, trained

__all__ = ["blank_figures"]

STAGE = conftest.STAGE | {"seq_len": 64}  # the digits of a passkey need 34
pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("extended"), [STAGE])


@pytest.fixture
def run(made, tmp_path):
    """A copy that nothing was done with."""
    copy = RunDirectory(tmp_path / "tiny")
    shutil.copytree(made[0].path, copy.path)
    return copy, made[1]


@pytest.fixture(autouse=True)
def few_windows(monkeypatch):
    monkeypatch.setattr(planning, "_SIZES", ((4, 1, False),))


@pytest.fixture
def no_gradients(monkeypatch):
    """Fit without a program that learns; each check is better than the one before."""

    def step(self, free, opt_state, number):
        return jax.tree.map(lambda x: x + jnp.float32(0.01), free), opt_state, jnp.ones(())

    checks = itertools.count(9.0, -1.0)
    monkeypatch.setattr(FitStep, "__call__", step)
    monkeypatch.setattr(Fit, "nll", lambda *_: {256: next(checks)})


def extended(run, **settings):
    """Extend; return the folder and what was printed."""
    said = plain_console(file=io.StringIO(), width=200)
    config = validate(ExtendConfig, {"length": 256, "minutes": 600} | settings, "test")
    return extend_run(*run, config, said), said.file.getvalue()


def training_of(**settings):
    raw = {"name": "x", "stages": [STAGE], "optim": {"warmup_steps": 0}} | settings
    return validate(TrainingConfig, raw | {"model": SMALL | raw.get("model", {})}, "test")


def labels(rope=None, **asked):
    """Return the names of the candidates for a model with this section of its config."""
    training = training_of(**{} if rope is None else {"rope": rope})
    config = ExtendConfig.model_validate({"length": 256} | asked)
    return [entry.label for entry in shortlist(config, training, training.trained(0))]


def test_candidates_have_fixed_factors_and_continue_what_the_model_has():
    assert labels() == ["trained", "yarn-4", "ntk-4", "llama3-4", "pi-4"]
    own = {"type": "yarn", "factor": 2}
    over = [f"{name}-4-over-trained" for name in ("yarn", "ntk", "llama3", "pi")]
    scaled = {"scaling": own, "train_length": 32}
    assert labels(scaled) == ["trained", "trained-8", *over]
    # without a scaling, but trained beyond L
    assert labels({"train_length": 32}) == ["trained", *over]
    published = {"factors": [1.0, 1.0, 2.0, 4.0]}  # has no factor to continue
    assert labels({"scaling": {"type": "explicit", **published}}) == ["trained", *over]
    asked = ["ntk", {"type": "trained", "factor": "auto"}, {"type": "pi", "factor": 2.0}]
    assert labels(scaled, scalings=asked) == ["ntk-4", "trained-8", "pi-2"]


def test_lengths_have_one_between_where_window_and_length_are_far_apart():
    assert lengths_to(8192, 16384) == (8192, 16384)
    assert lengths_to(8192, 32768) == (8192, 16384, 32768)
    assert lengths_to(4096, 131072) == (4096, 16384, 131072)


def test_a_fit_needs_texts_that_nothing_is_measured_on():
    def lacks(files):
        data = None if files is None else TextData(files=files)
        return lacks_for_fit(ExtendConfig(length=256, data=data))

    assert not lacks(None)
    assert not lacks({"train": ["a"], "validation": ["b"], "test": ["c"]})
    assert lacks(["a"]).startswith("the texts have no splits")
    assert lacks({"test": ["c"]}).startswith("the texts have no splits")


def test_an_extension_is_measured_fitted_judged_exported_and_not_repeated(run, no_gradients):
    asked = {"fit": True, "export": True, "scalings": ["trained", "yarn"]}
    folder, _ = extended(run, **asked)
    plan = load(ExtendPlan, folder / "plan.yaml")
    assert plan.sweep.lengths == (64, 128, 256)
    names = ["trained", "yarn-4"]
    assert [entry.label for entry in plan.sweep.scalings] == names
    assert {row["name"] for row in rows(run[0].evals / "extend-256")} == {*names, "fitted"}
    # the page and the card have the verdict
    assert "At 256 tokens, " in (folder / "comparison.md").read_text()
    out = run[0].path.with_name("tiny-256")
    card = (out / "README.md").read_text()
    assert card == (folder / "README.md").read_text()
    assert card.startswith("---\ntags:\n- long-context\n")
    for part in ("At 256 tokens, ", "### `same_tokens`", "### `passkey`", "### transformers"):
        assert part in card, part
    # what transformers reads is the winner
    strategy = json.loads((out / "strategy.json").read_text())
    content = json.loads((out / "config.json").read_text())
    assert content["max_position_embeddings"] == 256
    settings = json.loads((run[0].evals / "extend-256" / "settings.json").read_text())
    assert settings["entry"] == strategy["made_by"]["entry"]
    geometry, scaling = from_hf(content)[:2]
    (expected,) = settings["frequencies"]
    found = scaling.frequencies(geometry, 256)
    assert found.exact.tolist() == pytest.approx(expected["inv_freq"], rel=1e-6)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name != "README.md"}
    _, again = extended(run, **asked)
    assert again.count("nothing to measure") == 2
    assert "already fitted" in again
    assert f"{out}: already written" in again
    assert (out / "README.md").read_text() == card
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_no_model_is_written_unless_truncation_is_beaten(run, monkeypatch, tmp_path):
    asked = {"fit": False, "scalings": ["pi"], "out": str(tmp_path / "out")}
    _, said = extended(run, **asked)
    assert "no model was written; export=true writes it all the same" in said
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(extending, "is_below_truncation", lambda *_: True)
    assert "no model was written\n" in extended(run, **asked, export=False)[1]
    extended(run, **asked)
    rope = json.loads((tmp_path / "out/config.json").read_text())["rope_parameters"]
    assert rope == {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    # another winner does not replace it
    with pytest.raises(UserError, match=r"^out: .*out holds the model with another scaling; del"):
        extended(run, **asked | {"scalings": ["ntk"]})


def test_where_time_is_short_a_screening_leaves_one_candidate(run, monkeypatch):
    monkeypatch.setattr(planning, "_SIZES", ((4, 1, True),))
    folder, said = extended(run, fit=False, export=False, scalings=["trained", "pi", "ntk"])
    screened = rows(run[0].evals / "extend-256-screening")
    best = min(screened, key=lambda row: (row["name"] == "trained", row["nll"]))["name"]
    assert {row["length"] for row in screened} == {256}
    assert {row["name"] for row in rows(run[0].evals / "extend-256")} == {"trained", best}
    assert "screening: 4 other windows chose the cand" in (folder / "README.md").read_text()
    assert "4 windows choose the one to measure" in said


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"length": 64}, "LENGTH: 64 is within the window of 64 tokens, which the model reads"),
        ({"length": 9999}, "data: none of the 4 documents has the 9,999 tokens of LENGTH; the"),
        ({"minutes": 1e-9}, "minutes: 1e-09 are too few for 4 windows of 256 tokens and 5 cand"),
        ({"out": "/tmp"}, "out: /tmp exists, and no extension wrote it; name another with out="),
        ({"fit": True, "data": {"files": ["*"]}}, "fit: the texts have no splits; name data.f"),
    ],
)
def test_what_cannot_be_done_is_refused_by_key(run, asked, says):
    with pytest.raises(UserError, match=f"^{re.escape(says)}"):
        extended(run, **asked)
    assert not list(run[0].path.glob("extend-*"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": {"position": {"type": "learned"}}}, "MODEL: its position is learned, and an"),
        ({"model": {"position": {"type": "none"}}}, "MODEL: its position is none, and an exten"),
        ({"rope": {"scaling": {"type": "drope"}}}, "MODEL: none of its layers rotates, so"),
    ],
)
def test_a_model_without_rotation_is_refused(run, settings, says):
    with pytest.raises(UserError, match=f"^{says}"):
        extended((run[0], training_of(**settings)))
