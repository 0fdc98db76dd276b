"""An imported checkpoint is an ordinary run: swept, fitted and trained from like any other."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file

from rope_jax.checkpoints import importing
from rope_jax.checkpoints.importing import import_checkpoint
from rope_jax.checkpoints.opening import same_bits
from rope_jax.cli import open_directory
from rope_jax.config.checkpoints import ImportConfig
from rope_jax.config.explain import validate
from rope_jax.config.fit import FitConfig
from rope_jax.config.inherit import load_training, training_config
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.devices.mesh import Placement
from rope_jax.fitting.run import fit_run
from rope_jax.model.decoder import Params, language_model
from rope_jax.model.resolve import resolve_run
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.run import sweep_run
from rope_jax.training.checkpoints import newest_params
from rope_jax.training.run import train
from tests.checkpoints.folders import byte_checkpoint, loaded, says
from tests.training.conftest import tiny

SWEEP = {
    "lengths": [16, 32],
    "scalings": ["trained", "dynamic_ntk"],
    "max_blocks": 2,
    "resamples": 10,
}


def quiet() -> Any:
    return plain_console(quiet=True)


def write_texts(folder: Path) -> dict[str, Any]:
    """Write texts; return the section `data` that reads them."""
    (folder / "texts").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for index in range(12):
        words = rng.choice(["rope ", "turns ", "slow ", "fast ", "pair\n"], 150)
        (folder / "texts" / f"{index}.txt").write_text("".join(words))
    return {
        "type": "text",
        "files": [str(folder / "texts" / "*.txt")],
        "validation_fraction": 0.2,
        "test_fraction": 0.4,
        "cache_dir": str(folder / "cache"),
    }


def texts_to_sweep(folder: Path) -> dict[str, Any]:
    """Write texts; return the section `data` of a sweep that reads all of them."""
    data = write_texts(folder)
    return {key: data[key] for key in ("type", "files", "cache_dir")}


def settings(folder: Path, **changes: Any) -> ImportConfig:
    raw = {"runs_dir": str(folder / "runs"), "data": write_texts(folder)}
    return validate(ImportConfig, raw | changes, "test")


def imported(folder: Path, **changes: Any) -> RunDirectory:
    """Import folder/tiny."""
    return import_checkpoint(str(folder / "tiny"), settings(folder, **changes), quiet())


def params_of(run: RunDirectory) -> Params:
    """Return the parameters in a run's checkpoint, which is that of step 0."""
    config = run.load_config()
    model = language_model(resolve_run(config), run.open_tokenizer(config).vocab_size)
    like = Placement(config.mesh).shard_state(jax.eval_shape(lambda: model.init(0)))
    step, params = newest_params(run.checkpoints, like, pytest.fail)
    assert step == 0
    return params


