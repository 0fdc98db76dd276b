"""An imported checkpoint is an ordinary run: swept, fitted and trained from like any other."""

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from rope_jax.checkpoints.exporting import export_run
from rope_jax.cli import open_directory
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.inherit import load_training, training_config
from rope_jax.config.load import load, validate
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.data.storage import open_corpus
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.run import sweep_run
from rope_jax.training.run import train
from tests.checkpoints.folders import (
    QUIET,
    assert_same,
    byte_checkpoint,
    edit_tensors,
    imported,
    loaded,
    params_of,
    says,
)


def texts_in(folder: Path) -> dict[str, Any]:
    """Write texts; return the section `data` of a sweep that reads them."""
    (folder / "texts").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for index in range(12):
        words = rng.choice(["rope ", "turns ", "slow ", "fast ", "pair\n"], 150)
        (folder / "texts" / f"{index}.txt").write_text("".join(words))
    files = [str(folder / "texts" / "*.txt")]
    return {"type": "text", "files": files, "cache_dir": str(folder / "cache")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama that reads bytes."""
    return byte_checkpoint(tmp_path / "tiny")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with an import, runs/tiny beside it, which tests only read."""
    made = byte_checkpoint(tmp_path_factory.mktemp("llama") / "tiny", max_position_embeddings=32)
    imported(made, data=texts_of_run(made.parent))
    return made


def texts_of_run(folder: Path) -> dict[str, Any]:
    return texts_in(folder) | {"validation_fraction": 0.2, "test_fraction": 0.4}


@pytest.fixture(scope="module")
def run(llama: Path) -> RunDirectory:
    return RunDirectory(llama.parent / "runs" / "tiny")


def again(llama: Path, spelling: str = "", **settings: Any) -> str:
    """Import the module's checkpoint once more; return what is printed."""
    said = io.StringIO()
    raw = {"runs_dir": str(llama.parent / "runs"), "data": texts_of_run(llama.parent)}
    imported(spelling or llama, plain_console(file=said, width=1000), **raw | settings)
    return said.getvalue()


def test_an_import_is_an_ordinary_run(llama: Path, run: RunDirectory) -> None:
    assert sorted(path.name for path in run.path.iterdir()) == [
        *("checkpoints", "config.yaml", "environment.json", "huggingface", "tokenizer.json"),
    ]
    config = load_training(run.config_file)
    assert config == load(TrainingConfig, run.config_file)
    assert config.imported is not None
    assert config.imported.model == str(llama)
    assert (config.model.param_dtype, config.model.dtype) == ("float32", "float32")
    assert (config.model.attention, config.model.layers) == ("auto", "scanned")
    assert config.stages[0].seq_len == config.geometry.train_length == 32
    assert config.model.vocab_size == 264
    assert {"python", "packages", "devices"} <= json.loads(run.environment_file.read_text()).keys()
    assert run.tokenizer_file.read_bytes() == (llama / "tokenizer.json").read_bytes()
    assert not list(run.path.parent.glob(".*"))
    assert_same(params_of(run), loaded(llama)[1])


def test_bfloat16_stays_bfloat16(folder: Path) -> None:
    """Also beside buffers of older versions, which are float32."""
    stored = edit_tensors(folder, lambda name, tensor: (name, tensor.astype("bfloat16")))
    edit_tensors(folder, model__layers__0__self_attn__rotary_emb__inv_freq=np.ones(6, np.float32))
    found, wide = imported(folder), imported(folder, name="wide", param_dtype="float32")
    config = found.load_config()
    assert (config.model.param_dtype, config.model.dtype) == ("bfloat16", "bfloat16")
    embedding = {"embedding": stored["model.embed_tokens.weight"]}
    assert_same(params_of(found)["embed_tokens"], embedding)
    in_float32 = {"embedding": embedding["embedding"].astype(np.float32)}
    assert_same(params_of(wide)["embed_tokens"], in_float32)
    more = training_config({"init_from": str(found.path)} | MORE, "C.yaml")
    assert more.model.param_dtype == "float32"
    assert (more.geometry.train_length, more.model.vocab_size) == (128, 264)
    assert more.imported is None


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.rglob("*")}


def test_the_same_call_again_does_nothing(llama: Path, run: RunDirectory) -> None:
    """Also with another spelling of the folder."""
    before = contents(run.path.parent)
    for spelling in (str(llama), f"{llama}/", f"{llama}/../tiny"):
        assert again(llama, spelling) == f"{run.path}: already imported\n"
    assert contents(run.path.parent) == before


def test_another_import_of_that_name_is_refused(llama: Path, run: RunDirectory) -> None:
    before = contents(run.path)
    said = says(again, llama, window=16)
    assert said.startswith(f"{run.path}: holds another import (stages.0.seq_len); give this one")
    file = llama / "model.safetensors"
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    try:
        said = says(again, llama)
        assert said.startswith(f"{run.path}: holds another import (imported.identity); give this")
    finally:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert contents(run.path) == before


def test_an_older_import_with_another_backend_is_still_that_import(
    llama: Path, run: RunDirectory
) -> None:
    """Imports had blockwise where they have auto now."""
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("attention: auto", "attention: blockwise"))
    try:
        assert again(llama).endswith("already imported\n")
        assert run.load_config().model.attention == "blockwise"
    finally:
        run.config_file.write_text(text)


# what a run is used for

MORE: dict[str, Any] = {
    "name": "more",
    "log_every_steps": 1,
    "optim": {"warmup_steps": 0},
    "stages": [{"steps": 2, "seq_len": 64, "batch_size": 1}],
}


