"""LoRA adapters: merged into the base model as it is read, or refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rope_jax.checkpoints.files import is_checkpoint, open_checkpoint
from rope_jax.checkpoints.importing import import_checkpoint
from rope_jax.config.checkpoints import ImportConfig
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from tests.checkpoints.folders import byte_checkpoint

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter of rank 3 as PEFT writes it, beside its base model."""
    base = byte_checkpoint(tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    rng = np.random.default_rng(0)
    factors = {}
    for module in MODULES:
        outputs, inputs = weights[f"{module}.weight"].shape
        for kind, shape in (("A", (3, inputs)), ("B", (outputs, 3))):
            factors[f"base_model.model.{module}.lora_{kind}.weight"] = rng.normal(
                size=shape
            ).astype(np.float32)
    made = tmp_path / "adapter"
    made.mkdir()
    save_file(factors, made / "adapter_model.safetensors")
    write_config(made, base_model_name_or_path=str(base))
    return made


def write_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    plain = {
        "peft_type": "LORA",
        "bias": "none",
        "fan_in_fan_out": False,
        "lora_alpha": 12,
        "lora_dropout": 0.05,
        "modules_to_save": None,
        "r": 3,
        "target_modules": ["q_proj", "down_proj"],
        "use_dora": False,
        "use_rslora": False,
    }
    before = json.loads(path.read_text()) if path.exists() else plain
    path.write_text(json.dumps(before | changes))


def merged(folder: Path) -> dict[str, Any]:
    files = open_checkpoint(str(folder), None)
    return dict(files.read(files.tensors))


@pytest.mark.parametrize(("by_root", "scale"), [(False, 12 / 3), (True, 12 / np.sqrt(3))])
def test_the_product_is_added_to_each_matrix(folder: Path, by_root: bool, scale: float) -> None:
    write_config(folder, use_rslora=by_root)
    base = load_file(folder.parent / "base" / "model.safetensors")
    factors = load_file(folder / "adapter_model.safetensors")
    found = merged(folder)
    assert found.keys() == base.keys()
    for name, weight in base.items():
        module = name.removesuffix(".weight")
        expected = weight.astype(np.float64)
        if module in MODULES:
            a, b = (factors[f"base_model.model.{module}.lora_{kind}.weight"] for kind in "AB")
            expected = expected + scale * (b.astype(np.float64) @ a.astype(np.float64))
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)


def test_an_adapter_is_imported_with_its_base_model(folder: Path) -> None:
    assert is_checkpoint(str(folder))
    config = ImportConfig(runs_dir=str(folder.parent / "runs"))
    run = import_checkpoint(str(folder), config, plain_console(quiet=True))
    assert run.path.name == "adapter"
    assert (run.huggingface / "config.json").is_file()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("use_dora", True), ("fan_in_fan_out", True), ("bias", "all"), ("peft_type", "IA3")],
        *[("modules_to_save", ["lm_head"]), ("alpha_pattern", {"q_proj": 4})],
        # these change the base model's weights, or are of a kind that is not known here
        *[("init_lora_weights", "pissa"), ("init_lora_weights", "loftq"), ("use_qalora", True)],
        *[("trainable_token_indices", [1]), ("use_rslora", "false"), ("anything_new", 3)],
    ],
)
def test_other_adapters_are_refused(folder: Path, key: str, value: Any) -> None:
    write_config(folder, **{key: value})
    with pytest.raises(UserError) as caught:
        open_checkpoint(str(folder), None)
    assert str(caught.value).startswith(f"{folder}/adapter_config.json: {key}: is ")
    assert str(caught.value).endswith(
        ", and only plain LoRA can be merged here; merge the adapter with PEFT "
        "(merge_and_unload), and save the model"
    )


def test_a_scale_that_is_no_number(folder: Path) -> None:
    write_config(folder, lora_alpha=float("nan"))
    with pytest.raises(UserError, match="lora_alpha: should be a number, not nan"):
        open_checkpoint(str(folder), None)


def test_an_adapter_beside_a_model_is_ambiguous(folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((folder.parent / "base" / name).read_bytes())
    with pytest.raises(UserError) as caught:
        open_checkpoint(str(folder), None)
    assert str(caught.value) == (
        f"{folder}: holds an adapter (adapter_config.json) and a model (model.safetensors); move "
        "one of them to another folder"
    )


def test_an_adapter_of_weights_under_a_prefix(folder: Path) -> None:
    path, base = folder / "adapter_model.safetensors", folder.parent / "base" / "model.safetensors"
    plain = merged(folder)
    renamed = {n.replace(".model.layers", ".model.language_model.layers"): f
               for n, f in load_file(path).items()}  # fmt: skip
    save_file(renamed, path)
    save_file({f"_orig_mod.{n}": t for n, t in load_file(base).items()}, base)
    found = merged(folder)
    assert found.keys() == plain.keys()
    assert all(np.array_equal(found[name], plain[name]) for name in plain)


def test_a_base_model_that_is_not_there(folder: Path) -> None:
    write_config(folder, base_model_name_or_path="gone")
    with pytest.raises(UserError) as caught:
        open_checkpoint(str(folder), None)
    assert str(caught.value) == (
        f"{folder}/adapter_config.json: base_model_name_or_path: gone: is neither a folder with a "
        "config.json nor the id (owner/name) of a model on the Hugging Face hub"
    )


def test_an_adapter_of_another_model(folder: Path) -> None:
    factors = load_file(folder / "adapter_model.safetensors")
    path = folder / "adapter_model.safetensors"
    other = {name.replace("layers.1", "layers.7"): factor for name, factor in factors.items()}
    save_file(other, path)
    with pytest.raises(UserError) as caught:
        merged(folder)
    assert str(caught.value) == (
        f"{folder}: changes model.layers.7.mlp.down_proj.weight, which {folder.parent}/base does "
        "not contain"
    )
    narrow = {n: f[:, :5].copy() if "lora_A" in n else f for n, f in factors.items()}
    save_file(narrow, path)
    with pytest.raises(UserError, match=r"do not fit model\.layers\."):
        merged(folder)
