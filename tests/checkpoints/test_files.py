"""How bad checkpoints are reported: damaged files, tensors and configs that disagree."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from rope_jax.checkpoints.families import FAMILIES
from rope_jax.checkpoints.files import CheckpointFiles, find_folder, is_checkpoint
from rope_jax.checkpoints.importing import import_checkpoint
from rope_jax.checkpoints.opening import same_bits
from rope_jax.checkpoints.reading import read_description
from rope_jax.cli import open_directory
from rope_jax.config.checkpoints import ImportConfig
from rope_jax.config.devices import DistributedConfig
from rope_jax.console import plain_console
from rope_jax.data.tokenizers import JsonTokenizer
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from tests.checkpoints.cases import FAMILIES as GOLDEN
from tests.checkpoints.folders import (
    byte_checkpoint,
    config_of,
    described,
    golden_case,
    loaded,
    says,
)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama that reads bytes."""
    return byte_checkpoint(tmp_path / "tiny")


def imported(folder: Path, **settings: Any) -> None:
    config = ImportConfig(runs_dir=str(folder.parent / "runs"), **settings)
    import_checkpoint(str(folder), config, plain_console(quiet=True))


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; ... removes one."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: v for key, v in content.items() if v is not ...}))


def edit_tensors(folder: Path, **changes: Any) -> None:
    """Change tensors, named with __ for the points; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): t for name, t in changes.items()}
    save_file({name: t for name, t in tensors.items() if t is not None}, path)


def in_shards(folder: Path) -> dict[str, str]:
    """Distribute the tensors over two files, and return the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {name: files[number % 2] for number, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({n: t for n, t in tensors.items() if index[n] == file}, folder / file)
    write_index(folder, index)
    return index


def write_index(folder: Path, weight_map: Any) -> None:
    content = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(content)


# files


def weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def without_weights(folder: Path, *, beside: str = "", content: bytes = b"") -> None:
    weights(folder).unlink()
    if beside:
        (folder / beside).write_bytes(content)


def indexed(weight_map: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights(folder).unlink()
        write_index(folder, weight_map)
        (folder.parent / "secret.safetensors").write_bytes(b"")

    return damage


def with_config(content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / "config.json").write_bytes(content)


def lacking_a_shard(folder: Path) -> None:
    in_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


AGAIN = "download the checkpoint again"
CONVERT = (
    'where torch is installed, convert it: python -c "from transformers import '
    "AutoModelForCausalLM as M; M.from_pretrained('{folder}').save_pretrained("
    "'{folder}-safetensors')\""
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: weights(folder).write_bytes(weights(folder).read_bytes()[:100]),
            "{folder}/model.safetensors: is truncated or damaged (*); " + AGAIN,
        ),
        (
            lambda folder: weights(folder).write_bytes(b"version https://git-lfs.github.com/spec"),
            "{folder}/model.safetensors: is truncated or damaged (*); " + AGAIN,
        ),
        (
            lambda folder: without_weights(folder, beside="consolidated.00.pth", content=b"cos\n"),
            "{folder}/consolidated.00.pth: is a pickle, which may run code and is never loaded; "
            + CONVERT,
        ),
        (
            without_weights,
            "{folder}: has neither model.safetensors nor model.safetensors.index.json; if the "
            "model has only pickles, " + CONVERT,
        ),
        (
            lacking_a_shard,
            "{folder}/model-00002-of-00002.safetensors: is missing (*); " + AGAIN,
        ),
        *(
            (
                indexed(weight_map),
                "{folder}/model.safetensors.index.json: has no weight_map from tensors to the "
                "names of files beside it",
            )
            for weight_map in ({"a": "../secret.safetensors"}, {"a": 3}, {}, None)
        ),
        (
            lambda folder: edit_tensors(folder, q=np.zeros((2, 2), ml_dtypes.float8_e4m3fn)),
            "{folder}/model.safetensors: q has type F8_E4M3; only F64, F32, F16, BF16 can be read, "
            "so use the checkpoint before it was quantized",
        ),
        (
            lambda folder: edit_tensors(folder, _orig_mod__model__norm__weight=np.ones(48)),
            "{folder}/model.safetensors: model.norm.weight and _orig_mod.model.norm.weight are "
            "the same weight",
        ),
        (
            lambda folder: (folder / "config.json").unlink(),
            "{folder}/config.json: no such file",
        ),
        (with_config(b"model_type: llama"), "{folder}/config.json: is not JSON"),
        (with_config(b"[" * 100_000), "{folder}/config.json: is not JSON"),
        (with_config(b"[]"), "{folder}/config.json: is not a JSON object"),
    ],
)
def test_a_folder_that_cannot_be_read(
    folder: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(folder)
    said = says(CheckpointFiles, folder)
    begin, _, end = message.replace("{folder}", str(folder)).partition("*")
    assert said.startswith(begin)
    assert said.endswith(end)
    assert end or said == begin


def test_shards_are_read_like_one_file(folder: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    in_shards(folder)
    files = CheckpointFiles(folder)
    found = dict(files.read(files.tensors))
    assert found.keys() == whole.keys()
    assert all(same_bits(found[name], whole[name]) for name in whole)


def test_a_stale_index_beside_the_single_file(folder: Path) -> None:
    """transformers reads the single file, too."""
    write_index(folder, {"model.absent": "model-00001-of-00009.safetensors"})
    files = CheckpointFiles(folder)
    assert {info.file.name for info in files.tensors.values()} == {"model.safetensors"}


@pytest.mark.parametrize(
    "prefix",
    [
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace("model.", "model.language_model."),
    ],
)
def test_weights_under_a_prefix(folder: Path, prefix: Callable[[str], str]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({prefix(n): t for n, t in tensors.items()}, folder / "model.safetensors")
    files = CheckpointFiles(folder)
    found = dict(files.read(files.tensors))
    assert found.keys() == tensors.keys()
    assert all(same_bits(found[name], tensors[name]) for name in tensors)
    (remark,) = files.remarks
    assert re.fullmatch(r"\d+ names without their prefixes, \S+ as \S+", remark)


# config.json


KNOWN = ", ".join(FAMILIES)


def test_every_family_has_golden_models() -> None:
    assert set(FAMILIES) == set(GOLDEN)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no_rope_layers", [0, 1]),
        ("sliding_window", 8),
        ("layer_types", ["sliding_attention", "full_attention"]),
    ],
)
def test_a_key_about_layers_that_the_family_ignores(key: str, value: Any) -> None:
    """transformers' Llama ignores them, so a model with one is not what its config seems to say."""
    assert says(lambda: described(**{key: value})).startswith(
        f"config.json: {key}: is {value}, which nothing here reads for llama"
    )
    ignored = described(ignored=(key,), **{key: value})
    assert ignored == described()


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"model_type": ["llama"]}, f"model_type: ['llama'] is not one of {KNOWN}"),
        (
            "llama",
            {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "m.M"}},
            f"model_type: 'own' is not one of {KNOWN}; code that comes with a model is never run",
        ),
        (
            "llama",
            {"num_hidden_layers": 10**9},
            "num_hidden_layers: 1000000000 is above 10,000, the limit",
        ),
        (
            "llama",
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config: is quantized; use the checkpoint before it was quantized",
        ),
        (
            "llama",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention: is not a causal model",
        ),
        ("llama", {"hidden_size": ...}, "hidden_size: is required but was not given"),
        (
            "llama",
            {"max_position_embeddings": "128"},
            "max_position_embeddings: should be a whole number of at least 1, not '128'",
        ),
        (
            "llama",
            {"hidden_act": "relu"},
            "hidden_act: 'relu' is not one of silu, swish, gelu, gelu_python, gelu_pytorch_tanh, "
            "gelu_new, gelu_fast, gelu_accurate, gelu_python_tanh",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
            "rope_type: 'spiral' is not one of default, linear, dynamic, yarn, longrope, llama3, "
            "proportional",
        ),
        ("llama", {"rope_parameters": 3}, "rope_parameters: should be a mapping, not 3"),
        (
            "gemma2",
            {"layer_types": ["full_attention"]},
            "layer_types: should be a list of 3 types, one for each layer",
        ),
        (
            "gemma2",
            {"layer_types": ["full_attention", "chunked_attention", "full_attention"]},
            "layer_types: 'chunked_attention' is not one of full_attention, sliding_attention",
        ),
        (
            "gemma3_text",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            "rope_parameters: gemma3_text needs one mapping for each layer type, full_attention "
            "and sliding_attention; transformers ignores a flat one",
        ),
        (
            "gpt_neox",
            {"rope_theta": 5e5},
            "rope_theta: is ignored by gpt_neox, whose base is 10000.0; remove it",
        ),
    ],
)
def test_a_value_that_a_family_does_not_take(
    family: str, changes: dict[str, Any], message: str
) -> None:
    assert says(lambda: described(family, **changes)) == f"config.json: {message}"


