"""What an export writes, that importing it again gives the same model, and what is refused."""

import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors import safe_open

from rope_jax.checkpoints import exporting
from rope_jax.checkpoints.exporting import describe, export_run
from rope_jax.checkpoints.importing import import_checkpoint
from rope_jax.checkpoints.opening import same_bits
from rope_jax.config.checkpoints import ExportConfig, ImportConfig
from rope_jax.config.explain import validate
from rope_jax.config.load import dump
from rope_jax.config.strategy import Strategy, write_strategy
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.evaluation.decoder import nll_of_last
from rope_jax.model.decoder import Params, language_model
from rope_jax.model.resolve import resolve_run
from rope_jax.rope import parse_scaling
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import params_at
from tests.checkpoints.folders import byte_checkpoint, says
from tests.training.conftest import tiny

Run = tuple[Config, RunDirectory]


def exported(run: RunDirectory, out: Path, **settings: Any) -> str:
    """Export; return what was printed, on one line."""
    said = io.StringIO()
    console = plain_console(file=said, width=1000)
    export_run(run, validate(ExportConfig, settings, "test"), out, console)
    return " ".join(said.getvalue().split())


def read(folder: Path, name: str = "config.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def params_of(run: RunDirectory, step: int) -> Params:
    config = run.load_config()
    model = language_model(resolve_run(config), run.open_tokenizer(config).vocab_size)
    like = Placement(config.mesh).shard_state(jax.eval_shape(lambda: model.init(0)))
    return params_at(run.checkpoints, step, like)


def nll_of(run: RunDirectory, step: int) -> Any:
    """Return the NLL of 47 tokens, in the stage that wrote the checkpoint."""
    # as the import computes; the run itself says auto
    config = resolve_run(run.load_config(), attention="xla")
    model = language_model(resolve_run(config), run.open_tokenizer(config).vocab_size)
    tokens = jnp.arange(48, dtype=jnp.int32)[None] * 7 % 250
    scaling = config.stage_scaling(config.stage_at(step))
    rotary = config.rotary_layers.rotary(scaling, np.arange(47)[None], 47)
    of_last = nll_of_last(model, Placement(config.mesh))
    return np.asarray(of_last(params_of(run, step), tokens, rotary, 47))


def import_of(folder: Path, **settings: Any) -> RunDirectory:
    raw = {"runs_dir": str(folder.parent / "runs"), "attention": "xla", "layers": "unrolled"}
    config = validate(ImportConfig, raw | settings, "test")
    return import_checkpoint(str(folder), config, plain_console(quiet=True))


@pytest.fixture(scope="module")
def out(whole: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a run that was extended with PI from 16 to 32 tokens."""
    folder = tmp_path_factory.mktemp("exports") / "tiny-hf"
    exported(whole[1], folder)
    return folder


def test_the_files_of_an_export(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in out.parent.glob(".*")] == []
    with safe_open(out / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
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


def test_importing_it_again_gives_the_same_model(whole: Run, out: Path) -> None:
    run = import_of(out)
    found, expected = (
        flatten_dict(params_of(run, 0), sep="/"),
        flatten_dict(params_of(whole[1], 9), sep="/"),
    )
    assert found.keys() == expected.keys()
    assert all(same_bits(np.asarray(found[p]), np.asarray(expected[p])) for p in found)
    config = run.load_config()
    assert config.tokenizer.start == "<|begin_of_text|>"
    assert config.stages[0].seq_len == 32
    np.testing.assert_array_equal(nll_of(run, 0), nll_of(whole[1], 9))


def test_exporting_an_import_gives_the_same_files(out: Path, tmp_path: Path) -> None:
    run = import_of(out, runs_dir=str(tmp_path))
    exported(run, tmp_path / "again")
    assert read(tmp_path / "again") == read(out)
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()


def test_step_0_is_that_of_an_import(whole: Run, tmp_path: Path) -> None:
    run = import_of(byte_checkpoint(tmp_path / "tiny"))
    exported(run, tmp_path / "out", step=0)
    assert (tmp_path / "out" / "config.json").is_file()
    trained = whole[1]
    said = says(exported, trained, tmp_path / "other", step=0)
    assert said.startswith(f"steps: {trained.checkpoints} has no step 0; its newest is ")


def test_what_came_with_a_checkpoint_is_exported_again(tmp_path: Path) -> None:
    """The ids at which generation stops, the tokenizer's settings, the chat's template."""
    folder = byte_checkpoint(tmp_path / "tiny", "phi3", eos_token_id=[3, 7], pad_token_id=5)
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 7]}')
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "LlamaTokenizerFast", "auto_map": {"A": "code.B"}}'
    )
    (folder / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    run, out = import_of(folder), tmp_path / "out"
    exported(run, out)
    config = read(out)
    assert (config["eos_token_id"], config["pad_token_id"]) == ([3, 7], 5)
    assert config["model_type"] == "phi3"  # although llama could express it
    assert read(out, "generation_config.json") == {"eos_token_id": [3, 7]}
    settings = read(out, "tokenizer_config.json")
    assert settings["tokenizer_class"] == "LlamaTokenizerFast"
    assert "auto_map" not in settings
    assert read(out, "special_tokens_map.json") == {"eos_token": "</s>"}
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"


def test_an_export_of_an_import_with_spare_tokens(tmp_path: Path) -> None:
    """The model knows 264 tokens, its tokenizer 257; in bfloat16."""
    byte_checkpoint(tmp_path / "tiny")
    run = import_of(tmp_path / "tiny", param_dtype="bfloat16")
    exported(run, tmp_path / "out")
    config = read(tmp_path / "out")
    assert (config["vocab_size"], config["dtype"]) == (264, "bfloat16")
    with safe_open(tmp_path / "out" / "model.safetensors", framework="numpy") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118


def test_a_checkpoint_is_chosen_by_its_step(whole: Run, tmp_path: Path) -> None:
    run = whole[1]
    assert says(exported, run, tmp_path / "out", step=5) == (
        f"steps: {run.checkpoints} has no step 5; it has 8, 9"
    )
    said = exported(run, tmp_path / "out", step=8)
    assert f"checkpoint {run.path}, step 8, " in said
    with safe_open(tmp_path / "out" / "model.safetensors", framework="numpy") as file:
        found = file.get_tensor("model.norm.weight")
    assert same_bits(found, np.asarray(params_of(run, 8)["norm"]["scale"]))
    assert not same_bits(found, np.asarray(params_of(run, 9)["norm"]["scale"]))


# scalings


def keys_of(config: Config, scaling: dict[str, Any], length: int, **how: Any) -> dict[str, Any]:
    return describe(config, parse_scaling(scaling), length, 257, **how)[1]


def test_a_stage_extended_with_yarn(whole: Run, tmp_path: Path) -> None:
    """Only the config is another one: the weights do not say which scaling they were made with."""
    run = RunDirectory(tmp_path / "yarn")
    run.path.mkdir()
    (run.path / "checkpoints").symlink_to(whole[1].checkpoints)
    stages = [stage.model_dump(mode="json") for stage in whole[0].stages]
    stages[1]["scaling"] = {"type": "yarn", "factor": 2.0}
    raw = whole[0].model_dump(mode="json") | {"stages": stages}
    run.config_file.write_text(dump(validate(Config, raw, "test")))
    exported(run, tmp_path / "out")
    config = read(tmp_path / "out")
    rope = config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("yarn", 2.0)
    assert rope["original_max_position_embeddings"] == 16
    assert config["original_max_position_embeddings"] == 16
    assert config["max_position_embeddings"] == 32
    assert config["rope_scaling"] == {k: v for k, v in rope.items() if k != "rope_theta"}


@pytest.mark.parametrize("is_here", [True, False])
def test_a_shorter_fine_tune_keeps_the_length_of_its_source(
    whole: Run, tmp_path: Path, is_here: bool
) -> None:
    """The run itself read 32 tokens in its second stage, and an import that it began with 128."""
    source = byte_checkpoint(tmp_path / "hub" / "source")
    imported = import_checkpoint(
        str(source), ImportConfig(runs_dir=str(tmp_path)), plain_console(quiet=True)
    )
    assert imported.load_config().stages[0].seq_len == 128
    run = RunDirectory(tmp_path / "shorter")
    run.path.mkdir()
    (run.path / "checkpoints").symlink_to(whole[1].checkpoints)
    raw = whole[0].model_dump(mode="json")
    raw["init_from"] = {"run": str(imported.path if is_here else tmp_path / "gone")}
    raw["stages"][0]["seq_len"], raw["stages"][1]["seq_len"] = 32, 16
    raw["stages"][1]["scaling"] = None
    raw["rope"]["train_length"] = 16
    run.config_file.write_text(dump(validate(Config, raw, "test")))
    exported(run, tmp_path / "out")
    length = 128 if is_here else 32
    assert read(tmp_path / "out")["max_position_embeddings"] == length
    assert read(tmp_path / "out", "tokenizer_config.json")["model_max_length"] == length


def strategy_file(path: Path, **content: Any) -> Path:
    write_strategy(Strategy.model_validate(content), path)
    return path


FITTED = {"type": "explicit", "inv_freq": [0.9, 0.09, 0.009, 0.0009], "attention_factor": 1.25}


def test_fitted_numbers_become_longrope(whole: Run, tmp_path: Path) -> None:
    path = strategy_file(tmp_path / "s.json", scaling=FITTED, made_by={"length": [64, 128]})
    exported(whole[1], tmp_path / "out", strategy=str(path))
    config = read(tmp_path / "out")
    assert config["max_position_embeddings"] == 128
    rope = config["rope_parameters"]
    assert (rope["rope_type"], rope["attention_factor"]) == ("longrope", 1.25)
    # θ_i = 10,000^(−2i/8), so λ_i = θ_i / 0.9·10^(−i)
    np.testing.assert_allclose(rope["short_factor"], [1 / 0.9] * 4, rtol=1e-12)
    assert rope["long_factor"] == rope["short_factor"]
    assert rope["original_max_position_embeddings"] == 16
    assert config["original_max_position_embeddings"] == 16


FITTED_MAP = {"type": "rerope", "window": 16}


def test_a_map_is_refused_or_lost(whole: Run, tmp_path: Path) -> None:
    path = strategy_file(
        tmp_path / "s.json", scaling={"type": "none"}, map=FITTED_MAP, made_by={"length": [64]}
    )
    out = tmp_path / "out"
    assert says(exported, whole[1], out, strategy=str(path)) == (
        "lossy: transformers has no form for the position map rerope, without which the model "
        "reads long texts differently; give lossy=true to write it all the same, or a strategy "
        "that transformers can express"
    )
    assert not out.exists()
    said = exported(whole[1], out, strategy=str(path), lossy=True)
    assert (
        f"{out}: written without the position map rerope: transformers has no form for it" in said
    )
    assert read(out)["rope_parameters"]["rope_type"] == "default"


def test_a_query_scale_is_refused_or_lost(whole: Run, tmp_path: Path) -> None:
    scaling = {"type": "none", "query_scale": {"type": "llama4"}}
    path = strategy_file(tmp_path / "s.json", scaling=scaling)
    out = tmp_path / "out"
    said = says(exported, whole[1], out, strategy=str(path))
    assert said.startswith("lossy: transformers has no form for the query scale llama4, without ")
    said = exported(whole[1], out, strategy=str(path), lossy=True)
    assert "written without the query scale llama4" in said
    assert read(out)["rope_scaling"] is None


def test_ministrals_query_scale_is_written_with_yarn(whole: Run) -> None:
    scaling = {"type": "yarn", "factor": 2.0, "query_scale": {"type": "ministral", "beta": 0.1}}
    keys = keys_of(whole[0], scaling, 32)
    assert keys["rope_parameters"]["llama_4_scaling_beta"] == 0.1


@pytest.mark.parametrize(
    ("scaling", "reasons"),
    [
        (
            {"type": "drope"},
            ["llama: no layers without rotation", "smollm3: no model in which no layer rotates"],
        ),
        ({"type": "cope"}, ["llama: type: cope has no form in Hugging Face's config"]),
        (
            {"type": "pi", "factor": 2.0},
            ["phi3: no rope_type linear, only default and longrope"],
        ),
    ],
)
def test_a_scaling_that_a_family_cannot_express(
    tmp_path: Path, scaling: dict[str, Any], reasons: list[str]
) -> None:
    rope = {"rotary_dim": 4} if scaling["type"] == "pi" else {}
    config = changed(tiny(tmp_path), rope=rope)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        keys_of(config, scaling, 16, family="phi3" if rope else None)
    said = str(caught.value)
    assert said.startswith("family: none can express this model (")
    assert all(reason in said for reason in reasons), said


# models


def changed(config: Config, **sections: dict[str, Any]) -> Config:
    raw = config.model_dump(mode="json")
    for name, keys in sections.items():
        raw[name] = raw[name] | keys
    raw["stages"] = raw["stages"][:1]
    return validate(Config, raw, "test")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"model": {"position": {"type": "alibi"}}},
            "model.position: alibi is in no family of transformers",
        ),
        (
            {"model": {"attention": "linear"}},
            "model.attention: linear is in no family of transformers",
        ),
        (
            {"rope": {"layout": "interleaved"}},
            "rope.layout: interleaved is not that of any family here",
        ),
    ],
)
def test_a_model_of_no_family(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    config = changed(tiny(tmp_path), **sections)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        keys_of(config, {"type": "none"}, 16)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        (
            {"scale_embeddings": True},
            ["llama: no scale_embeddings True", "gemma2: no norm rms_norm"],
        ),
        ({"norm": "layer_norm"}, ["llama: no norm layer_norm", "gpt_neox: no "]),
        ({"qk_norm": True, "qkv_bias": True}, ["llama: ", "qwen3: qkv_bias and o_bias differ"]),
    ],
)
def test_flags_that_no_family_combines(
    tmp_path: Path, model: dict[str, Any], reasons: list[str]
) -> None:
    config = changed(tiny(tmp_path), model=model)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        keys_of(config, {"type": "none"}, 16)
    said = str(caught.value)
    assert said.startswith("family: none can express this model (llama: ")
    assert "\n" not in said
    assert all(reason in said for reason in reasons)


def test_a_family_can_be_chosen(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    assert keys_of(config, {"type": "none"}, 16, family="mistral")["sliding_window"] is None
    for family, message in (
        ("qwen3", "family: none can express this model (qwen3: no qk_norm False)"),
        ("bert", "family: 'bert' is not one of llama, mistral, qwen3, qwen2, smollm3, phi3, "
         "gemma2, gemma3_text, olmo2, gpt_neox"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            keys_of(config, {"type": "none"}, 16, family=family)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("model", "rope", "family"),
    [
        ({}, {"layer_pattern": [{"sliding_window": 8}]}, "mistral"),
        ({"qk_norm": True}, {}, "qwen3"),
        ({"qkv_bias": True}, {}, "qwen2"),
        ({}, {"layer_pattern": [{}, {"scaling": {"type": "drope"}}]}, "smollm3"),
        ({}, {"rotary_dim": 4}, "phi3"),
        ({"norm_placement": "after", "qk_norm": "all_heads"}, {}, "olmo2"),
    ],
)
def test_the_first_family_that_can_express_a_model(
    tmp_path: Path, model: dict[str, Any], rope: dict[str, Any], family: str
) -> None:
    config = changed(tiny(tmp_path), model={"num_hidden_layers": 2} | model, rope=rope)
    assert keys_of(config, {"type": "none"}, 16)["model_type"] == family


# folders


def test_a_folder_that_exists_is_refused(whole: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert says(exported, whole[1], tmp_path / "out") == (
        f"{tmp_path}/out: exists; name a new folder"
    )


def test_what_is_no_run(tmp_path: Path) -> None:
    assert says(exported, RunDirectory(tmp_path), tmp_path / "out") == (
        f"{tmp_path}: not a run directory (it has no config.yaml)"
    )


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device", "out/config.json")]
)
def test_an_export_that_fails_leaves_nothing(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(exporting, "_write_texts", fail)
    if isinstance(error, OSError):
        assert says(exported, whole[1], tmp_path / "new" / "out") == (
            "out/config.json: cannot be written (No space left on device)"
        )
    else:
        with pytest.raises(KeyboardInterrupt):
            exported(whole[1], tmp_path / "new" / "out")
    assert not (tmp_path / "new" / "out").exists()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_place_that_cannot_be_written(whole: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert says(exported, whole[1], tmp_path / "file" / "out").endswith(
        ": cannot be written (Not a directory)"
    )
