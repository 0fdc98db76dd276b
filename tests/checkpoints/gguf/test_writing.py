"""A run that is written as a GGUF file: as llama.cpp's converter writes it, and read back."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, models

from rope_jax.checkpoints.exporting import export_run
from rope_jax.checkpoints.gguf.header import read_header
from rope_jax.checkpoints.gguf.tokenizer import (
    _SAMPLE,
    _WORDS,
    _cutter,
    tokenizer_json,
    tokenizer_metadata,
)
from rope_jax.checkpoints.gguf.writing import model_of
from rope_jax.checkpoints.sentence_pieces import converted
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.strategy import Strategy, write_strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.data.tokenizers import train_bpe
from rope_jax.rope import Scaling, parse_scaling
from rope_jax.runs.directory import RunDirectory
from tests.checkpoints.folders import (
    QUIET,
    assert_same,
    byte_checkpoint,
    imported,
    loaded,
    params_of,
    says,
    write_case,
)
from tests.checkpoints.gguf_files import ARCHITECTURES, write_gguf
from tests.checkpoints.test_gguf import byte_level, case_of, with_vocabulary, zip_leaves
from tests.checkpoints.test_sentence_pieces import trained

Q = gguf.GGMLQuantizationType
# whose own scaling or windows have no form in llama.cpp, with latent attention or with delta nets
_NOT_WRITTEN = {"exaone4", "gpt_oss", "deepseek_v2", "deepseek_v3", "llama4_text", "ministral3"}
_NOT_WRITTEN |= {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
FAMILIES = [
    pytest.param(x, marks=() if x in ("llama", "gemma3_text") else pytest.mark.slow)
    for x in ARCHITECTURES
    if x not in _NOT_WRITTEN
]


@pytest.mark.parametrize("family", FAMILIES)
def test_files_are_as_llama_cpps_converter_writes_them(family: str, tmp_path: Path) -> None:
    name = "no_window" if family == "mistral" else "default"
    case = case_of(family, name)
    config, params = loaded(write_case(tmp_path / "hub", case))
    vocab_size, length = config.model.vocab_size or 0, config.stages[0].length
    model = model_of(config, config.rope.scaling, length, vocab_size, params, family)
    model.written(lambda: params, "f32", {}).write(tmp_path / "ours.gguf")
    ours = read_header(tmp_path / "ours.gguf")
    theirs = read_header(write_gguf(tmp_path / "theirs.gguf", case))
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, stored in theirs.tensors.items():
        assert ours.tensors[name].shape == stored.shape, name
        assert np.array_equal(ours.tensors[name].data, stored.data), name
    written_alone = {"phi3.attention.sliding_window", "falcon.context_length"}
    for key in theirs.metadata.keys() - written_alone:
        assert ours.metadata.get(key) == theirs.metadata[key], key


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """An import of a folder of the hub."""
    return imported(byte_checkpoint(tmp_path / "hub" / "tiny"))


def strategy(folder: Path, **settings: Any) -> str:
    """Write a strategy file with a scaling."""
    path = folder / f"{settings['type']}.json"
    write_strategy(Strategy(scaling=parse_scaling(settings)), path)
    return str(path)


@pytest.mark.parametrize(
    ("outtype", "param_dtype", "kinds"),
    [
        (None, "float32", {Q.F32}),
        ("bf16", "bfloat16", {Q.F32, Q.BF16}),
        ("q8_0", "float32", {Q.F32, Q.F16, Q.Q8_0}),  # most rows are 48 wide, which is no block
    ],
)
def test_an_exported_file_is_read_as_the_run(
    run: RunDirectory, tmp_path: Path, outtype: str | None, param_dtype: str, kinds: set[Q]
) -> None:
    given = {"strategy": strategy(tmp_path, type="yarn", factor=4.0), "outtype": outtype}
    out = tmp_path / "new" / "out.gguf"
    export_run(run, ExportConfig.model_validate(given), out, QUIET)
    assert {stored.kind for stored in read_header(out).tensors.values()} == kinds
    again = imported(out, runs_dir=str(tmp_path / "again"))
    before, after = run.load_config(), again.load_config()
    assert after.model.param_dtype == param_dtype
    assert after.stages[0].seq_len == 4 * before.geometry.train_length
    leaves = zip_leaves(params_of(again), params_of(run))
    assert all(np.allclose(a, b, rtol=0.01, atol=0.01) for a, b in leaves)
    if outtype is None:
        assert after.model == before.model
        assert_same(params_of(again), params_of(run))
    tokens = [each.open_tokenizer(config) for each, config in ((run, before), (again, after))]
    assert tokens[0].bos_ids == tokens[1].bos_ids == (256,)
    assert np.array_equal(*(each.encode("Größe 日本\r\n\n  12") for each in tokens))
    assert_rotates(after, before, parse_scaling({"type": "yarn", "factor": 4.0}))


def assert_rotates(found: TrainingConfig, config: TrainingConfig, scaling: Scaling) -> None:
    """A config's own scaling gives what another gives with a scaling."""
    a = found.rotary_layers.frequencies(found.rope.scaling)
    b = config.rotary_layers.frequencies(scaling)
    np.testing.assert_allclose(a.exact, b.exact, rtol=1e-6)
    np.testing.assert_allclose(a.attention_factor, b.attention_factor, rtol=1e-6)