POSITIONS = (
    *("rope_scaling", "rope_parameters", "rope_theta", "rope_local_base_freq", "head_dim"),
    *("partial_rotary_factor", "rotary_pct", "rotary_emb_base", "sliding_window", "layer_types"),
    *("original_max_position_embeddings", "use_sliding_window", "sliding_window_pattern"),
    *("max_window_layers", "no_rope_layers", "no_rope_layer_interval"),
)
WRONG: tuple[Any, ...] = (
    True,
    -1,
    0,
    2.5,
    1e308,
    float("nan"),
    10**400,
    "x",
    [],
    [None],
    {},
    {"a": 1},
)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_of_wrong_types_are_reported_or_have_no_effect(family: str) -> None:
    content = json.loads(golden_case(family, "default").config)
    parts = [{"rope_type": wrong, "rope_theta": 1e4} for wrong in WRONG]
    parts += [{"rope_type": "linear", "rope_theta": 1e4, "factor": wrong} for wrong in WRONG]
    changes = [{key: wrong} for key in sorted({*content, *POSITIONS}) for wrong in WRONG]
    for change in [*changes, *({"rope_parameters": part} for part in parts)]:
        said = "config.json: "
        try:
            config_of(read_description(content | change, "config.json"))
        except UserError as error:
            said = str(error)
        assert said.startswith("config.json: "), change
        assert "\n" not in said, change


