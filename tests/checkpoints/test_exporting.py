"""What an export writes, that importing it again gives the same model, and what is refused."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from rope_jax.checkpoints.describing import describe
from rope_jax.checkpoints.exporting import export_run
from rope_jax.checkpoints.reading import read_description
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.load import dump, validate
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.strategy import Strategy, write_strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.rope import parse_scaling
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.provenance import provenance_of
from rope_jax.training.step import TrainState
from tests.checkpoints.folders import (
    assert_same,
    byte_checkpoint,
    config_of,
    golden_case,
    imported,
    params_of,
    says,
)
from tests.training.conftest import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that was extended with PI from 16 to 32 tokens, with random weights of two steps."""
    config = tiny(tmp_path_factory.mktemp("run"))
    made, rng = RunDirectory(Path(config.runs_dir) / config.name), np.random.default_rng(0)
    made.path.mkdir(parents=True)
    made.config_file.write_text(dump(config))
    shapes = jax.eval_shape(lambda: language_model(resolve_run(config), 257).init(0))
    given = made.checkpoints, 2, provenance_of(config, None), shapes
    with contextlib.closing(Checkpoints(*given)) as checkpoints:
        for step in (8, 9):
            params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), shapes)
            checkpoints.save(step, TrainState(jax.device_put(params), None))
        checkpoints.wait()
    return made


def with_config(run: RunDirectory, path: Path, **changes: Any) -> RunDirectory:
    """Return a run of the same weights, which do not say with which config they were made."""
    raw = run.load_config().model_dump(mode="json")
    path.mkdir()
    (path / "checkpoints").symlink_to(run.checkpoints)
    (path / "config.yaml").write_text(dump(validate(TrainingConfig, raw | changes, "test")))
    return RunDirectory(path)


def stages_of(run: RunDirectory, *changes: dict[str, Any]) -> list[dict[str, Any]]:
    stages = run.load_config().model_dump(mode="json")["stages"]
    return [stage | own for stage, own in zip(stages, changes, strict=True)]


def exported(run: RunDirectory, out: Path, **settings: Any) -> str:
    """Export; return what was printed, on one line."""
    said = io.StringIO()
    console = plain_console(file=said, width=1000)
    export_run(run, validate(ExportConfig, settings, "test"), out, console)
    return " ".join(said.getvalue().split())