ROPE = "llama.rope."
EXPLICIT = {"type": "explicit", "factors": [1.0, 1, 2, 3, 5, 5.5], "attention_factor": 1.25}


def source(tmp_path: Path, **metadata: Any) -> Path:
    """Write a file with Llama 3's divisors, and with metadata that nothing here reads."""
    tokens = byte_level() | {"general__tags": ["a", "b"], "general__size": 1.5}
    case = with_vocabulary(264, "llama3")
    return write_gguf(tmp_path / "tiny.gguf", case, Q.F16, **tokens | metadata)


@pytest.mark.parametrize(
    ("settings", "keys", "tensors", "length"),
    [
        (None, {"scaling.original_context_length": 32}, {"rope_freqs.weight"}, 128),
        ({"type": "yarn", "factor": 8.0},
         {"scaling.type": "yarn", "scaling.factor": 8.0, "scaling.original_context_length": 32},
         set(), 256),
        (EXPLICIT, {"scaling.type": "none", "scaling.attn_factor": 1.25},
         {"rope_freqs.weight"}, 128),
        ({"type": "pi", "factor": 2.0}, {"scaling.type": "linear", "scaling.factor": 2.0},
         set(), 128),
    ],
)  # fmt: skip
def test_a_copy_has_another_scaling_and_the_same_bytes(
    tmp_path: Path,
    settings: dict[str, Any] | None,
    keys: dict[str, Any],
    tensors: set[str],
    length: int,
) -> None:
    path, out = source(tmp_path), tmp_path / "out.gguf"
    run, before = imported(path), read_header(path)
    chosen = None if settings is None else strategy(tmp_path, **settings)
    export_run(run, ExportConfig(strategy=chosen), out, QUIET)
    after = read_header(out)
    assert after.tensors.keys() == (before.tensors.keys() - {"rope_freqs.weight"}) | tensors
    for name in after.tensors.keys() - {"rope_freqs.weight"}:
        assert after.tensors[name].kind == before.tensors[name].kind
        assert np.array_equal(after.tensors[name].data, before.tensors[name].data), name
    kept = {key for key in before.entries if ".rope." not in key and "context_" not in key}
    assert all(after.entries[key] == before.entries[key] for key in kept)
    rotation = {
        key: value for key, value in after.metadata.items() if key.startswith(f"{ROPE}scal")
    }
    assert rotation == {f"{ROPE}{key}": value for key, value in keys.items()}
    assert after.metadata["llama.context_length"] == length
    config = run.load_config()
    scaling = config.rope.scaling if settings is None else parse_scaling(settings)
    again = imported(out, runs_dir=str(tmp_path / "again"))
    assert_rotates(again.load_config(), config, scaling)
    assert_same(params_of(again), params_of(run))


