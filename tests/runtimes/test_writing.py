"""Which entry is chosen, and what its files and the terminal say."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from rope_jax.config.load import validate
from rope_jax.config.strategy import Strategy, read_strategy, write_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.fitting.results import FitRow
from rope_jax.results.files import SweepTables, format_csv
from rope_jax.results.rows import Row
from rope_jax.results.statistics import Estimate, UsableLength
from rope_jax.results.summary import CheckpointSummary, CurveSummary
from rope_jax.rope import parse_scaling
from rope_jax.runs.directory import RunDirectory
from rope_jax.runtimes.writing import write_fit_settings, write_sweep_settings
from tests.training.conftest import tiny

STREAMING = {"type": "none", "map": {"type": "streaming"}, "name": "streaming"}
LOGN = {"type": "none", "query_scale": {"type": "logn"}, "name": "logn"}


@pytest.fixture
def training(tmp_path: Path) -> TrainingConfig:
    raw = tiny(tmp_path).model_dump(mode="json")  # one stage, of 16 tokens
    return validate(TrainingConfig, raw | {"stages": raw["stages"][:1]}, "test")


def swept(training: TrainingConfig, folder: Path, nll: dict[Any, float]) -> tuple[str, str, Any]:
    """Write settings of a sweep whose entries have these losses at 64 tokens, 2.0 at the window.

    Return settings.md, what was printed, on one line, and settings.json.
    """
    scalings = [json.loads(entry) for entry in nll]
    config = validate(SweepConfig, {"scalings": scalings, "lengths": [16, 64]}, "test")
    losses = dict(zip((entry.label for entry in config.scalings), nll.values(), strict=True))
    known = {"protocol": "same_tokens", "length": 64, "step": 4, "run": "tiny", "split": "test"}
    known |= {"tokens": 640, "documents": 10, "units": 10, "stride": None, "factor": 4.0}
    row = Row(*[None] * len(Row._fields))._replace(**known)
    rows = [
        row._replace(name=entry.label, nll=losses[entry.label], auto=entry.is_auto)
        for entry in config.scalings
    ]
    usable = UsableLength(16, is_last=False, is_known=True)
    curves = {
        name: CurveSummary(usable, usable, {}, {64: Estimate(x - 2, x - 2.1, x - 1.9)}, {})
        for name, x in losses.items()
    }
    summary = CheckpointSummary("tiny", 4, 16, nll_at_window=2.0, curves=curves)
    run, said = RunDirectory(folder), plain_console(file=io.StringIO(), width=400)
    out = run.evals / config.name
    out.mkdir(parents=True)
    write_sweep_settings(run, training, config, SweepTables(rows, [], [summary]), said)
    printed = " ".join(said.file.getvalue().split())
    return (
        (out / "settings.md").read_text(),
        printed,
        json.loads((out / "settings.json").read_text()),
    )


def test_the_best_entry_of_a_sweep_that_a_runtime_can_express(
    training: TrainingConfig, tmp_path: Path
) -> None:
    nll = {'"trained"': 3.0, '"pi"': 2.5, '"ntk"': 2.6, json.dumps(STREAMING): 2.0}
    text, printed, content = swept(training, tmp_path / "run", nll)
    verdict = "nothing that a runtime can express is below truncation: rather keep the last 16 "
    assert printed.startswith(f"settings: {verdict}tokens alone, 2.000 entry pi-auto, up to 64")
    assert (
        "llama.cpp -c 64 --rope-scaling linear --rope-scale 4 --rope-freq-base 10000 more"
        in printed
    )
    assert "**Nothing that a runtime can express is below truncation: " in text
    assert "2.500 nats per token, +0.500 [+0.400, +0.600] above truncation (same_tokens; " in text
    assert "test split, 640 tokens in 10 documents)." in text
    assert "The factor is fixed at that of 64 tokens, 4.0, for which shorter texts pay" in text
    assert "Better, but in no runtime: streaming." in text
    overrides = '{"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}'
    vllm = f"vllm serve MODEL --hf-overrides '{overrides}, \"max_position_embeddings\": 16}}'"
    assert f"```sh\n{vllm} --max-model-len 64\n```" in text
    keys = content["runtimes"]["transformers"]["settings"]
    assert json.loads(text.partition("```json")[2].partition("```")[0]) == keys
    (frequencies,) = content["frequencies"]
    assert frequencies["inv_freq"] == pytest.approx([10000 ** (-i / 4) / 4 for i in range(4)])
    assert (frequencies["layers"], frequencies["attention_factor"]) == ([0], 1.0)
    strategy = read_strategy(str(tmp_path / "run/evals/sweep/strategy.json"))
    assert strategy.scaling == parse_scaling({"type": "pi", "factor": 4.0})


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        (1.8, "better than the last 16 tokens alone, 2.000"),
        (1.95, "not known to be better than the last 16 tokens alone, 2.000"),
    ],
)
def test_what_is_below_truncation(
    training: TrainingConfig, tmp_path: Path, loss: float, verdict: str
) -> None:
    text, printed, _ = swept(training, tmp_path / "run", {'{"type": "yarn", "factor": 4}': loss})
    assert printed.startswith(f"settings: {verdict}")
    assert "The factor is fixed" not in text


def test_what_no_runtime_can_express(training: TrainingConfig, tmp_path: Path) -> None:
    """The best of it is described, and its frequencies are written."""
    nll = {json.dumps(LOGN): 1.9, json.dumps(STREAMING): 1.8, '"cope"': 3.0}
    text, printed, content = swept(training, tmp_path / "run", nll)
    assert printed.startswith("settings: no runtime can express these; ")
    assert "runtimes each cannot express it: the position map streaming more" in printed
    assert "vLLM cannot express it: the position map streaming." in text
    assert len(content["frequencies"][0]["inv_freq"]) == 4


def test_the_settings_of_a_fit(training: TrainingConfig, tmp_path: Path) -> None:
    run, said = RunDirectory(tmp_path / "run"), plain_console(file=io.StringIO(), width=400)
    folder = run.fits / "mine"
    folder.mkdir(parents=True)
    explicit = parse_scaling({"type": "explicit", "factors": [1.0, 2.0, 4.5, 4.0]})
    made_by = {"step": 4, "length": [32, 64]}
    write_strategy(Strategy(scaling=explicit, made_by=made_by), folder / "strategy.json")
    rows = [FitRow("truncation", 16, 2.0, None, None, None, 80, 5)]
    rows += [FitRow("start", 64, 2.1, 0.1, math.nan, math.nan, 80, 5)]
    rows += [FitRow("fitted", n, 1.9, -0.1, math.nan, math.nan, 80, 5) for n in (32, 64)]
    (folder / "results.csv").write_text(format_csv(FitRow._fields, rows))
    write_fit_settings(run, training, folder, said)
    printed = " ".join(said.file.getvalue().split())
    assert "entry fit mine, up to 64 tokens: 1.900 nats per token, −0.100 above trunc" in printed
    assert '"rope_type": "longrope", "short_factor": [4 numbers], "long_factor": [4' in printed
    assert "llama.cpp none: it has no flags for these numbers; a GGUF file from rope-jax" in printed
    assert (
        f"strategy={folder / 'strategy.json'}` writes a folder"
        in (folder / "settings.md").read_text()
    )
    keys = json.loads((folder / "settings.json").read_text())["runtimes"]["vLLM"]["settings"]
    assert keys["--hf-overrides"]["rope_parameters"]["long_mscale"] == 1.0
