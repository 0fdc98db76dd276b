"""LoRA adapters: merged into the base model as it is read, or refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rope_jax.checkpoints.files import is_checkpoint, open_checkpoint
from tests.checkpoints.folders import assert_same, byte_checkpoint, edit_tensors, imported, says

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")
WEIGHTS = "adapter_model.safetensors"


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
            name = f"base_model.model.{module}.lora_{kind}.weight"
            factors[name] = rng.normal(size=shape).astype(np.float32)
    made = tmp_path / "adapter"
    made.mkdir()
    save_file(factors, made / WEIGHTS)
    write_config(made, base_model_name_or_path=str(base))
    return made


def write_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    plain = {
        **{"peft_type": "LORA", "bias": "none", "lora_alpha": 12, "lora_dropout": 0.05, "r": 3},
        **dict.fromkeys(("fan_in_fan_out", "use_dora", "use_rslora"), False),
        "modules_to_save": None,
        "target_modules": ["q_proj", "down_proj"],
    }
    before = json.loads(path.read_text()) if path.exists() else plain
    path.write_text(json.dumps(before | changes))


def merged(folder: Path) -> dict[str, Any]:
    files = open_checkpoint(str(folder), None)
    return dict(files.read(files.tensors))


@pytest.mark.parametrize(("by_root", "scale"), [(False, 12 / 3), (True, 12 / np.sqrt(3))])
def test_the_product_is_added_to_each_matrix(folder: Path, by_root: bool, scale: float) -> None:
    write_config(folder, use_rslora=by_root)
    base, factors = load_file(folder.parent / "base/model.safetensors"), load_file(folder / WEIGHTS)
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
    run = imported(folder)
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
    said = says(open_checkpoint, str(folder), None)
    assert said.startswith(f"{folder}/adapter_config.json: {key}: is ")
    assert "only plain LoRA can be merged here; merge the adapter with PEFT" in said


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lora_alpha", float("nan"), "should be a number, not nan"),
        ("base_model_name_or_path", None, "should name the base model, not null"),
        ("base_model_name_or_path", "gone", "gone: is neither a folder with a config.json nor the"),
    ],
)
def test_values_that_are_refused(folder: Path, key: str, value: Any, message: str) -> None:
    write_config(folder, **{key: value})
    said = says(open_checkpoint, str(folder), None)
    assert said.startswith(f"{folder}/adapter_config.json: {key}: {message}")


def test_an_adapter_beside_a_model_is_ambiguous(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    assert says(open_checkpoint, str(folder), None).startswith(
        f"{folder}: holds an adapter (adapter_config.json) and a model (model.safetensors); move "
    )


def test_an_adapter_of_weights_under_a_prefix(folder: Path) -> None:
    plain, path = merged(folder), folder / WEIGHTS
    factors = load_file(path)
    deeper = {n.replace(".model.layers", ".model.language_model.layers"): f
              for n, f in factors.items()}  # fmt: skip
    save_file(deeper, path)
    edit_tensors(folder.parent / "base", lambda name, tensor: (f"_orig_mod.{name}", tensor))
    assert_same(merged(folder), plain)


def test_factors_of_another_model(folder: Path) -> None:
    path = folder / WEIGHTS
    factors = load_file(path)
    absent = "model.layers.7.mlp.down_proj"
    one = f"base_model.model.{MODULES[0]}.lora_A.weight"
    for changed, message in (
        ({name.replace(MODULES[1], absent): f for name, f in factors.items()},
         f"{folder}: changes {absent}.weight, which {folder.parent}/base lacks"),
        ({n: f[:, :5].copy() if "lora_A" in n else f for n, f in factors.items()},
         f"do not fit {MODULES[0]}.weight"),
        ({one: factors[one]}, f"{path}: {MODULES[0]}.weight has only one of lora_A and lora_B"),
        ({one.replace("lora_A", "lora_magnitude"): factors[one]}, "is neither lora_A nor lora_B"),
    ):  # fmt: skip
        save_file(changed, path)
        assert message in says(merged, folder)
