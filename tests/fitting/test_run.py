"""A fit from checkpoint to strategy file: what it writes and prints, and how it resumes."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from rope_jax.config.checkpoints import Imported
from rope_jax.config.data import StdlibData, TextData
from rope_jax.config.fit import FitConfig
from rope_jax.config.load import load
from rope_jax.config.strategy import read_strategy
from rope_jax.config.training import Config
from rope_jax.console import describe_duration, plain_console
from rope_jax.data.storage import TokenSplit, open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from rope_jax.fitting.step import FitStep
from rope_jax.model.cost import flops_per_token, window_flops
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.sweeps import model
from tests.fitting.conftest import fitted
from tests.rounded import rounded_copy
from tests.sweeps.conftest import rows, swept

pytestmark = pytest.mark.usefixtures("blank_figures")

QUICK = {"learn": ["far_phase", "far_amplitude"], "name": "quick"}


def files_of(run):
    return {p: p.read_bytes() for p in run[0].checkpoints.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def without_test_split():
    """Load corpora whose test split cannot be read."""
    load = model.load_model

    class Unreadable(TokenSplit):
        def read(self, begin, end):
            raise AssertionError("the test split was read")

    def loaded(*arguments, **how):
        found = load(*arguments, **how)
        test = Unreadable(**vars(found.corpus.test) | {"tokens": np.zeros(0, np.uint16)})
        return dataclasses.replace(found, corpus=dataclasses.replace(found.corpus, test=test))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rope_jax.fitting.run.load_model", loaded)
        yield


@pytest.fixture(scope="module")
def quick(run, without_test_split):
    """Return the folder of a fit by head, and what was printed."""
    before = files_of(run)
    with pytest.MonkeyPatch.context() as patch:  # a machine a hundred million times as slow
        patch.setattr("rope_jax.fitting.run.reached_flops", lambda peak: 1e4)
        folder, said = fitted(run, **QUICK)
    assert files_of(run) == before
    return folder, said


def test_the_table_has_start_fitted_and_truncation(quick):
    folder, said = quick
    assert "learned     32 numbers: far_phase, far_amplitude, per head" in said
    assert "step    0/4  validation " in said
    assert "  train: 5 documents, 3,892 tokens, to learn from\n" in said
    assert "  validation: 3 documents, 2,352 tokens, to check on\n" in said
    # the model has hardly been trained: said once, before the first step
    before, warned, after = said.partition(" nats per token at the window are worse than chance, ")
    assert float(before.splitlines()[-1]) > np.log(257)
    assert after.startswith("ln V = 5.55 for V = 257: the tokenizer and the weights may not belong")
    assert warned not in after
    assert "step    0/4" not in before
    assert "no interval: too few documents" in " ".join(said.split())
    lines = (folder / "results.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines] == [
        ["name", "length"],
        ["truncation", "16"],
        ["start", "16"],
        ["fitted", "16"],
        ["start", "64"],
        ["fitted", "64"],
    ]
    nll = {tuple(line.split(",")[:2]): float(line.split(",")[2]) for line in lines[1:]}
    summary = json.loads((folder / "summary.json").read_text())
    checks = {check["step"]: check["64"] for check in summary["checks"]}
    assert list(checks) == [0, 2, 4]
    # the checks are on the same targets as the table
    assert checks[0] == pytest.approx(nll["start", "64"], abs=1e-5)
    assert checks[summary["best_step"]] == pytest.approx(nll["fitted", "64"], abs=1e-5)
    assert min(checks.values()) == checks[summary["best_step"]]
    table = said.partition("nats per token on 24 validation tokens")[2].splitlines()
    for (name, length), value in nll.items():
        row = next(line for line in table if line.strip().startswith(f"{name} "))
        assert f"{value:.4f}" in row, (name, length)
    assert (folder / "numbers.png").is_file()


def test_an_estimate_counts_steps_and_checks(run, quick):
    """With the keys that take less time, on a slow machine."""
    folder, said = quick
    config, training = load(FitConfig, folder / "fit.yaml"), run[1]
    per_token = flops_per_token(training.model, 257, 64) * 2 / 3
    check = 3 * window_flops(training.model, 257, 64, 8)  # a block of each document
    seconds = (4 * config.batch_tokens * per_token + 3 * check) / 1e4
    assert f"each; {describe_duration(seconds)} with checks, compiling not counted" in said
    assert "length, steps, batch_tokens, max_documents, max_blocks: lower values of these" in said


def test_a_sweep_takes_the_strategy_file_by_path(run, quick):
    path = quick[0] / "strategy.json"
    entries = ["trained", {"type": str(path), "name": "mine"}, str(path)]
    about = {"max_documents": 4, "max_blocks": 1, "targets": 8, "resamples": 20}
    folder, said = swept(
        run, name="of-fit", split="validation", lengths=[16, 64], scalings=entries, **about
    )
    found = {(row["name"], row["length"]): row["nll"] for row in rows(folder)}
    warned = f"{found['trained', 16]:.2f} nats per token at the window are worse than chance, ln V"
    assert said.count("worse than chance") == said.count(warned) == 1
    assert found["mine", 64] == found["quick", 64]
    wanted = {
        tuple(line.split(",")[:2]): float(line.split(",")[2])
        for line in (quick[0] / "results.csv").read_text().splitlines()[1:]
    }
    assert found["mine", 64] == pytest.approx(wanted["fitted", "64"], abs=1e-6)
    assert found["mine", 16] == pytest.approx(wanted["fitted", "16"], abs=1e-6)
    assert found["trained", 16] == pytest.approx(wanted["truncation", "16"], abs=1e-6)


@pytest.mark.slow
def test_weights_in_bfloat16_are_swept_and_fitted_like_their_rounded_values(run, tmp_path):
    found = []
    for dtype in ("bfloat16", "float32"):
        *copied, params = rounded_copy(*run, tmp_path / dtype, dtype=dtype, step=2)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {dtype}
        folder, _ = fitted(copied, **QUICK | {"steps": 2, "length": 32})
        strategy = json.loads((folder / "strategy.json").read_text())["map"]
        about = {"max_documents": 4, "max_blocks": 1, "targets": 8, "resamples": 20}
        evaluated, _ = swept(copied, lengths=[16, 32], scalings=["trained"], **about)
        nll = [row["nll"] for row in rows(evaluated)]
        found.append((nll, np.ravel(strategy["far_phase"]), np.ravel(strategy["far_amplitude"])))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_training_takes_the_strategy_file_by_path(run, quick):
    path = quick[0] / "strategy.json"
    raw = run[1].model_dump(mode="json", exclude_none=True)
    del raw["rope"]["scaling"]
    config = Config.model_validate(raw | {"rope": raw["rope"] | {"strategy": str(path)}})
    assert config.rope.map == read_strategy(str(path)).map
    assert config.rope.scaling.query_scale.type == "logn"
    # the file is not needed again
    assert Config.model_validate(config.model_dump(mode="json")) == config
    both = raw["rope"] | {"strategy": str(path), "scaling": {"type": "none"}}
    with pytest.raises(ValueError, match=r"scaling: is given both here and in strategy; keep one"):
        Config.model_validate(raw | {"rope": both})


OTHERS = {
    "layers": (
        {"model": {"num_hidden_layers": 3}},
        r"rope.map.far_inv_freq: has numbers for 2 layers, and the model has 3",
    ),
    "heads": (
        {"model": {"num_attention_heads": 8, "head_dim": 4, "num_key_value_heads": 2}},
        r"rope.map.far_phase: has numbers for 4 heads, and the model has 8",
    ),
    "pairs": (
        {"model": {"head_dim": 8}},
        r"rope.map.far_inv_freq: has numbers for 2 pairs, and the model rotates 4 \(rotary_dim 8\)",
    ),
    "window": (
        {"rope": {"train_length": 32}},
        "rope.map.train_length: was fitted for a model trained at 16 tokens, not 32",
    ),
}


@pytest.mark.parametrize(("change", "says"), OTHERS.values(), ids=OTHERS)
def test_another_model_refuses_the_strategy_file(run, quick, change, says):
    raw = run[1].model_dump(mode="json", exclude_none=True)
    for section, values in change.items():
        raw[section] |= values
    del raw["rope"]["scaling"]
    raw["rope"]["strategy"] = str(quick[0] / "strategy.json")
    with pytest.raises(ValueError, match=says):
        Config.model_validate(raw)


def test_a_finished_fit_does_nothing_and_another_is_refused(run, quick):
    folder, _ = quick
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    again, said = fitted(run, **QUICK)
    assert again == folder
    assert said == f"{folder}: already fitted\n"
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir() if p.name != ".lock"} == {
        p: t for p, t in before.items() if p.name != ".lock"
    }
    with pytest.raises(
        UserError, match=r"quick: holds a fit with other settings; choose another n"
    ):
        fitted(run, **QUICK, seed=5)
    assert read_strategy(str(folder / "strategy.json"))


def test_a_finished_fit_of_another_checkpoint_is_refused(run, quick, tmp_path):
    copy = RunDirectory(tmp_path / "tiny")
    shutil.copytree(run[0].path, copy.path)
    file = copy.fits / "quick/summary.json"
    newest = json.loads(file.read_text())["step"]
    file.write_text(file.read_text().replace(f'"step": {newest}', '"step": 1'))
    says = f"quick: holds a fit of step 1, and the newest checkpoint is that of step {newest};"
    with pytest.raises(UserError, match=says):
        fitted((copy, run[1]), **QUICK)
    file.write_text("{")
    with pytest.raises(UserError, match=r"summary\.json: is damaged; delete .*quick to fit again"):
        fitted((copy, run[1]), **QUICK)


def test_a_refused_fit_leaves_the_others(run, tmp_path, monkeypatch):
    copy = RunDirectory(tmp_path / "tiny")
    shutil.copytree(run[0].path, copy.path, ignore=shutil.ignore_patterns("evals", "fits"))

    def meanwhile(*_, **__):
        (copy.fits / "other").mkdir()
        raise UserError("refused")

    monkeypatch.setattr("rope_jax.fitting.run.load_model", meanwhile)
    with pytest.raises(UserError, match=r"^refused$"):
        fitted((copy, run[1]), **QUICK)
    assert [path.name for path in copy.fits.iterdir()] == ["other"]


def book(folder, lines):
    path = folder / "book.txt"
    path.write_text("".join(f"line {n} of a book\n" for n in range(lines)))
    return {"type": "text", "files": [str(path)], "cache_dir": str(folder / "cache")}


@pytest.mark.parametrize("killed_at", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_fit_with_texts_of_its_own_ends_with_the_same_strategy_file(
    run, without_test_split, tmp_path, killed_at
):
    settings = QUICK | {"name": "book", "data": book(tmp_path, 300)}
    runs = []
    for name in ("whole", "killed"):
        copy = tmp_path / name / "tiny"
        shutil.copytree(run[0].path, copy, ignore=shutil.ignore_patterns("fits"))
        runs.append((RunDirectory(copy), run[1]))
    whole, said = fitted(runs[0], **settings)
    corpus = open_corpus(TextData(**settings["data"]), ByteTokenizer())
    assert [len(split) for split in (corpus.train, corpus.validation, corpus.test)] == [1, 1, 1]
    shown = [f"{{type: text, files: ['{tmp_path}/book.txt']}}"]
    for name, what in (("train", "to learn from"), ("validation", "to check on")):
        shown.append(f"{name}: 1 document, {len(getattr(corpus, name).tokens):,} tokens, {what}")
    assert [line.strip() for line in said.partition("  texts  ")[2].splitlines()[:4]] == [
        *shown,
        "one document split by position: train is its beginning, then come 5% validation and 10% "
        "test",
    ]
    made_by = read_strategy(str(whole / "strategy.json")).made_by
    assert (made_by["texts"], made_by["corpus"]) == (shown[0], corpus.fingerprint[:16])

    def killed(self, free, opt_state, step, call=FitStep.__call__):
        if step == killed_at:
            raise KeyboardInterrupt
        return call(self, free, opt_state, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitStep, "__call__", killed)
        with pytest.raises(KeyboardInterrupt):
            fitted(runs[1], **settings)
    # other texts: by name, or in the same file
    with pytest.raises(UserError, match=r"book: holds a fit with other settings; choose another"):
        fitted(runs[1], **QUICK | {"name": "book"})
    book(tmp_path, 301)
    with pytest.raises(UserError, match=r"belongs to a fit with another checkpoint, corpus or cod"):
        fitted(runs[1], **settings)
    book(tmp_path, 300)
    folder, said = fitted(runs[1], **settings)
    assert "step    0/4" not in said
    assert "resuming after step 2\n" in said
    for name in ("strategy.json", "results.csv", "metrics.jsonl"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_book_too_short_to_be_checked_on_is_refused(run, tmp_path):
    with pytest.raises(UserError, match=r"^length: no document of the validation split has 65 t"):
        fitted(run, **QUICK | {"name": "short"}, data=book(tmp_path, 30))


def test_an_imported_model_without_texts_asks_for_them(run):
    imported = Imported(model="a/b", identity="")
    training = run[1].model_copy(update={"imported": imported, "data": StdlibData()})
    with pytest.raises(UserError) as caught:
        fitted((run[0], training), **QUICK | {"name": "imported"})
    assert str(caught.value) == (
        f"data: {run[0].path} has no texts of its own; name those to fit on, such as "
        "data.type=text 'data.files=[books/*.txt]' (or data.type=stdlib: Python's standard library)"
    )
    assert not (run[0].fits / "imported").exists()
    # texts that were named when it was imported are those of the run
    own = run[1].model_copy(update={"imported": imported})
    with pytest.raises(UserError, match="length: 8 is within the window"):
        fitted((run[0], own), length=8)


def test_the_best_of_several_borders_is_fitted(run, without_test_split):
    settings = {"windows": [6, 12], "trial_steps": 1, "steps": 2, "learn": ["far_phase"]}
    folder, said = fitted(run, name="trials", per="model", **settings)
    found = said.partition("far keys begin at ")[2]
    assert "(validation after 1 steps: 6: " in found
    tried = dict(
        part.split(": ") for part in found.partition("steps: ")[2].partition(")")[0].split(", ")
    )
    best = min(tried, key=lambda border: float(tried[border]))
    assert found.startswith(f"{best} ")
    strategy = read_strategy(str(folder / "strategy.json"))
    assert strategy.map.borders == (int(best),)


def test_a_huge_learning_rate_keeps_the_start_and_says_so(run):
    settings = {"learn": ["frequencies"], "per": "layer", "patience": 1, "learning_rate": 1000.0}
    start = {"type": "none", "query_scale": {"type": "logn"}}
    folder, said = fitted(run, name="huge", start=start, check_every=1, **settings)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["best_step"] == 0
    assert "no step beat the starting point; writing it unchanged" in said
    strategy = read_strategy(str(folder / "strategy.json"))
    theta = run[1].geometry.inv_freq()
    np.testing.assert_allclose(strategy.scaling.inv_freq, [theta] * 2, rtol=1e-6)
    assert "no improvement in 1 checks" in summary["stopped"]


REFUSED = {
    "within the window": (
        {"length": 16},
        "length: 16 is within the window of 16 tokens; a fit is for longer texts",
    ),
    "too many targets": (
        {"targets": 9},
        "targets: 9 is too many for a window of 16 tokens; give at most 8",
    ),
    "no such step": ({"step": 7}, "step: "),
    "too long for the texts": (
        {"length": 2_000},
        "length: no document of the training split has 2,001 tokens; lower length",
    ),
    "too many windows": (
        {"batch_tokens": 2_000_000_000},
        "batch_tokens: a step reads 31,250,000 × 64 tokens and, beside ",
    ),
    "too long for memory": (
        {"length": 1_000_000, "attention": "xla"},
        "length: a step reads 1 × 1,000,000 tokens and, beside ",
    ),
    "start beyond the window": (
        {"start": {"type": "none", "map": {"type": "rerope", "window": 16}}},
        "start: rerope: map.window: 16 put the first of 64 tokens at distance 16, outside",
    ),
    "nothing changes": (
        {"start": {"type": "pi", "factor": 4}},
        "start: pi-4: learn: far_phase belongs to far keys, of which only a map knows; start from ",
    ),
}


def test_a_model_too_large_for_the_device_is_refused_before_its_weights_are_read(run, monkeypatch):
    memory = model.load_model(Session(*run, plain_console(quiet=True))).memory
    monkeypatch.setattr(
        "rope_jax.sweeps.model.newest_params", lambda *_: pytest.fail("they were read")
    )
    monkeypatch.setattr("rope_jax.sweeps.model.device_bytes", lambda: memory.weights - 1)
    with pytest.raises(UserError, match=r"^mesh\.fsdp: the weights,? .*take "):
        fitted(run, name="large")
    there_are = memory.weights + memory.window(64)  # a step reads four of these windows
    monkeypatch.setattr("rope_jax.sweeps.model.device_bytes", lambda: there_are)
    with pytest.raises(UserError, match=r"^batch_tokens: a step reads 4 × 64 .* GiB of weights, "):
        fitted(run, name="large")


@pytest.mark.parametrize(("settings", "says"), REFUSED.values(), ids=REFUSED)
def test_a_refused_fit_leaves_nothing(run, settings, says):
    before = set(run[0].path.rglob("*"))
    with pytest.raises(UserError) as caught:
        fitted(run, name="refused", **settings)
    assert str(caught.value).startswith(says)
    assert set(run[0].path.rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"position": {"type": "pope"}}, "its position is pope, and a fit is for rope"),
        ({"attention": "linear"}, "its attention is linear, and a fit is for a softmax"),
    ],
)
def test_only_rope_with_a_softmax_is_fitted(run, settings, says):
    raw = run[1].model_dump(mode="json", exclude_none=True)
    other = Config.model_validate(raw | {"model": raw["model"] | settings})
    with pytest.raises(UserError, match=says):
        fitted((run[0], other))
