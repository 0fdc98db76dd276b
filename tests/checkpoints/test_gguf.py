"""A GGUF file gives the model, the positions and the tokenizer that a folder of the hub gives."""

import io
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from rope_jax.checkpoints.exporting import export_run
from rope_jax.checkpoints.gguf.architectures import ARCHITECTURES as KNOWN
from rope_jax.checkpoints.gguf.header import entry, read_header
from rope_jax.checkpoints.gguf.header import write_gguf as write
from rope_jax.checkpoints.gguf.tokenizer import tokenizer_json
from rope_jax.checkpoints.open import is_checkpoint, open_checkpoint
from rope_jax.checkpoints.reading import read_description
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.console import plain_console
from rope_jax.rope import RotaryGeometry
from tests.checkpoints.cases import Case, read_cases
from tests.checkpoints.folders import (
    QUIET,
    assert_same,
    config_of,
    golden_case,
    imported,
    loaded,
    params_of,
    says,
    windows_of,
    write_case,
)
from tests.checkpoints.gguf_files import ARCHITECTURES, write_gguf
from tests.checkpoints.test_sentence_pieces import TEXTS, trained

# What llama.cpp's scripts leave out of a file, or its code does for all models of an architecture.
LOST = {
    *("dynamic", "proportional", "yarn_settings", "no_rope_layers", "sliding", "layer_types"),
    *("no_caps", "all_full", "no_attention_bias", "legacy_gelu", "untied", "norms", "one_norm"),
    *("limited", "window", "multimodal", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
    *("some_dense", "qwen3_5", "qwen3_5_moe", "glm4v"),
}
# of layers that slide or do not rotate
OTHER_PATTERN = {*(("cohere2", "yarn"), ("gpt_oss", "yarn"), ("llama4_text", "scout")),
                 ("llama4_text", "plain"), ("qwen3_next", "yarn")}  # fmt: skip
# One for each way in which a file differs: permuted rows, norms, fused rows, factors.
QUICK = {
    *(("llama", "llama3"), ("qwen2", "yarn"), ("gemma3_text", "linear"), ("gpt_neox", "default")),
    *(("phi3", "partial_longrope"), ("qwen3_next", "default"), ("qwen3_5_text", "default")),
}
CASES = [
    pytest.param(
        *(family, case.name),
        id=f"{family}-{case.name}",
        marks=() if (family, case.name) in QUICK else pytest.mark.slow,
    )
    for family in ARCHITECTURES
    for case in read_cases(family)
    if case.name not in LOST and (family, case.name) not in OTHER_PATTERN
    if family != "mistral" or case.name == "no_window"
]
Q = gguf.GGMLQuantizationType


def case_of(family: str, name: str) -> Case:
    """Return a golden model; Gemma's with the scale of queries that llama.cpp gives to all."""
    case = golden_case(family, name)
    config = json.loads(case.config)
    if family in ("gemma2", "gemma3_text"):
        config["query_pre_attn_scalar"] = config["head_dim"]
    if family == "llama4_text":
        config |= {"attention_chunk_size": 8192, "floor_scale": 8192}
    rope = config["rope_parameters"]
    if family.startswith("deepseek") and "mscale" in rope:
        rope["mscale"] = rope["mscale_all_dim"]
    return replace(case, config=json.dumps(config))


@pytest.mark.parametrize(("family", "name"), CASES)
def test_files_give_the_same_model(tmp_path: Path, family: str, name: str) -> None:
    case = case_of(family, name)
    expected, weights = loaded(write_case(tmp_path / "hub", case))
    config, found = loaded(write_gguf(tmp_path / "model.gguf", case))
    assert config.model == expected.model
    assert windows_of(config) == windows_of(expected)
    if KNOWN[ARCHITECTURES[family]].plus_one:  # w + 1 − 1
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip_leaves(found, weights))
    else:
        assert_same(found, weights)
    for length in (24, 80):
        rotary = [
            each.rotary_layers.rotary(each.rope.scaling, np.arange(length)[None], length)
            for each in (config, expected)
        ]
        for a, b in zip_leaves(*rotary):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def zip_leaves(a: Any, b: Any) -> Any:
    return zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    case = golden_case("qwen3_5_text")
    weights = case.weights() | {"blk.4.nextn.eh_proj.weight": np.zeros((32, 64), np.float32)}
    more = {"qwen35__block_count": 5, "qwen35__nextn_predict_layers": 1}
    path = write_gguf(tmp_path / "more.gguf", case, weights=weights, **more)
    assert_same(loaded(path)[1], loaded(write_gguf(tmp_path / "model.gguf", case))[1])