# tensors


NOT_THERE = "config.json says that the model has it"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: edit_config(folder, num_hidden_layers=1),
            "{folder}/model.safetensors: nothing reads model.layers.1.input_layernorm.weight (and "
            "8 more); config.json describes a model without it",
        ),
        (
            lambda folder: edit_tensors(folder, model__norm__weight=None),
            f"{{folder}}: model.norm.weight is missing, and {NOT_THERE}",
        ),
        (
            lambda folder: edit_config(folder, mlp_bias=True),
            "{folder}: model.layers.0.mlp.gate_proj.bias (and 5 more) is missing, and " + NOT_THERE,
        ),
        (
            lambda folder: edit_config(folder, num_key_value_heads=4),
            "{folder}/model.safetensors: model.layers.0.self_attn.k_proj.weight has shape "
            "[24, 48], but {folder}/config.json makes it [48, 48]",
        ),
        (
            lambda folder: edit_config(folder, tie_word_embeddings=True),
            "{folder}/model.safetensors: lm_head.weight differs from model.embed_tokens.weight, "
            "but config.json says tie_word_embeddings; set it to false",
        ),
    ],
)
def test_tensors_that_do_not_fit_the_config(
    folder: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(folder)
    assert says(loaded, folder) == message.replace("{folder}", str(folder))


def test_a_tied_output_that_is_written_twice(folder: Path) -> None:
    embedding = load_file(folder / "model.safetensors")[EMBEDDING]
    edit_config(folder, tie_word_embeddings=True)
    edit_tensors(folder, lm_head__weight=embedding.copy())
    twice = loaded(folder)[1]
    edit_tensors(folder, lm_head__weight=None)
    once = loaded(folder)[1]
    assert "lm_head" not in twice
    for params in (twice, once):
        assert same_bits(np.asarray(params["embed_tokens"]["embedding"]), embedding)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (
            "llama",
            ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"],
        ),
        (
            "gpt_neox",
            [
                "gpt_neox.layers.0.attention.bias",
                "gpt_neox.layers.1.attention.masked_bias",
                "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
            ],
        ),
    ],
)
def test_buffers_of_older_versions_are_left_out(
    family: str, names: list[str], tmp_path: Path
) -> None:
    """Pythia's published files hold its causal mask as bytes or booleans."""
    folder = byte_checkpoint(tmp_path / "tiny", family)
    before = loaded(folder)[1]
    edit_tensors(
        folder, **dict.fromkeys([n.replace(".", "__") for n in names], np.ones((1, 1), np.bool_))
    )
    after = loaded(folder)[1]
    assert str(before) == str(after)