def read(folder: Path, name: str = "config.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module")
def out(run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of the run."""
    folder = tmp_path_factory.mktemp("exports") / "tiny-hf"
    exported(run, folder)
    return folder


# files


def test_the_files_of_an_export(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == [
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    assert [path.name for path in out.parent.glob(".*")] == []
    assert read(out, "generation_config.json") == {"bos_token_id": 256}
    assert (out / "tokenizer.json").read_text(encoding="utf-8") == ByteTokenizer().json()
    assert read(out, "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 32,
        "bos_token": "<|begin_of_text|>",
    }


def test_its_config_in_the_forms_of_versions_4_and_5(out: Path) -> None:
    assert read(out) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 257,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "bos_token_id": 256,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def test_importing_it_again_and_exporting_that_give_the_same(
    run: RunDirectory, out: Path, tmp_path: Path
) -> None:
    again = imported(out, runs_dir=str(tmp_path))
    assert_same(params_of(again), params_of(run, 9))
    config, before = again.load_config(), run.load_config()
    assert config.tokenizer.start == "<|begin_of_text|>"
    assert config.stages[0].seq_len == 32
    a, b = (
        c.rotary_layers.frequencies(c.stage_scaling(len(c.stages) - 1), 32)
        for c in (config, before)
    )
    assert all(np.array_equal(found, expected) for found, expected in zip(a, b, strict=True))
    exported(again, tmp_path / "again")
    assert read(tmp_path / "again") == read(out)
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()


def test_what_came_with_a_checkpoint_is_exported_again(tmp_path: Path) -> None:
    """The ids at which generation stops, the tokenizer's settings, the chat's template.

    The model knows 264 tokens, its tokenizer 257; in bfloat16.
    """
    folder = byte_checkpoint(tmp_path / "tiny", "phi3", eos_token_id=[3, 7], pad_token_id=5)
    came: dict[str, Any] = {
        "generation_config.json": {"eos_token_id": [3, 7]},
        "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast"},
        "special_tokens_map.json": {"eos_token": "</s>"},
    }
    for name, content in came.items():
        (folder / name).write_text(json.dumps(content | {"auto_map": {"A": "code.B"}}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    out = tmp_path / "out"
    exported(imported(folder, param_dtype="bfloat16"), out, step=0)
    config = read(out)
    assert (config["eos_token_id"], config["pad_token_id"]) == ([3, 7], 5)
    assert config["model_type"] == "phi3"  # although llama could express it
    assert (config["vocab_size"], config["dtype"]) == (264, "bfloat16")
    assert {str(t.dtype) for t in load_file(out / "model.safetensors").values()} == {"bfloat16"}
    for name, content in came.items():
        assert read(out, name).items() >= content.items()
    assert "auto_map" not in read(out, "tokenizer_config.json")
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"


def test_a_checkpoint_is_chosen_by_its_step(run: RunDirectory, tmp_path: Path) -> None:
    said = says(exported, run, tmp_path / "out", step=5)
    assert said == f"{run.checkpoints}: has no step 5; it has 8, 9"
    said = says(exported, run, tmp_path / "out", step=0)
    assert said == f"{run.checkpoints}: has no step 0; it has 8, 9"
    assert f"checkpoint {run.path}, step 8, " in exported(run, tmp_path / "out", step=8)
    found = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    for step in (8, 9):
        expected = np.asarray(params_of(run, step)["norm"]["scale"])
        assert np.array_equal(found, expected) == (step == 8)


def test_folders_that_are_refused(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "there").mkdir()
    for source, out, message in (
        (run, "there", f"{tmp_path}/there: exists; name a new folder"),
        (run, "file/out", ": cannot be written (Not a directory)"),
        (RunDirectory(tmp_path), "out", f"{tmp_path}: not a run directory (it has no config.yaml)"),
    ):
        assert says(exported, source, tmp_path / out).endswith(message)


# scalings


def test_a_shorter_fine_tune_keeps_the_length_of_its_source(
    run: RunDirectory, tmp_path: Path
) -> None:
    """The run itself read 32 tokens in its first stage, and an import that it began with 128."""
    source = imported(byte_checkpoint(tmp_path / "hub" / "source"))
    assert source.load_config().stages[0].seq_len == 128
    stages = stages_of(run, {"seq_len": 32}, {"seq_len": 16, "scaling": None})
    rope = run.load_config().rope.model_dump(mode="json") | {"train_length": 16}
    for path, length in ((source.path, 128), (tmp_path / "gone", 32)):
        name = path.name
        changes = {"init_from": {"run": str(path)}, "stages": stages, "rope": rope}
        shorter = with_config(run, tmp_path / f"from {name}", **changes)
        exported(shorter, tmp_path / name)
        assert read(tmp_path / name)["max_position_embeddings"] == length
        assert read(tmp_path / name, "tokenizer_config.json")["model_max_length"] == length


def test_fitted_numbers_become_longrope(run: RunDirectory, tmp_path: Path) -> None:
    fitted = {"type": "explicit", "inv_freq": [0.9, 0.09, 0.009, 0.0009], "attention_factor": 1.25}
    strategy = {"scaling": fitted, "made_by": {"length": [64, 128]}}
    write_strategy(Strategy.model_validate(strategy), tmp_path / "s.json")
    exported(run, tmp_path / "out", strategy=str(tmp_path / "s.json"))
    config = read(tmp_path / "out")
    assert config["max_position_embeddings"] == 128
    rope = config["rope_parameters"]
    assert (rope["rope_type"], rope["attention_factor"]) == ("longrope", 1.25)
    # θ_i = 10,000^(−2i/8), so λ_i = θ_i / 0.9·10^(−i)
    np.testing.assert_allclose(rope["short_factor"], [1 / 0.9] * 4, rtol=1e-12)
    assert rope["long_factor"] == rope["short_factor"]
    assert rope["original_max_position_embeddings"] == 16
    assert config["original_max_position_embeddings"] == 16


@pytest.mark.parametrize(
    ("strategy", "what"),
    [
        ({"scaling": {"type": "none"}, "map": {"type": "rerope", "window": 16}},
         "the position map rerope"),
        ({"scaling": {"type": "none", "query_scale": {"type": "llama4"}}},
         "the query scale llama4"),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused_or_lost(
    run: RunDirectory, tmp_path: Path, strategy: dict[str, Any], what: str
) -> None:
    path, out = tmp_path / "s.json", tmp_path / "out"
    write_strategy(Strategy.model_validate(strategy), path)
    said = says(exported, run, out, strategy=str(path))
    assert said.startswith(f"lossy: transformers has no form for {what}, without which the model ")
    assert not out.exists()
    said = exported(run, out, strategy=str(path), lossy=True)
    assert f"{out}: written without {what}: transformers has no form for it" in said
    assert read(out)["rope_parameters"]["rope_type"] == "default"
    assert read(out)["rope_scaling"] is None


# models


def keys_of(
    config: TrainingConfig, scaling: dict[str, Any] | None = None, length: int = 16, **how: Any
) -> dict[str, Any]:
    return describe(config, parse_scaling(scaling or {"type": "none"}), length, 257, **how)[1]


def changed(folder: Path, **sections: dict[str, Any]) -> TrainingConfig:
    raw = tiny(folder).model_dump(mode="json")
    for name, keys in sections.items():
        raw[name] = raw[name] | keys
    raw["stages"] = raw["stages"][:1]
    return validate(TrainingConfig, raw, "test")


NONE = "family: none can express this model ("
MINISTRAL = {"type": "yarn", "factor": 2.0, "query_scale": {"type": "ministral", "beta": 0.2}}


@pytest.mark.parametrize(
    ("sections", "how", "reasons"),
    [
        ({}, {"scaling": {"type": "drope"}},
         [NONE, "llama: no layers without rotation", "smollm3: no model in which no layer "]),
        ({}, {"scaling": {"type": "cope"}},
         [NONE, "llama: type: cope has no form in Hugging Face's config"]),
        ({"rope": {"rotary_dim": 4}},
         {"scaling": {"type": "pi", "factor": 2.0}, "model_type": "phi3"},
         ["family: phi3 cannot express this model (no rope_type linear, only default and"]),
        ({"model": {"position": {"type": "alibi"}}}, {},
         ["model.position: alibi is in no family of transformers"]),
        ({"model": {"attention": "linear"}}, {},
         ["model.attention: linear is in no family of transformers"]),
        ({"rope": {"layout": "interleaved"}}, {"model_type": "llama"},
         ["family: llama cannot express this model (no rope.layout interleaved, only half)"]),
        ({"model": {"scale_embeddings": "sqrt_hidden_size"}}, {},
         [NONE, "llama: no scale_embeddings sqrt_hidden_size", "gemma: no norm rms_norm"]),
        ({"model": {"norm": "layer_norm_no_bias"}}, {},
         [NONE, "llama: no norm layer_norm_no_bias", "cohere: no norm_placement before"]),
        ({"model": {"qk_norm": True, "qkv_bias": True}}, {},
         [f"{NONE}qwen3: no qkv_bias True and o_bias False; qwen2: no qk_norm True; "]),
        ({}, {"scaling": MINISTRAL, "model_type": "llama"},
         ["family: llama cannot express this model (no Ministral's query scale)"]),
        ({}, {"model_type": "qwen3"},
         ["family: qwen3 cannot express this model (no qk_norm False); name another"]),
        ({}, {"model_type": "bert"}, ["family: 'bert' is not one of llama, "]),
    ],
)  # fmt: skip
def test_a_model_that_no_family_can_express(
    tmp_path: Path, sections: dict[str, Any], how: dict[str, Any], reasons: list[str]
) -> None:
    said = says(keys_of, changed(tmp_path, **sections), **how)
    assert said.startswith(reasons[0])
    assert all(reason in said for reason in reasons), said


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("gemma3_text", {"rope_theta": 1e6, "rope_local_base_freq": 1e4}),
        ("olmo3", {"rope_theta": 5e5}),
    ],
)
def test_transformers_4_is_told_of_layer_types(family: str, wanted: dict[str, float]) -> None:
    """Its code scales the global layers alone, and Gemma 3's others have a base of their own."""
    read = read_description(json.loads(golden_case(family, "yarn").config), "config.json")
    keys = keys_of(config_of(read), read.rope["scaling"], 64, model_type=family)
    parts = keys["rope_parameters"]
    local = wanted.get("rope_local_base_freq", wanted["rope_theta"])
    assert parts["sliding_attention"] == {"rope_type": "default", "rope_theta": local}
    scaled = {k: x for k, x in parts["full_attention"].items() if k != "rope_theta"}
    assert keys["rope_scaling"] == scaled
    assert scaled["rope_type"] == "yarn"
    assert parts["full_attention"]["rope_theta"] == wanted["rope_theta"]
    assert {k: x for k, x in keys.items() if k.startswith(("rope_theta", "rope_local"))} == wanted


@pytest.mark.parametrize(
    ("model", "rope", "family"),
    [
        ({}, {"layer_pattern": [{"sliding_window": 8}]}, "mistral"),
        ({"qk_norm": True}, {}, "qwen3"),
        ({"qkv_bias": True}, {}, "qwen2"),
        ({}, {"layer_pattern": [{}, {"scaling": {"type": "drope"}}]}, "smollm3"),
        ({}, {"rotary_dim": 4}, "phi3"),
        ({"norm_placement": "after", "qk_norm": "all_heads"}, {}, "olmo2"),
        ({"residual_multiplier": 0.5}, {}, "granite"),
        ({}, {"layout": "interleaved"}, "glm"),
    ],
)
def test_the_first_family_that_can_express_a_model(
    tmp_path: Path, model: dict[str, Any], rope: dict[str, Any], family: str
) -> None:
    config = changed(tmp_path, model={"num_hidden_layers": 2} | model, rope=rope)
    assert keys_of(config)["model_type"] == family
    assert keys_of(changed(tmp_path), model_type="mistral")["sliding_window"] is None
    assert keys_of(changed(tmp_path), MINISTRAL)["model_type"] == "ministral3"
