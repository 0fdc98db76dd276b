"""The tokenizer in a GGUF file's metadata, from and to a tokenizer.json.

Two kinds: byte-level BPE ("gpt2"), of which the file has the merges and the name of the rule that
cuts a text into words; and SentencePiece's BPE ("llama"), of which it has scores.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from rope_jax.checkpoints.gguf.header import Value
from rope_jax.checkpoints.sentence_pieces import Piece, add_pieces, add_prefix, score_bpe
from rope_jax.errors import UserError, errors_in

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
# Rules for words differ in how they cut it: contractions, cases, digits, scripts, spaces, marks,
# lines.
_SAMPLE = (
    "We'll cut THEY'RE 1234567 tokensIn 12 years, x1.\n\n  Größe, e\u0301a\t日本語のテキスト "
    "漢字가나, مرحبا ١٢٣٤ x=y*(z+1)!!\r\n\r\n   ▁ 🙂      #if a_b/c\u00a0½ <s>\n"
)
_TURN = "eot_token_id"  # ends what a model says in a chat
_OF_LLAMA = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}  # if a file is silent
_WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
_PATTERNS: dict[str, list[str]] = {
    name: rule["patterns"] for rule in _WORDS["rules"] for name in rule["names"]
}


def tokenizer_json(metadata: Mapping[str, Any], file: str) -> str:
    """Return the content of a tokenizer.json that splits texts as a file's tokenizer.

    UserError: the file has none, or one that cannot be expressed.
    """
    given = _given(metadata)
    model = given.get("model")
    needed = {"gpt2": "merges", "llama": "scores"}
    if model not in needed:
        raise UserError(f"{file}: {_KEY}model: {model!r} is not one of {', '.join(needed)}")
    for key in ("tokens", needed[model]):
        if key not in given:
            raise UserError(f"{file}: {_KEY}{key}: is missing, as a {model} tokenizer needs it")
    name = given.get("pre", "default")
    if model == "gpt2" and name not in _PATTERNS:
        raise UserError(f"{file}: {_KEY}pre: {name!r} is not one of {', '.join(sorted(_PATTERNS))}")
    tokens = given["tokens"]
    scores = given.get("scores") or [0.0] * len(tokens)
    types = given.get("token_type") or [_NORMAL] * len(tokens)
    with errors_in(f"{file}: {_KEY}tokens: are not as many as scores and types: ", UserError):
        pieces = [Piece(*each) for each in zip(tokens, scores, types, strict=True)]
    bos = given.get("bos_token_id")
    adds = given.get("add_bos_token", model == "llama" or name in _WORDS["adds_bos"])
    if adds and (bos is None or not 0 <= bos < len(tokens)):
        raise UserError(f"{file}: {_KEY}bos_token_id: is {bos}, which is no token")
    with errors_in(f"{file}: {_KEY}{needed[model]}: is damaged: ", UserError, Exception):
        if model == "gpt2":
            library = _byte_level(tokens, given["merges"], name)
        else:
            has_bytes = any(piece.type == _BYTE for piece in pieces)
            library = score_bpe(pieces, given["unknown_token_id"], has_bytes)
            add_prefix(library, given.get("add_space_prefix", True))
        add_pieces(library, pieces, bos if adds else None)
    return library.to_str()


def warnings_of(metadata: Mapping[str, Any], file: str) -> list[str]:
    """Return a line if a tokenizer may split texts otherwise than the model's own does."""
    if metadata.get(f"{_KEY}model") != "gpt2" or f"{_KEY}pre" in metadata:
        return []
    return [
        f"{file}: {_KEY}pre: is missing, so texts are cut into words by llama.cpp's default rule, "
        "probably not the model's own; convert the model again, or expect a worse perplexity"
    ]