def test_metadata_that_say_what_is_usual_are_read(tmp_path: Path) -> None:
    usual = {"attention__causal": True, "rope__scaling__attn_factor": 1.0, "expert_gating_func": 1}
    usual |= {"rope__scaling__type": "none", "rope__scaling__factor": 0.0}
    metadata = {f"qwen3moe__{key}": value for key, value in usual.items()}
    path = write_gguf(tmp_path / "model.gguf", golden_case("qwen3_moe"), **metadata)
    config = open_checkpoint(str(path), None).config
    assert not [key for key in config if "." in key]


@pytest.mark.parametrize(("factor", "high"), [(32.0, 4.0), (16.0, 1.0)])
def test_llama_3_is_recognised_by_its_divisors(tmp_path: Path, factor: float, high: float) -> None:
    case = golden_case("llama", "llama3")
    config = json.loads(case.config)
    rope = {"rope_theta": 500000.0, "factor": factor, "original_max_position_embeddings": 8192}
    rope["high_freq_factor"] = high
    config["rope_parameters"] |= rope
    path = write_gguf(tmp_path / "model.gguf", replace(case, config=json.dumps(config)))
    found = open_checkpoint(str(path), None).config["rope_parameters"]
    assert found == config["rope_parameters"]


SLOW_TYPES = [pytest.param(kind, marks=pytest.mark.slow) for kind in (Q.F16, Q.Q4_0)]