# tokenizers


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "tokenizer.json").unlink(),
            "{folder}/tokenizer.json: no such file; save it with tokenizers' or transformers' fast "
            "tokenizer (AutoTokenizer.from_pretrained(...).save_pretrained(...))",
        ),
        (
            lambda folder: edit_config(folder, vocab_size=200),
            "{folder}/tokenizer.json: has 257 tokens, but config.json says that the model knows "
            "200; use the tokenizer that belongs to it",
        ),
        (
            lambda folder: (folder / "tokenizer.json").write_bytes(b"ab\xff"),
            "tokenizer.path: {folder}/tokenizer.json is not UTF-8 (byte 2), as a tokenizer.json is",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_used(
    folder: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(folder)
    assert says(imported, folder) == message.replace("{folder}", str(folder))


def test_an_added_token_that_the_model_does_not_know(folder: Path) -> None:
    """Only a text that holds it is refused: a padding token often has id vocab_size."""
    path = folder / "tokenizer.json"
    library = Tokenizer.from_file(str(path))
    size = library.get_vocab_size()
    library.add_tokens(["<extra>"])
    library.save(str(path))
    edit_config(folder, vocab_size=size)
    tensors = load_file(folder / "model.safetensors")
    cut = {name: tensor[:size].copy() for name, tensor in tensors.items() if len(tensor) == 264}
    save_file(tensors | cut, folder / "model.safetensors")
    imported(folder)
    run = RunDirectory(folder.parent / "runs" / folder.name)
    tokenizer = run.open_tokenizer(run.load_config())
    assert tokenizer.vocab_size == size
    assert tokenizer.encode("ab").tolist() == [97, 98]
    assert says(tokenizer.encode, "a<extra>") == (
        f"tokenizer.path: {run.tokenizer_file} gives token {size} ('<extra>') for a text, outside "
        f"the vocabulary of {size}"
    )
    unlimited = JsonTokenizer(path.read_text(), "<|begin_of_text|>", "x")
    assert (unlimited.vocab_size, unlimited.name == tokenizer.name) == (size + 1, False)


# names


def test_a_misspelt_run_is_no_id_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/demo").mkdir(parents=True)
    assert not is_checkpoint("runs/dmeo")
    assert (
        says(open_directory, "runs/dmeo")
        == "runs/dmeo: not a run directory (it has no config.yaml)"
    )


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-has-this-name/x"])
def test_an_argument_that_no_file_can_have(name: str) -> None:
    assert not is_checkpoint(name)
    assert name in says(find_folder, name, None)


def test_a_run_is_not_a_checkpoint(folder: Path) -> None:
    assert is_checkpoint(str(folder))
    assert is_checkpoint("owner/model")
    (folder / "config.yaml").write_text("name: tiny\n")
    assert not is_checkpoint(str(folder))


def test_an_id_without_a_network() -> None:
    said = says(find_folder, "nobody/nothing", None)
    assert said.startswith("nobody/nothing: cannot be downloaded from the hub: ")


@pytest.mark.parametrize("model", ["absent", "a/b/c", "https://huggingface.co/a/b"])
def test_neither_a_folder_nor_an_id(model: str) -> None:
    assert says(find_folder, model, None) == (
        f"{model}: is neither a folder with a config.json nor the id (owner/name) of a model on "
        "the Hugging Face hub"
    )


def test_a_local_folder_has_no_revisions(folder: Path) -> None:
    assert says(find_folder, str(folder), "main") == (
        f"revision: {folder} is a local folder, which has no revisions"
    )


def test_several_processes_do_not_import_at_once(folder: Path) -> None:
    distributed = DistributedConfig(coordinator="a:1", num_processes=2, process_id=0)
    assert says(open_directory, str(folder), distributed) == (
        f"distributed: import the checkpoint first, with scripts/import_hf.py {folder}, and name "
        "the run directory"
    )
