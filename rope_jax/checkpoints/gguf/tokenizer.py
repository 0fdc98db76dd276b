"""The tokenizer in a GGUF file's metadata, as a tokenizer.json.

Two kinds: byte-level BPE ("gpt2"), of which the file has the merges and the name of the rule that
cuts a text into words; and SentencePiece's BPE ("llama"), of which it has scores.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from rope_jax.checkpoints.sentence_pieces import Piece, add_pieces, add_prefix, score_bpe
from rope_jax.errors import UserError, errors_in

_KEY = "tokenizer.ggml."
_NORMAL, _BYTE = 1, 6
_IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
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
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[name]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    if name in _WORDS["composed"]:
        library.normalizer = normalizers.NFC()
    return library