def test_it_is_not_trained_itself_and_has_no_moments(llama: Path, run: RunDirectory) -> None:
    assert says(train, load_training(run.config_file), QUIET) == (
        f"imported: {run.path} is a checkpoint of {llama}, which is not trained itself; start "
        f"another run from it with init_from={run.path}"
    )
    init_from = {"run": str(run.path), "optimizer": True}
    raw = MORE | {"runs_dir": str(run.path.parent), "init_from": init_from}
    said = says(train, training_config(raw, "C.yaml"), QUIET)
    assert said.startswith(f"init_from.optimizer: the checkpoint of {run.path} has no moments of ")
    assert not (run.path.parent / "more").exists()


def test_a_sweep_of_a_checkpoint_imports_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As eval_ppl.py does, with a folder outside of the working directory.

    L is a quarter of the window, and pi-auto is plain rotation up to the window.
    """
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    rope["original_max_position_embeddings"] = 8
    folder = byte_checkpoint(
        tmp_path / "models" / "tiny", max_position_embeddings=32, rope_parameters=rope
    )
    monkeypatch.chdir(tmp_path)
    inodes = []
    for _ in range(2):
        run, training, _ = open_directory(str(folder))
        assert run.path == Path("runs/tiny")
        inodes.append(run.checkpoints.stat().st_ino)
    assert inodes[0] == inodes[1]
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{folder}, LlamaForCausalLM" in shown
    assert "base 10000, scaling yarn, L 8, window 32 tokens" in shown
    assert "document start: <|begin_of_text|> (token 256)" in shown
    raw = {"lengths": [16, 32], "data": texts_in(tmp_path), "max_blocks": 1, "resamples": 10}
    printed = io.StringIO()
    config = validate(SweepConfig, raw, "test")
    sweep_run(run, training, config, plain_console(file=printed, width=1000))
    assert (run.evals / "sweep" / "results.csv").is_file()
    shown = printed.getvalue()
    assert (
        "trained: the model as published, with yarn by 4 of L 8; over-trained: acts on its "
        "frequencies and the window of 32; other entries replace them"
    ) in shown
    assert "pi-auto-over-trained" in shown


def with_tokenizer(folder: Path, template: str | None, **settings: Any) -> Path:
    """Give a checkpoint two more special tokens, the start of a template, and settings."""
    path = folder / "tokenizer.json"
    library = Tokenizer.from_file(str(path))
    library.add_special_tokens(["[gMASK]", "<sop>"])
    content = json.loads(library.to_str()) | {"post_processor": None}
    path.write_text(json.dumps(content))
    if template is not None:
        ids = [(token, library.token_to_id(token)) for token in template.split()[:-1]]
        library.post_processor = TemplateProcessing(single=template, special_tokens=ids)
        library.save(str(path))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_start_that_the_post_processor_does_not_add(folder: Path) -> None:
    """DeepSeek: `add_bos_token`, and a post-processor without a template, or none."""
    token = {"__type": "AddedToken", "content": "<sop>"}
    for settings, start in (
        ({"add_bos_token": True, "bos_token": token}, "<sop>"),
        ({"add_bos_token": True, "bos_token": "<sop>"}, "<sop>"),
        ({"add_bos_token": True, "bos_token": None}, None),
        ({"add_bos_token": False, "bos_token": "<sop>"}, None),
    ):
        said = io.StringIO()
        name = f"run{len(list(folder.parent.glob('runs/*')))}"
        given = with_tokenizer(byte_checkpoint(folder), None, **settings)
        run = imported(given, plain_console(file=said, width=1000), name=name)
        assert run.load_config().tokenizer.start == start
        shown = (
            "none\n" if start is None else f"{start} (token 258), which the tokenizer's own post"
        )
        assert f"document start: {shown}" in said.getvalue()


def test_a_start_of_two_tokens_is_read_swept_and_exported(folder: Path, tmp_path: Path) -> None:
    """GLM-4's: [gMASK] <sop>."""
    said = io.StringIO()
    with_tokenizer(folder, "[gMASK] <sop> $A")
    run = imported(folder, plain_console(file=said, width=1000), data=texts_of_run(folder.parent))
    assert "document start: [gMASK] <sop> (tokens 257, 258)\n" in said.getvalue()
    training = run.load_config()
    assert training.tokenizer.start == ("[gMASK]", "<sop>")
    document = open_corpus(training.data, run.open_tokenizer(training)).test.document(0)
    assert document[:2].tolist() == [257, 258]
    raw = {"lengths": [8, 16], "scalings": ["trained"], "max_blocks": 1, "resamples": 20}
    sweep_run(run, training, validate(SweepConfig, raw, "test"), QUIET)
    assert (run.evals / "sweep" / "results.csv").is_file()
    export_run(run, ExportConfig(), tmp_path / "out", QUIET)
    assert imported(tmp_path / "out").load_config().tokenizer.start == ("[gMASK]", "<sop>")


@pytest.mark.slow
def test_a_checkpoint_with_a_tokenizer_is_asked_the_original_prompts(
    run: RunDirectory, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"long{number}.txt").write_text(f"{number} times as long as it is dull. " * 40)
    data = {"type": "text", "files": [str(tmp_path / "long*.txt")], "cache_dir": str(tmp_path)}
    ask = {"samples": 2, "depths": [0.5]}
    tasks = [{"task": "passkey_text"} | ask, {"task": "needle"} | ask]
    raw = {"lengths": [1024], "scalings": ["trained"], "tasks": tasks, "data": data, "targets": 8}
    config = validate(SweepConfig, raw | {"max_blocks": 1, "resamples": 20}, "test")
    try:
        sweep_run(run, run.load_config(), config, QUIET)
        table = (run.evals / "sweep" / "tasks.csv").read_text().splitlines()
    finally:
        shutil.rmtree(run.evals)
    assert len(table) == 1 + 2 * 2 * 2  # tasks, metrics, asked and taken out
    assert "passkey_text" in table[1]
