"""LoRA adapters: merged into the base model as it is read, or refused by name."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rope_jax.checkpoints.open import open_checkpoint
from rope_jax.config.inherit import training_config
from rope_jax.console import plain_console
from rope_jax.training.run import train
from tests.checkpoints.folders import (
    assert_same,
    byte_checkpoint,
    edit_config,
    edit_tensors,
    imported,
    says,
)
from tests.checkpoints.test_exporting import exported
from tests.training.conftest import tiny

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


def merged(folder: Path, base: str | None = None) -> dict[str, Any]:
    files = open_checkpoint(str(folder), None, base)
    return dict(files.read(files.tensors))


# as PEFT 0.21 reads them: the first that matches the end of a module's name
PATTERNS = {"^model.layers.1.mlp.down_proj": 6, r"layers\.0\..*_proj": 9, "q_proj": 1, "proj": 2}


@pytest.mark.parametrize(
    ("changes", "alphas"),
    [
        ({}, (12, 12)),
        ({"use_rslora": True}, (12, 12)),
        ({"alpha_pattern": PATTERNS}, (9, 6)),
        (
            {"alpha_pattern": PATTERNS, "use_rslora": True, "r": 8, "rank_pattern": {"proj": 3}},
            (9, 6),
        ),
        ({"alpha_pattern": {"down_proj": 2.5, "1.mlp": 7}}, (12, 2.5)),
    ],
)
def test_the_product_is_added_to_each_matrix(
    folder: Path, changes: dict[str, Any], alphas: tuple[float, float]
) -> None:
    write_config(folder, **changes)
    divisor = np.sqrt(3) if changes.get("use_rslora") else 3
    base, factors = load_file(folder.parent / "base/model.safetensors"), load_file(folder / WEIGHTS)
    found = merged(folder)
    assert found.keys() == base.keys()
    for name, weight in base.items():
        module = name.removesuffix(".weight")
        expected = weight.astype(np.float64)
        if module in MODULES:
            a, b = (factors[f"base_model.model.{module}.lora_{kind}.weight"] for kind in "AB")
            scale = alphas[MODULES.index(module)] / divisor
            expected = expected + scale * (b.astype(np.float64) @ a.astype(np.float64))
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("use_dora", True), ("fan_in_fan_out", True), ("bias", "all"), ("peft_type", "IA3")],
        ("layer_replication", [[0, 2]]),
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


def test_an_adapter_that_names_no_base(folder: Path) -> None:
    write_config(folder, base_model_name_or_path=None)
    said = says(open_checkpoint, str(folder), None)
    assert said.endswith("base_model_name_or_path: should name the base model, not null")


def test_a_base_that_is_not_there(folder: Path) -> None:
    write_config(folder, base_model_name_or_path="/mnt/m")
    assert says(open_checkpoint, str(folder), None) == (
        "base: /mnt/m: is neither a folder with a config.json nor the id (owner/name) of a model "
        "on the Hugging Face hub; if the base is elsewhere: rope-jax import "
        f"{folder} base=FOLDER"
    )


def test_a_base_that_is_elsewhere(folder: Path) -> None:
    plain, base = merged(folder), str(folder.parent / "base")
    write_config(folder, base_model_name_or_path="/mnt/models/base", revision="main")
    assert_same(merged(folder, base), plain)
    assert imported(folder, base=base).path.name == "adapter"
    assert says(merged, folder, "gone").startswith("base: gone: is neither a folder with a ")
    assert says(merged, Path(base), base) == f"base: {base} is no adapter, and has no base"


@pytest.mark.parametrize("tied", [False, True])
def test_an_adapter_that_is_exported_makes_the_merged_model(tmp_path: Path, *, tied: bool) -> None:
    """Trained as in LongLoRA. PEFT 0.21 computes the logits of the merged model from it."""
    base = byte_checkpoint(tmp_path / "base", tie_word_embeddings=tied)
    edit_tensors(base, lambda n, x: (n, None if tied and n == "lm_head.weight" else x))
    raw = tiny(tmp_path).model_dump(mode="json", include={"data", "runs_dir", "stages"})
    optim = {
        "lora": {"rank": 2, "target_modules": ["q_proj"]},
        "trainable": ["norms", "embeddings"],
    }
    raw |= {"name": "own", "init_from": str((start := imported(base)).path), "optim": optim}
    run = train(training_config(raw, "test"), plain_console(quiet=True))
    said = exported(run, tmp_path / "adapter", adapter=True)
    assert f"adapter of {base}, a LlamaForCausalLM that needs rope_parameters {{" in said
    exported(run, tmp_path / "merged")
    wanted = load_file(tmp_path / "merged/model.safetensors")
    wanted |= {"lm_head.weight": wanted["model.embed_tokens.weight"]} if tied else {}
    found = merged(tmp_path / "adapter")
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():  # B·A is added once instead of at each of 9 steps
        np.testing.assert_allclose(found[name], weight, atol=9 * 2**-23, err_msg=name)
    refused = says(exported, start, tmp_path / "none", adapter=True)
    assert refused.startswith(f"adapter: {start.path} changed no other weights")


def test_an_output_matrix_is_changed_without_its_embedding(folder: Path) -> None:
    """Of a tied model, as PEFT computes it unmerged; its file has the matrix, too."""
    path, base, lm_head = folder / WEIGHTS, folder.parent / "base", "base_model.model.lm_head"
    edit_config(base, tie_word_embeddings=True)
    tensors = edit_tensors(base, lambda n, x: (n, None if n == "lm_head.weight" else x))
    embedding = tensors["model.embed_tokens.weight"]
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=x).astype(np.float32) for x in ((3, embedding.shape[1]), (264, 3)))
    for own in (None, embedding, embedding + 1):
        more = {} if own is None else {f"{lm_head}.base_layer.weight": own}
        save_file({f"{lm_head}.lora_A.weight": a, f"{lm_head}.lora_B.weight": b} | more, path)
        found = merged(folder)
        expected = (embedding if own is None else own) + 4 * (b @ a)
        np.testing.assert_allclose(found["lm_head.weight"], expected, rtol=1e-5, atol=1e-5)
        assert np.array_equal(found["model.embed_tokens.weight"], embedding)
    said = io.StringIO()
    run = imported(folder, plain_console(file=said, width=1000))
    assert not run.load_config().model.tie_word_embeddings
    assert "the output matrix no longer tied to the embedding" in said.getvalue()


@pytest.mark.parametrize(
    ("before", "after"),
    [(".weight", ".default.weight"), (".model.layers", ".model.language_model.layers")],
)
def test_names_with_the_adapter_or_a_prefix(folder: Path, before: str, after: str) -> None:
    plain, path = merged(folder), folder / WEIGHTS
    save_file({n.replace(before, after): f for n, f in load_file(path).items()}, path)
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
         f"what it has for {MODULES[0]}.weight does not fit its shape [48, 48] in "),
        ({one: factors[one]}, f"{path}: {MODULES[0]}.weight has only one of lora_A and lora_B"),
        ({one.replace("lora_A", "lora_magnitude"): factors[one]}, "is neither lora_A nor lora_B"),
    ):  # fmt: skip
        save_file(changed, path)
        assert message in says(merged, folder)