def special_tokens(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ids of special tokens as in config.json, and a tokenizer_config.json.

    A model that ends its turns otherwise than texts has two of eos_token_id. metadata: of a
    tokenizer that `tokenizer_json` can read.
    """
    given, template = _given(metadata), metadata.get("tokenizer.chat_template")
    tokens = dict(enumerate(given["tokens"]))
    special = {name: given[key] for name, key in _IDS.items() if given.get(key) in tokens}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {f"{name}_token": tokens[number] for name, number in special.items()}
    settings |= {} if template is None else {"chat_template": template}
    ids: dict[str, Any] = {f"{x}_token_id": n for x, n in special.items() if x != "unk"}
    if given.get(_TURN, ids.get("eos_token_id")) != ids.get("eos_token_id"):
        ids["eos_token_id"] = [*([special["eos"]] if "eos" in special else []), given[_TURN]]
    return ids, settings


def _given(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer's metadata, by key without what all begin with."""
    defaults = _OF_LLAMA if metadata.get(f"{_KEY}model") == "llama" else {}
    return defaults | {
        key.removeprefix(_KEY): value for key, value in metadata.items() if key.startswith(_KEY)
    }


def _byte_level(tokens: list[str], merges: list[str], name: str) -> Any:
    """Return a byte-level BPE. name: of the rule that cuts a text into words."""
    ids = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    library = Tokenizer(models.BPE(ids, pairs, ignore_merges=name in _WORDS["whole_words"]))
    library.pre_tokenizer = _cutter(name)
    library.decoder = decoders.ByteLevel()
    if name in _WORDS["composed"]:
        library.normalizer = normalizers.NFC()
    return library


def _cutter(name: str) -> pre_tokenizers.PreTokenizer:
    """Return what cuts a text into words by a rule, and those into bytes."""
    patterns = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[name]]
    return pre_tokenizers.Sequence(
        [*patterns, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def tokenizer_metadata(
    content: str, size: int, ids: Mapping[str, Any], starts: bool, template: str | None, file: str
) -> dict[str, Value]:
    """Return the metadata of a tokenizer.json, the inverse of `tokenizer_json`.

    size: of the model's vocabulary. ids: of special tokens, as in config.json. starts: whether
    the first of them is put before a text. template: a chat's.

    UserError: llama.cpp has no such tokenizer, or cuts texts otherwise.
    """
    parsed, before = json.loads(content), Tokenizer.from_str(content)
    model, steps = parsed["model"], json.dumps([parsed["normalizer"], parsed["pre_tokenizer"]])
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", ())]
    tokens, types = [f"[PAD{i}]" for i in range(size)], [_UNUSED] * size
    for token, number in model["vocab"].items() if model["type"] == "BPE" else ():
        is_byte = model.get("byte_fallback") and re.fullmatch("<0x..>", token)
        kind = _UNKNOWN if token == model.get("unk_token") else _BYTE if is_byte else _NORMAL
        tokens[number], types[number] = token, kind
    for token in parsed["added_tokens"]:
        if (number := token["id"]) < size and types[number] in (_NORMAL, _UNUSED):
            tokens[number] = token["content"]
            types[number] = _CONTROL if token["special"] else _USER_DEFINED
    if '"ByteLevel"' in steps:
        rule = _rule(before) if merges else "gpt-2"  # bytes are never merged, however they are cut
        of_kind: dict[str, Value] = {"model": "gpt2", "pre": rule, "merges": merges}
    else:
        ranks: dict[str, int] = {}
        for rank, merge in enumerate(merges):
            ranks.setdefault(merge.replace(" ", ""), rank)
        tokens = [  # those are found in texts, in which spaces are spaces
            token.replace("▁", " ") if kind == _USER_DEFINED else token
            for token, kind in zip(tokens, types, strict=True)
        ]
        scores = [-float(ranks.get(token, len(merges))) for token in tokens]
        begins = '"Prepend"' in steps or '"first"' in steps or '"always"' in steps
        of_kind = {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": begins}
    begin, ends = ids.get("bos_token_id"), ids.get("eos_token_id")
    end, *turn = ends if isinstance(ends, list) else [begin if ends is None else ends]
    numbers = {"bos": begin, "eos": end, "pad": ids.get("pad_token_id")}
    numbers["unk"] = types.index(_UNKNOWN) if _UNKNOWN in types else None
    special = {_IDS[name]: number for name, number in numbers.items()}
    special |= {_TURN: turn[0]} if turn else {}
    given = {**of_kind, "tokens": tokens, "token_type": types, "add_bos_token": starts}
    given |= {key: number for key, number in special.items() if number is not None}
    metadata = {f"{_KEY}{key}": value for key, value in given.items()}
    metadata |= {"tokenizer.chat_template": template} if template else {}
    again = Tokenizer.from_str(tokenizer_json(metadata, file))
    a, b = (each.encode(_SAMPLE, add_special_tokens=False).ids for each in (again, before))
    if a != b:
        raise UserError(f"{file}: llama.cpp has no tokenizer that cuts texts like this run's")
    return metadata


def _rule(library: Tokenizer) -> str:
    """Return the name of the rule that cuts texts into words as a tokenizer does."""
    cut = library.pre_tokenizer.pre_tokenize_str(_SAMPLE)
    kept = library.model.ignore_merges, isinstance(library.normalizer, normalizers.NFC)
    for name in _PATTERNS:
        told = name in _WORDS["whole_words"], name in _WORDS["composed"]
        if told == kept and _cutter(name).pre_tokenize_str(_SAMPLE) == cut:
            return name
    return "default"