def in_bfloat16(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({name: t.astype("bfloat16") for name, t in load_file(path).items()}, path)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint tiny, and its import runs/tiny, which tests only read."""
    folder = tmp_path_factory.mktemp("llama")
    byte_checkpoint(folder / "tiny", max_position_embeddings=32)
    imported(folder)
    return folder


def test_an_import_is_an_ordinary_run(llama: Path) -> None:
    run = RunDirectory(llama / "runs" / "tiny")
    assert sorted(path.name for path in run.path.iterdir()) == [
        *("checkpoints", "config.yaml", "environment.json", "huggingface", "tokenizer.json"),
    ]
    config = load_training(run.config_file)
    assert config == load(Config, run.config_file)
    assert config.imported is not None
    assert config.imported.model == str(llama / "tiny")
    assert (config.model.param_dtype, config.model.dtype) == ("float32", "float32")
    assert (config.model.attention, config.model.layers) == ("auto", "scanned")
    assert config.stages[0].seq_len == config.geometry.train_length == 32
    assert config.model.vocab_size == 264
    assert {"python", "packages", "devices"} <= json.loads(run.environment_file.read_text()).keys()
    assert run.tokenizer_file.read_bytes() == (llama / "tiny" / "tokenizer.json").read_bytes()
    assert not list((llama / "runs").glob(".*"))


def test_its_weights_are_those_of_the_file(llama: Path) -> None:
    found = flatten_dict(params_of(RunDirectory(llama / "runs" / "tiny")), sep="/")
    expected = flatten_dict(loaded(llama / "tiny")[1], sep="/")
    assert found.keys() == expected.keys()
    assert all(same_bits(np.asarray(found[p]), np.asarray(expected[p])) for p in found)


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    """Also beside buffers of older versions, which are float32."""
    in_bfloat16(byte_checkpoint(tmp_path / "tiny"))
    tensors = load_file(tmp_path / "tiny" / "model.safetensors")
    stored = dict(tensors)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(6, np.float32)
    save_file(tensors, tmp_path / "tiny" / "model.safetensors")
    run = imported(tmp_path)
    config = run.load_config()
    assert (config.model.param_dtype, config.model.dtype) == ("bfloat16", "bfloat16")
    embedding = np.asarray(params_of(run)["embed_tokens"]["embedding"])
    assert same_bits(embedding, stored["model.embed_tokens.weight"])
    wide = imported(tmp_path, name="wide", param_dtype="float32")
    embedding = np.asarray(params_of(wide)["embed_tokens"]["embedding"])
    assert same_bits(embedding, stored["model.embed_tokens.weight"].astype(np.float32))


def test_what_is_imported_is_printed(tmp_path: Path) -> None:
    byte_checkpoint(tmp_path / "tiny")
    said = io.StringIO()
    console = plain_console(file=said, width=1000)
    import_checkpoint(str(tmp_path / "tiny"), settings(tmp_path), console)
    shown = " ".join(said.getvalue().split())
    assert f"{tmp_path}/tiny, LlamaForCausalLM" in shown
    assert "base 10000, scaling none, L 128, window 128 tokens" in shown
    assert "document start: <|begin_of_text|> (token 256)" in shown


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.rglob("*")}


def test_the_same_call_again_does_nothing(llama: Path) -> None:
    before = contents(llama / "runs")
    said = io.StringIO()
    console = plain_console(file=said, width=1000)
    run = import_checkpoint(str(llama / "tiny"), settings(llama), console)
    assert run.path == llama / "runs" / "tiny"
    assert said.getvalue() == f"{run.path}: already imported\n"
    assert contents(llama / "runs") == before


def test_other_spellings_of_a_folder_are_the_same_import(llama: Path) -> None:
    for spelling in (f"{llama}/tiny/", f"{llama}/runs/../tiny"):
        said = io.StringIO()
        console = plain_console(file=said, width=1000)
        import_checkpoint(spelling, settings(llama), console)
        assert said.getvalue().endswith("already imported\n")


def test_another_import_of_that_name_is_refused(llama: Path) -> None:
    run = llama / "runs" / "tiny"
    before = contents(run)
    advice = "give this one another name with name="
    assert says(imported, llama, window=16) == (
        f"{run}: holds an import with another stages.0.seq_len; {advice}"
    )
    file = llama / "tiny" / "model.safetensors"
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    try:
        assert says(imported, llama) == (
            f"{run}: holds an import of other files, or of these before they were changed; {advice}"
        )
    finally:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert contents(run) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    byte_checkpoint(tmp_path / "tiny")
    run = tmp_path / "runs" / "tiny"
    run.mkdir(parents=True)
    (run / "notes.txt").write_text("mine")
    assert says(imported, tmp_path) == (
        f"{run}: exists, and is not a run; give another name with name="
    )
    assert [path.name for path in run.iterdir()] == ["notes.txt"]


def test_a_trained_run_is_not_replaced(tmp_path: Path) -> None:
    byte_checkpoint(tmp_path / "tiny")
    run = RunDirectory(tmp_path / "runs" / "tiny")
    run.path.mkdir(parents=True)
    run.config_file.write_text(dump(tiny(tmp_path)))
    before = contents(run.path)
    assert says(imported, tmp_path) == (
        f"{run.path}: holds a run that was trained here; give this one another name with name="
    )
    assert contents(run.path) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("killed")])
def test_an_import_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    byte_checkpoint(tmp_path / "tiny")

    def fail(*arguments: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(importing.Checkpoints, "wait", fail)
        with pytest.raises(type(error)):
            imported(tmp_path)
    assert not list((tmp_path / "runs").iterdir())
    assert imported(tmp_path).config_file.is_file()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    byte_checkpoint(tmp_path / "tiny")
    path = tmp_path / "runs" / ".tiny.new" / "config.yaml"

    def refuse(*arguments: Any) -> None:
        raise OSError(30, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(importing, "write_text", refuse)
        assert says(imported, tmp_path) == f"{path}: cannot be written (Read-only file system)"
    assert not list((tmp_path / "runs").iterdir())
    (tmp_path / "file").write_text("")
    assert says(imported, tmp_path, runs_dir=str(tmp_path / "file")) == (
        f"{tmp_path}/file: cannot be written (File exists)"
    )


def test_weights_that_fit_on_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    byte_checkpoint(tmp_path / "tiny")
    monkeypatch.setattr(importing, "device_bytes", lambda: 1000)
    said = says(imported, tmp_path)
    assert said.startswith("mesh.fsdp: the weights take ")
    assert said.endswith("split them over more devices, or give param_dtype=bfloat16")
    assert not list((tmp_path / "runs").iterdir())


# what a run is used for


def test_it_is_not_trained_itself(llama: Path) -> None:
    run = llama / "runs" / "tiny"
    assert says(train, load_training(run / "config.yaml"), quiet()) == (
        f"imported: {run} is a checkpoint of {llama}/tiny, which is not trained itself; start "
        f"another run from it with init_from={run}"
    )


def extended(source: RunDirectory, **changes: Any) -> Config:
    raw = {
        "name": "more",
        "runs_dir": str(source.path.parent),
        "init_from": str(source.path),
        "log_every_steps": 1,
        "optim": {"warmup_steps": 0},
        "stages": [{"steps": 2, "seq_len": 64, "batch_size": 1}],
    }
    return training_config(raw | changes, "C.yaml")


def test_training_starts_from_it_in_float32(tmp_path: Path) -> None:
    in_bfloat16(byte_checkpoint(tmp_path / "tiny", max_position_embeddings=32))
    source = imported(tmp_path)
    # on a CPU, these compile faster than an import's blockwise and scanned
    faster = {"attention": "xla", "layers": "unrolled"}
    config = extended(source, rope={"scaling": {"type": "pi", "factor": 2.0}}, model=faster)
    assert config.model.param_dtype == "float32"
    assert (config.geometry.train_length, config.model.vocab_size) == (32, 264)
    assert config.imported is None
    run = train(config, quiet())
    origin = json.loads(run.environment_file.read_text())["init_from"]
    assert (origin["run"], origin["step"]) == (str(source.path), 0)


def test_it_has_no_moments_to_start_from(llama: Path) -> None:
    source = RunDirectory(llama / "runs" / "tiny")
    config = extended(source, init_from={"run": str(source.path), "optimizer": True})
    assert says(train, config, quiet()) == (
        f"init_from.optimizer: {source.path} was imported, so its checkpoint has no moments of "
        "AdamW; give false"
    )
    assert not (llama / "runs" / "more").exists()


def test_a_sweep_of_a_checkpoint_imports_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As eval_ppl.py does, with a folder outside of the working directory."""
    byte_checkpoint(tmp_path / "models" / "tiny", max_position_embeddings=32)
    data = texts_to_sweep(tmp_path)
    monkeypatch.chdir(tmp_path)
    inodes = []
    for name in ("first", "second"):
        run, *_ = open_directory(str(tmp_path / "models" / "tiny"))
        assert run.path == Path("runs/tiny")
        config = validate(
            SweepConfig, SWEEP | {"lengths": [16], "name": name, "data": data}, "test"
        )
        sweep_run(run, run.load_config(), config, quiet())
        inodes.append(run.checkpoints.stat().st_ino)
    assert inodes[0] == inodes[1]
    first, second = (
        [line.split(",") for line in (run.evals / name / "results.csv").read_text().splitlines()]
        for name in ("first", "second")
    )
    assert first[0][-1] == "seconds"
    assert [line[:-1] for line in first] == [line[:-1] for line in second]


def test_a_checkpoint_with_a_tokenizer_is_asked_the_original_prompts(tmp_path: Path) -> None:
    byte_checkpoint(tmp_path / "tiny", max_position_embeddings=32)
    run = imported(tmp_path)
    for number in range(3):
        (tmp_path / f"long{number}.txt").write_text(f"{number} times as long as it is dull. " * 40)
    data = {"type": "text", "files": [str(tmp_path / "long*.txt")], "cache_dir": str(tmp_path)}
    ask = {"samples": 2, "depths": [0.5]}
    tasks = [{"task": "passkey_text"} | ask, {"task": "needle", "keys": 2} | ask]
    raw = {"lengths": [1024], "scalings": ["trained"], "tasks": tasks, "data": data, "targets": 8}
    config = validate(SweepConfig, raw | {"max_blocks": 1, "resamples": 20}, "test")
    sweep_run(run, run.load_config(), config, quiet())
    table = (run.evals / "sweep" / "tasks.csv").read_text().splitlines()
    assert len(table) == 1 + 2 * 2 * 2  # tasks, metrics, asked and taken out
    assert "passkey_text" in table[1]


def test_default_lengths_beyond_the_texts_are_refused_with_the_longest_that_works(
    tmp_path: Path,
) -> None:
    """Published windows times 16 are longer than most texts."""
    byte_checkpoint(tmp_path / "tiny", max_position_embeddings=131_072)
    run = imported(tmp_path)
    config = SweepConfig()
    said = says(sweep_run, run, run.load_config(), config, quiet())
    assert said.startswith("lengths: none of the ")
    assert "that length 2097152 needs; the longest possible length is " in said


def test_a_model_with_a_scaling_of_its_own_is_described(tmp_path: Path) -> None:
    """L is a quarter of the window, and pi-auto is plain rotation up to the window."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    rope["original_max_position_embeddings"] = 8
    byte_checkpoint(tmp_path / "tiny", max_position_embeddings=32, rope_parameters=rope)
    run, said = imported(tmp_path), io.StringIO()
    raw = {"lengths": [16, 32], "data": texts_to_sweep(tmp_path), "max_blocks": 1}
    raw["protocols"] = ["same_tokens", "sliding", "yarn_compat"]
    config = validate(SweepConfig, raw, "test")
    sweep_run(run, run.load_config(), config, plain_console(file=said, width=1000))
    assert (
        "trained: the model as published, with its own yarn, factor 4 of L 8, which every other "
        "entry replaces\n"
    ) in said.getvalue()
    assert (
        "scalings: auto is length / window, and the window is 4 times L = 8: pi-auto, ntk-auto, "
        "yarn-auto change nothing up to the window; give factors of length / L"
    ) in said.getvalue()


@pytest.mark.slow
def test_a_fit_of_an_import(llama: Path) -> None:
    run = RunDirectory(llama / "runs" / "tiny")
    raw: dict[str, Any] = {
        "length": 64,
        "steps": 2,
        "check_every": 1,
        "batch_tokens": 128,
        "warmup_steps": 0,
    }
    raw |= {"learn": ["far_phase"], "max_documents": 2, "max_blocks": 1, "resamples": 10}
    folder = fit_run(run, run.load_config(), validate(FitConfig, raw, "test"), quiet())
    try:
        strategy = json.loads((folder / "strategy.json").read_text())
        assert strategy["made_by"]["length"] == [64]
        assert strategy["map"]["type"] == "fitted"
    finally:
        shutil.rmtree(run.fits)


@pytest.mark.slow
def test_the_command_sweeps_a_checkpoint(tmp_path: Path) -> None:
    byte_checkpoint(tmp_path / "tiny", max_position_embeddings=32)
    here = Path(__file__).parents[2]
    (tmp_path / "sweep.yaml").write_text(json.dumps(SWEEP | {"data": texts_to_sweep(tmp_path)}))
    command = [sys.executable, str(here / "eval_ppl.py"), "tiny", "--sweep", "sweep.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "import tiny" in done.stdout
    assert (tmp_path / "runs" / "tiny" / "evals" / "sweep" / "results.csv").is_file()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stderr
    assert "runs/tiny: already imported" in again.stdout


def test_an_older_import_with_another_backend_is_still_that_import(tmp_path: Path) -> None:
    """Imports had blockwise where they have auto now."""
    folder = byte_checkpoint(tmp_path / "tiny")
    config = ImportConfig(runs_dir=str(tmp_path / "runs"))
    run = import_checkpoint(str(folder), config, plain_console(quiet=True))
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("attention: auto", "attention: blockwise"))
    assert "attention: blockwise" in run.config_file.read_text()
    again = import_checkpoint(str(folder), config, plain_console(quiet=True))
    assert again.load_config().model.attention == "blockwise"