@pytest.mark.parametrize("kind", [Q.BF16, Q.Q8_0, *SLOW_TYPES])
def test_stored_types(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    case = golden_case("qwen3")
    path = write_gguf(tmp_path / "model.gguf", case, kind)
    weights = {
        name: gguf.dequantize(gguf.quantize(weight, kind), kind) if weight.ndim > 1 else weight
        for name, weight in case.weights().items()
    }
    exact = write_gguf(tmp_path / "exact.gguf", case, weights=weights)
    assert_same(loaded(path)[1], loaded(exact)[1])
    files = open_checkpoint(str(path), None)
    dtypes = {info.dtype for info in files.tensors.values()}
    assert (dtypes == {"bfloat16"}) == (kind == Q.BF16)
    assert f"{kind.name} (" in files.remarks[0]


def test_a_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Ollama's files have a hash for a name."""
    path = write_gguf(tmp_path / "sha256-1234", golden_case("llama"))
    assert is_checkpoint(str(path))
    assert_same(loaded(path)[1], loaded(path.rename(tmp_path / "model.gguf"))[1])


def test_a_folder_with_a_file_is_told_from_it(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", golden_case("llama"))
    assert is_checkpoint(str(tmp_path))
    assert says(open_checkpoint, str(tmp_path), None) == (
        f"{tmp_path}: is a folder; name the file in it, such as {path}"
    )


# --- tokenizers ---


def byte_level(pre: str = "smollm") -> dict[str, Any]:
    """Return the metadata of a byte-level tokenizer with a few merges and a special token."""
    pairs = ["Ġ t", "h e", "Ġt he", "1 2", "Ġ Ġ", "i n"]
    tokens = [*sorted(ByteLevel.alphabet()), *(p.replace(" ", "") for p in pairs), "<|end|>", "<x>"]
    return {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": pre,
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__merges": pairs,
        "tokenizer__ggml__token_type": [1] * (len(tokens) - 2) + [3, 4],
        "tokenizer__ggml__bos_token_id": len(tokens) - 2,
        "tokenizer__ggml__add_bos_token": True,
    }


def with_vocabulary(size: int, name: str = "default") -> Case:
    """Return a golden model of so many tokens."""
    case = golden_case("llama", name)
    config = json.dumps(json.loads(case.config) | {"vocab_size": size})
    shapes = {n: (size, *s[1:]) if s[0] == 64 and "mlp" not in n else s
              for n, s in case.tensors.items()}  # fmt: skip
    return replace(case, config=config, tensors=shapes)


def test_a_byte_level_tokenizer_is_imported(tmp_path: Path) -> None:
    tokens = byte_level()
    names = tokens["tokenizer__ggml__tokens"]
    path = write_gguf(tmp_path / "tiny.gguf", with_vocabulary(len(names)), **tokens)
    assert is_checkpoint(str(path))
    run = imported(path)
    assert run.path.name == "tiny"
    config = run.load_config()
    tokenizer = run.open_tokenizer(config)
    ids = tokenizer.encode("in the 12 <x>").tolist()
    assert [names[i] for i in ids] == ["in", "Ġthe", "Ġ", "1", "2", "Ġ", "<x>"]
    assert [names[i] for i in tokenizer.bos_ids] == ["<|end|>"]
    text = "Größe\n\n don't  <|end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert imported(path).path == run.path  # already there
    assert_same(params_of(run), loaded(path)[1])


def test_a_tokenizer_without_a_rule_for_words_warns(tmp_path: Path) -> None:
    tokens = byte_level() | {"tokenizer__ggml__pre": None}
    path = write_gguf(tmp_path / "tiny.gguf", with_vocabulary(264), **tokens)
    console = plain_console(file=io.StringIO())
    for _ in range(2):  # also when it is already there
        imported(path, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count(f"{path}: tokenizer.ggml.pre: is missing, so ") == 2


def test_an_export_has_what_the_file_says_about_ends_and_chats(tmp_path: Path) -> None:
    tokens = byte_level()
    count = len(tokens["tokenizer__ggml__tokens"])
    more = {"eos_token_id": count - 1, "eot_token_id": 7}
    tokens |= {f"tokenizer__ggml__{key}": number for key, number in more.items()}
    path = write_gguf(tmp_path / "tiny.gguf", with_vocabulary(count), **tokens,
                      tokenizer__chat_template="{{ messages }}")  # fmt: skip
    out = tmp_path / "out"
    export_run(imported(path), ExportConfig(), out, QUIET)
    config, generation, settings = (
        json.loads((out / f"{name}.json").read_text())
        for name in ("config", "generation_config", "tokenizer_config")
    )
    ids = {"bos_token_id": count - 2, "eos_token_id": [count - 1, 7]}
    assert generation == ids
    assert config.items() >= ids.items()
    assert (settings["bos_token"], settings["eos_token"]) == ("<|end|>", "<x>")
    assert settings["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("llama-bpe", ["in", "'RE", " ", "123", "45", "?\n\n", "!ab", "  ", " x"]),
        ("qwen2", ["in", "'RE", " ", "1", "2", "?\n\n", "!ab", "  ", " x"]),
        ("gpt-2", ["in", "'", "RE", " 12345", "?", "\n", "\n", "ab", "  ", " x"]),
        ("smollm", ["in", "'", "RE", " ", "1", "2", "?", "\n", "\n", "ab", "  ", " x"]),
        ("gpt-4o", ["in'RE", " One", "Two", " ", "123", "4", "?/\n", "!ab"]),
        ("tekken", ["in", "'RE", " One", "Two", " ", "1", "2", "?/\n", "!ab"]),
        ("deepseek-v3", ["in", "'RE", " ", "123", "4", "日本", "abc", "?\n", "!ab"]),
        ("deepseek-llm", ["in", "'", "RE", " ", "1234", "日本", "abc", "?", "\n", "!", "ab"]),
        ("deepseek-coder", ["in", "'", "s", " ", "1", "2", "日本", "?!", "\n", " x"]),
        ("seed-coder", ["in", "'RE", " ", "1", "2", "?", "\n\n", "!ab", "  ", " x"]),
        ("jais-2", ["in", "'RE", " ", "123", "4", "?\n", " " * 8, " " * 4, "  ", " x"]),
        ("kimi-k2", ["in'RE", "日本", "One", "Twoカナ", "123", "4", "?\n", "/!", "ab"]),
        ("falcon", ["in", "'", "RE", " ", "123", "4", "?+", " ab"]),
    ],
)
def test_words(pre: str, words: list[str]) -> None:
    metadata = {key.replace("__", "."): value for key, value in byte_level(pre).items()}
    library = Tokenizer.from_str(tokenizer_json(metadata, "model.gguf"))
    text = "".join(words)
    cut = [text[a:b] for _, (a, b) in library.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == words


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_with_scores_are_split_like_sentencepiece(tmp_path: Path, prefix: bool) -> None:
    defined = [] if prefix else ["▁▁", "▁▁▁", "<pad>", "\n\n"]  # Gemma's layout
    trained(
        tmp_path,
        user_defined_symbols=defined,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    theirs = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    count = theirs.get_piece_size()
    types = [
        2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 6 if theirs.is_byte(i) else 1
        for i in range(count)
    ]
    pieces = [theirs.id_to_piece(i) for i in range(count)]
    for i, piece in enumerate(pieces):
        if piece in defined:
            types[i], pieces[i] = 4, piece.replace("▁", " ")
    metadata = {
        "model": "llama",
        "tokens": pieces,
        "scores": [-1000.0 if t == 4 else theirs.get_score(i) for i, t in enumerate(types)],
        "token_type": types,
        "add_space_prefix": prefix,
    }
    path = write_gguf(tmp_path / "tiny.gguf", with_vocabulary(count),
                      **{f"tokenizer__ggml__{key}": v for key, v in metadata.items()})  # fmt: skip
    run = imported(path)
    tokenizer = run.open_tokenizer(run.load_config())
    assert tokenizer.bos_ids == (theirs.bos_id(),)
    more = () if prefix else ("a   b", "a" + " " * 9 + "the\n\n\n <pad> the")
    for text in (*TEXTS, *more):
        assert tokenizer.encode(text).tolist() == theirs.encode(text), text
        assert prefix or tokenizer.decode(tokenizer.encode(text)) == theirs.decode(
            theirs.encode(text)
        )


# --- what cannot be read ---


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-100, "is truncated or damaged (output_norm.weight ends at byte"),
        (60, "is truncated or damaged (the header does not end)"),
    ],
)
def test_a_truncated_file(tmp_path: Path, size: int, message: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", with_vocabulary(264))
    path.write_bytes(path.read_bytes()[:size])
    assert says(imported, path).startswith(f"{path}: {message}")


def test_keys_and_tensors_that_occur_twice_or_start_between_blocks(tmp_path: Path) -> None:
    tensor = np.zeros(4, np.float32)
    kind = gguf.GGMLQuantizationType.F32
    path, name = tmp_path / "tiny.gguf", entry("general.name", "x")
    write(path, [name, name], {"a": ((4,), kind)}, [tensor])
    assert says(read_header, path).endswith("(general.name occurs twice); download it again")
    write(path, [name], {"a": ((4,), kind), "b": ((4,), kind)}, [tensor, tensor])
    content = path.read_bytes()
    of_b = b"\1\0\0\0\0\0\0\0b"
    path.write_bytes(content.replace(of_b, of_b[:-1] + b"a"))
    assert "damaged (a occurs twice, or starts off the alignment)" in says(read_header, path)
    offset = content.index(struct.pack("<IQ", 0, 32))
    path.write_bytes(content[:offset] + struct.pack("<IQ", 0, 16) + content[offset + 12 :])
    assert "damaged (b occurs twice, or starts off the alignment)" in says(read_header, path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general__type": "adapter"}, "general.type: is 'adapter', not a model; name the"),
        ({"llama__rope__scaling__type": "ntk"}, "llama.rope.scaling.type: is 'ntk', which"),
        ({"llama__attention__clamp": 8}, "llama.attention.clamp: is 8, which nothing here"),
        ({"general__architecture": "gptneox"}, "gptneox.context_length: is missing; it"),
        ({"llama__attention__head_count": [4, 4]}, "num_attention_heads: should be a whole number"),
        ({"llama__attention__head_count": [4, 4], "llama__attention__key_length": None},
         "has metadata of a wrong kind ("),
        ({"split__count": 3}, "is one of 3 files, which should be named …-00001-of-00003."),
        (byte_level() | {"tokenizer__ggml__token_type": [1]},
         "tokenizer.ggml.tokens: are not as many as scores and types: zip() argument 3 is "),
        ({"tokenizer__ggml__model": "gpt2"}, "tokenizer.ggml.tokens: is missing, as a gpt2"),
        ({"tokenizer__ggml__model": "rwkv"}, "tokenizer.ggml.model: 'rwkv' is not one of gp"),
        (byte_level("gpt-9"), "tokenizer.ggml.pre: 'gpt-9' is not one of "),
    ],
)  # fmt: skip
def test_what_cannot_be_read(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", with_vocabulary(264), **metadata)
    assert says(imported, path).startswith(f"{path}: {message}")


EPS, KEYS = "attention__layer_norm_rms_epsilon", "attention__key_length"


@pytest.mark.parametrize(
    ("family", "metadata", "says_"),
    [
        ("llama", {"attention__causal": False}, ".attention.causal: is false; only true can be"),
        ("llama", {"rope__scaling__factor": 4.0, "rope__scaling__type": "none"},
         ".rope.scaling.factor: is 4.0; only 1.0"),
        ("llama", {EPS: None}, f": has no {EPS.replace('__', '.')} or attention.layer_norm_eps"),
        ("gpt_oss", {"attention__sliding_window": None}, ": has no attention.sliding_window,"),
        ("mixtral", {"expert_used_count": None}, ": has no expert_used_count, which llama.cpp"),
        ("deepseek_v2", {KEYS: None, f"{KEYS}_mla": None}, ": has no attention.key_length or att"),
        ("deepseek_v2", {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0,
                         "attention__temperature_scale": 0.1}, ".attention.temperature_scale: is"),
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_read(
    tmp_path: Path, family: str, metadata: dict[str, Any], says_: str
) -> None:
    name = ARCHITECTURES[family]
    own = {f"{name}__{key}": value for key, value in metadata.items()}
    path = write_gguf(tmp_path / "model.gguf", golden_case(family), **own)
    assert says(loaded, path).startswith(f"{path}: {name}{says_}")


@pytest.mark.parametrize(
    ("key", "value", "m", "warns"),
    [
        ("yarn_attn_factor", 0.8782488, 1.1386294, True),
        ("yarn_attn_factor", 1.1386294, 1.1386294, False),
        ("yarn_ext_factor", 0.0, 1.1386294, False),
        ("attn_factor", 0.5, 0.5693147, False),
    ],
)
def test_attention_factor_of_yarn_is_that_of_llama_cpp(
    tmp_path: Path, key: str, value: float, m: float, warns: bool
) -> None:
    settings = {"type": "yarn", "factor": 4.0, "original_context_length": 64, key: value}
    metadata = {f"qwen3__rope__scaling__{name}": x for name, x in settings.items()}
    path = write_gguf(tmp_path / "model.gguf", golden_case("qwen3"), **metadata)
    files = open_checkpoint(str(path), None)
    scaling = config_of(read_description(files.config, str(path))).rope.scaling
    assert scaling.scaled(RotaryGeometry(8, 1e6, 64))[1] == pytest.approx(m, rel=1e-6)
    assert len(files.warnings) == warns
    assert all(f"{path}: qwen3.rope.scaling.{key}: is {value:g}, " in x for x in files.warnings)


def test_what_llama_cpp_does_without_a_key(tmp_path: Path) -> None:
    absent = {
        "gemma2": ["attention__sliding_window"],
        "deepseek_v3": ["expert_weights_norm", "expert_weights_scale"],
    }
    found = {}
    for family, keys in absent.items():
        own = {f"{ARCHITECTURES[family]}__{key}": None for key in keys}
        path = write_gguf(tmp_path / "model.gguf", golden_case(family), **own)
        found[family] = open_checkpoint(str(path), None).config
    assert found["gemma2"]["sliding_window"] == 4096
    assert found["deepseek_v3"]["norm_topk_prob"] is False
    assert found["deepseek_v3"]["routed_scaling_factor"] == 1.0


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", golden_case("llama"), weights={})
    assert says(open_checkpoint, str(path), None).startswith(f"{path}: has no token_embd")


def test_parts_are_read_together(tmp_path: Path) -> None:
    case = golden_case("llama")
    whole = write_gguf(tmp_path / "model.gguf", case)
    reader = gguf.GGUFReader(whole)
    parts = [tmp_path / f"model-{n:05}-of-00002.gguf" for n in (1, 2)]
    for number, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, "llama")
        writer.add_uint16("split.count", 2)
        for key, field in reader.fields.items():
            if number == 0 and key.startswith("llama."):
                writer.add_key_value(key, field.contents(), field.types[0])
        for tensor in reader.tensors[number::2]:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    for part in parts:
        assert_same(loaded(part)[1], loaded(whole)[1])
    assert_same(
        loaded(write_gguf(tmp_path / "merged.gguf", case, split__count=0))[1], loaded(whole)[1]
    )
    parts[0].unlink()
    assert says(loaded, parts[1]).startswith(f"{parts[0]}: cannot be read")
