"""Folders of checkpoints: how they are found and read, and how damage to them is reported."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rope_jax.checkpoints.files import CheckpointFiles
from rope_jax.checkpoints.open import find_folder, is_checkpoint
from rope_jax.cli import open_directory
from rope_jax.config.devices import DistributedConfig
from tests.checkpoints.folders import (
    assert_same,
    byte_checkpoint,
    edit_config,
    edit_tensors,
    golden_case,
    imported,
    loaded,
    says,
    write_case,
)

Damage = Callable[[Path], Any]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama that reads bytes."""
    return byte_checkpoint(tmp_path / "tiny")


def read(folder: Path) -> dict[str, Any]:
    files = CheckpointFiles(folder)
    return dict(files.read(files.tensors))


def write_index(folder: Path, weight_map: Any) -> None:
    content = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / INDEX).write_text(content)


def in_shards(folder: Path) -> None:
    """Distribute the tensors over two files with an index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    index = {name: SHARDS[number % 2] for number, name in enumerate(sorted(tensors))}
    for file in SHARDS:
        save_file({n: t for n, t in tensors.items() if index[n] == file}, folder / file)
    write_index(folder, index)


# files


def writes(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def lacks(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def is_cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])


def is_pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "consolidated.00.pth")


def lacks_a_shard(folder: Path) -> None:
    in_shards(folder)
    (folder / SHARDS[1]).unlink()


def has_index(weight_map: Any) -> Damage:
    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        write_index(folder, weight_map)
        (folder.parent / "secret.safetensors").write_bytes(b"")

    return damage


CONVERT = r"convert it: python -c .*'{folder}'.*'{folder}-safetensors'.*"
AGAIN = r"\(.*\); download the checkpoint again"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (is_cut, f"{{folder}}/{WEIGHTS}: is truncated or damaged {AGAIN}"),
        (writes(WEIGHTS, b"version https://git-lfs.github.com/spec"),
         f"{{folder}}/{WEIGHTS}: is truncated or damaged {AGAIN}"),
        (is_pickled, "{folder}/consolidated.00.pth: is a pickle, .* never loaded; .*" + CONVERT),
        (lacks(WEIGHTS), f"{{folder}}: has neither {WEIGHTS} nor {INDEX}; .*{CONVERT}"),
        (lacks_a_shard, f"{{folder}}/{SHARDS[1]}: is missing {AGAIN}"),
        *((has_index(wrong), f"{{folder}}/{INDEX}: has no weight_map from tensors to names .*")
          for wrong in ({"a": "../secret.safetensors"}, None)),
        (lambda folder: edit_tensors(folder, q=np.zeros((2, 2), ml_dtypes.float8_e4m3fn)),
         f"{{folder}}/{WEIGHTS}: q has type F8_E4M3 and no q_scale_inv; only F64, F32, F16, BF16 "
         "can be read, .*"),
        (lambda folder: edit_tensors(folder, _orig_mod__model__norm__weight=np.ones(48)),
         ".*: model.norm.weight and _orig_mod.model.norm.weight are the same weight"),
        (lacks("config.json"), "{folder}/config.json: cannot be read .*"),
        (writes("config.json", b"model_type: llama"), "{folder}/config.json: is not JSON"),
        (writes("config.json", b"[]"), "{folder}/config.json: is not a JSON object"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_read(folder: Path, damage: Damage, message: str) -> None:
    damage(folder)
    said = says(CheckpointFiles, folder)
    assert re.fullmatch(message.replace("{folder}", str(folder)), said), said


def test_shards_are_read_like_one_file(folder: Path) -> None:
    whole = read(folder)
    in_shards(folder)
    assert_same(read(folder), whole)


def test_a_stale_index_beside_the_single_file(folder: Path) -> None:
    """transformers reads the single file, too."""
    write_index(folder, {"model.absent": "model-00001-of-00009.safetensors"})
    files = CheckpointFiles(folder)
    assert {info.file.name for info in files.tensors.values()} == {WEIGHTS}


@pytest.mark.parametrize(
    "prefixed",
    [
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace("model.", "model.language_model."),
    ],
)
def test_weights_under_a_prefix(folder: Path, prefixed: Callable[[str], str]) -> None:
    whole = read(folder)
    edit_tensors(folder, lambda name, tensor: (prefixed(name), tensor))
    assert_same(read(folder), whole)
    (remark,) = CheckpointFiles(folder).remarks
    assert re.fullmatch(r"\d+ names without prefixes, such as \S+", remark)


def test_experts_in_one_tensor_are_those_in_many(tmp_path: Path) -> None:
    """As Qwen 3.5's are published, beside layers that predict further tokens."""
    case = golden_case("qwen3_5_moe_text")
    write_case(tmp_path / "many", case)
    weights, joined = case.weights(), {"mtp.fc.weight": np.zeros((4, 4), np.float32)}
    for layer in range(4):
        names = [f"model.layers.{layer}.mlp.experts.{expert}" for expert in range(6)]
        gate, up, down = (
            np.stack([weights.pop(f"{name}.{part}_proj.weight") for name in names])
            for part in ("gate", "up", "down")
        )
        of_all = f"model.layers.{layer}.mlp.experts."
        joined |= {f"{of_all}gate_up_proj": np.concatenate([gate, up], axis=1)}
        joined |= {f"{of_all}down_proj": down}
    write_case(tmp_path / "one", case)
    save_file(weights | joined, tmp_path / "one" / "model.safetensors", {"format": "pt"})
    assert_same(loaded(tmp_path / "one")[1], loaded(tmp_path / "many")[1])