def test_a_file_that_has_changed_is_not_copied(tmp_path: Path) -> None:
    path, out = source(tmp_path), tmp_path / "out.gguf"
    run = imported(path)
    export_run(run, ExportConfig(outtype="f16"), tmp_path / "anew.gguf", QUIET)
    assert_same(loaded(tmp_path / "anew.gguf")[1], loaded(path)[1])
    source(tmp_path, general__name="other")
    message = "is not the file that was imported, or was moved or changed since; import it again"
    assert message in says(export_run, run, ExportConfig(), out, QUIET)
    path.unlink()
    assert says(export_run, run, ExportConfig(), out, QUIET).startswith(f"{path}: ")
    assert not out.exists()


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("qwen3", {"type": "llama3"}, "qwen3: the frequencies of llama3 are none that a base"),
        ("llama", {"type": "dynamic_ntk"}, "dynamic_ntk follows the text's length, which llama."),
        ("llama", {"type": "explicit", "factors": [[1.0] * 6, [2.0] * 6]},
         "its layers differ otherwise than llama.cpp's do"),
        ("gemma3_text", {"type": "explicit", "factors": [1.0] * 8, "attention_factor": 1.1},
         "gemma3: its m would also be that of the layers that slide"),
        ("gemma2", None, "gemma2: no query_pre_attn_scalar 24"),
        ("mistral", None, "llama: layers with a sliding window; "),
        ("deepseek_v2", None, "latent attention"),
    ],
)  # fmt: skip
def test_what_llama_cpp_cannot_express(
    tmp_path: Path, family: str, settings: dict[str, Any] | None, message: str
) -> None:
    changes = {"query_pre_attn_scalar": 16} if family == "gemma3_text" else {}
    run = imported(byte_checkpoint(tmp_path / "hub" / family, family, **changes))
    chosen = None if settings is None else strategy(tmp_path, **settings)
    said = says(export_run, run, ExportConfig(strategy=chosen), tmp_path / "out.gguf", QUIET)
    assert said.startswith("family: llama.cpp cannot express this run (")
    assert message in said
    assert not list(tmp_path.glob("*.gguf"))


def test_a_type_is_for_files_alone(run: RunDirectory, tmp_path: Path) -> None:
    said = says(export_run, run, ExportConfig(outtype="f16"), tmp_path / "out", QUIET)
    assert said == f"outtype: is of GGUF files; name one, such as {tmp_path}/out.gguf"


TEXT = "It's 12345 o'clock,\n\n  Größe!! 日本 <x> end"


def test_tokenizers_are_written(tmp_path: Path) -> None:
    """Byte-level BPE by its rule for words, and SentencePiece's by ranks of its merges."""
    trained(tmp_path, normalization_rule_name="identity", remove_extra_whitespaces=False)
    contents = [train_bpe([[TEXT] * 40], 280), converted(tmp_path / "tokenizer.model", {})]
    for pre in ("llama-bpe", "qwen2", "smollm", "tekken"):
        metadata = {key.replace("__", "."): value for key, value in byte_level(pre).items()}
        contents.append(tokenizer_json(metadata, "in"))
        written = tokenizer_metadata(contents[-1], 270, {"bos_token_id": 262}, True, None, "out")
        assert {key: written[key] for key in metadata if key != "tokenizer.ggml.tokens"} == {
            key: value + [5] * 6 if key.endswith("type") else value
            for key, value in metadata.items() if key != "tokenizer.ggml.tokens"
        }  # fmt: skip
    for content in contents:
        library = Tokenizer.from_str(content)
        given = library.get_vocab_size(), {"eos_token_id": [1, 2]}, False, "{{ x }}", "out"
        metadata = tokenizer_metadata(content, *given)
        again = Tokenizer.from_str(tokenizer_json(metadata, "out"))
        a, b = (each.encode(TEXT, add_special_tokens=False).ids for each in (library, again))
        assert a == b
        assert again.get_vocab() == library.get_vocab()
        assert metadata["tokenizer.chat_template"] == "{{ x }}"
        ends = (metadata[f"tokenizer.ggml.{x}_token_id"] for x in ("eos", "eot"))
        assert tuple(ends) == (1, 2)


def test_rules_for_words_are_told_apart() -> None:
    """Each cuts the sample otherwise, by which a rule is found."""
    rules = [rule["names"] for rule in _WORDS["rules"]]
    cuts = [[str(_cutter(name).pre_tokenize_str(_SAMPLE)) for name in names] for names in rules]
    assert all(len({*alike}) == 1 for alike in cuts)
    assert len({alike[0] for alike in cuts}) == len(rules)


def test_a_tokenizer_that_llama_cpp_lacks_is_refused() -> None:
    content = json.loads(train_bpe([[TEXT] * 40], 280))
    split = {"pattern": {"Regex": "[aeiou]"}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Split", **split}, content["pre_tokenizer"]],
    }
    said = says(tokenizer_metadata, json.dumps(content), 280, {}, False, None, "out.gguf")
    assert said == "out.gguf: llama.cpp has no tokenizer that cuts texts like this run's"
    content = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0)).to_str()
    said = says(tokenizer_metadata, content, 300, {}, False, None, "out.gguf")
    assert said == "out.gguf: llama.cpp has no tokenizer that cuts texts like this run's"