def test_a_multimodal_model_is_read_without_its_other_parts(tmp_path: Path) -> None:
    files = CheckpointFiles(write_case(tmp_path, golden_case("gemma3_text", "multimodal")))
    assert files.remarks[1] == "without multi_modal_projector and vision_tower"
    assert not any("vision" in name for name in files.tensors)


# tensors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 1}, "{folder}/model.safetensors: nothing reads model.layers.1."
         "input_layernorm.weight (and 8 more); config.json describes a model without it"),
        ({"mlp_bias": True}, "{folder}: model.layers.0.mlp.gate_proj.bias (and 5 more) is missing"),
        ({"num_key_value_heads": 4}, "{folder}/model.safetensors: model.layers.0.self_attn.k_proj."
         "weight has shape [24, 48], but {folder}/config.json makes it [48, 48]"),
        ({"tie_word_embeddings": True}, "{folder}/model.safetensors: lm_head.weight differs from "
         "model.embed_tokens.weight, but config.json says tie_word_embeddings; set it to false"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_the_config(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(folder, **changes)
    assert says(loaded, folder).startswith(message.replace("{folder}", str(folder)))


def test_a_tied_output_that_is_written_twice(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=True)
    embedding = read(folder)["model.embed_tokens.weight"]
    for head in (embedding.copy(), None):
        edit_tensors(folder, lm_head__weight=head)
        params = loaded(folder)[1]
        assert "lm_head" not in params
        assert_same(params["embed_tokens"], {"embedding": embedding})


LLAMAS = ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]
PYTHIAS = ["bias", "masked_bias", "rotary_emb.inv_freq"]


@pytest.mark.parametrize(
    ("family", "names"),
    [("llama", LLAMAS), ("gpt_neox", [f"gpt_neox.layers.1.attention.{x}" for x in PYTHIAS])],
)
def test_buffers_of_older_versions_are_left_out(
    family: str, names: list[str], tmp_path: Path
) -> None:
    """Pythia's published files hold its causal mask as bytes or booleans."""
    folder = byte_checkpoint(tmp_path / "tiny", family)
    before = read(folder)
    edit_tensors(folder, **dict.fromkeys(names, np.ones((1, 1), np.bool_)))
    assert_same(read(folder), before)


# tokenizers


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lacks("tokenizer.json"), "{folder}/tokenizer.json: no such file; save it with "),
        (lambda folder: edit_config(folder, vocab_size=200), "{folder}/tokenizer.json: has 257 "
         "tokens, but config.json says that the model knows 200; use the tokenizer that belongs"),
        (writes("tokenizer.json", b"ab\xff"),
         "tokenizer.path: {folder}/tokenizer.json is not UTF-8 (byte 2)"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_cannot_be_used(folder: Path, damage: Damage, message: str) -> None:
    damage(folder)
    assert says(imported, folder).startswith(message.replace("{folder}", str(folder)))


# names


def test_what_is_a_checkpoint_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_checkpoint(str(folder))
    assert is_checkpoint("owner/model")
    (folder / "config.yaml").write_text("name: tiny\n")
    assert not is_checkpoint(str(folder))
    monkeypatch.chdir(folder.parent)
    Path("runs/demo").mkdir(parents=True)
    assert not is_checkpoint("runs/dmeo")  # a misspelt run
    assert says(open_directory, "runs/dmeo").startswith("runs/dmeo: not a run directory")
    for name in ("x" * 300, "~nobody-has-this-name/x"):  # which no file can have
        assert not is_checkpoint(name)
        assert name in says(find_folder, name, None)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        *((model, "is neither a folder with a config.json nor the id (owner/name) of a model on ")
          for model in ("absent", "a/b/c", "https://huggingface.co/a/b")),
        ("nobody/nothing", "cannot be downloaded from the hub: "),
    ],
)  # fmt: skip
def test_a_name_of_nothing(model: str, message: str) -> None:
    assert says(find_folder, model, None).startswith(f"{model}: {message}")


def test_a_local_folder_has_no_revisions_and_is_imported_by_one_process(folder: Path) -> None:
    assert says(find_folder, str(folder), "main") == (
        f"revision: {folder} is a local folder, which has no revisions"
    )
    distributed = DistributedConfig(coordinator="a:1", num_processes=2, process_id=0)
    said = says(open_directory, str(folder), distributed)
    assert said.startswith("distributed: import the checkpoint first, with rope-jax import ")
