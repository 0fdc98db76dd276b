"""The tokenizer in a GGUF file's metadata, as a tokenizer.json.

Two kinds: byte-level BPE ("gpt2"), of which the file has the merges and the name of the rule that
cuts a text into words; and SentencePiece's BPE ("llama"), of which it has scores.
"""

from collections.abc import Mapping
from typing import Any

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
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, contractions: str = _CONTRACTIONS) -> str:
    """Return Llama 3's rule with another number of digits in a word."""
    return (
        rf"{contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        rf"|{_REST}"
    )


def _cased(after: str, digits: str) -> str:
    """Return GPT-4o's rule, where a capital begins a word. after: what may follow the letters."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    begin = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{begin}{upper}*{lower}+{after}|{begin}{upper}+{lower}*{after}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
    )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _words(r"\p{N}{1,3}")
_DIGIT, _THREE, _GPT4O = r"\p{N}", "[0-9][0-9][0-9]", _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_PUNCTUATION = r"[\p{P}$+<=>^~|`]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}"
)
# Letters with a case, without those of some scripts and styles.
_DEEPSEEK_LETTERS = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8f}\x{2d00}-\x{2d2d}"
    r"\x{a790}-\x{a7ff}\x{ab30}-\x{ab68}\x{10570}-\x{105bc}\x{10d50}-\x{10d85}\x{16e40}-\x{16e7f}"
    r"\x{1d400}-\x{1d7cb}\x{1df00}-\x{1df2a}]]"
)
_DEEPSEEK = (
    *(r"[\r\n]", rf"\s?{_DEEPSEEK_LETTERS}+"),
    *(r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+", r"\s+$"),
    *(r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+", r"\p{N}+"),
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK[4], _DIGIT)
_SEED = _words(_DIGIT).replace(r"[\r\n]*", "")
_SPACES = "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
_JAIS2 = _LLAMA3.replace(r"\s+(?!\S)|\s+", rf"{_SPACES}|\s{{1,2}}(?!\S)|\s")
_KIMI = _GPT4O.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("/]", "]")
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
# By tokenizer.ggml.pre: patterns whose matches, and what is between them, are cut apart, one after
# the other. From the tokenizer.json of models whose files have the name.
_PATTERNS = {
    name: patterns
    for patterns, names in (
        (
            (_LLAMA3,),
            ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"),
        ),
        ((_LLAMA3,), ("glm4", "chatglm-bpe")),
        ((_words(_DIGIT),), ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2")),
        ((_GPT2,), ("gpt-2", "phi-2", "olmo", "mpt", "exaone4", "trillion", "a.x-4.0", "mellum")),
        (
            (_DIGIT, _GPT2),
            ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        ),
        ((_GPT4O,), ("gpt-4o", "llama4", "kanana2")),
        ((_cased("", _DIGIT),), ("tekken",)),
        ((r"\p{N}{1,3}", _CJK, _DEEPSEEK3), ("deepseek-v3",)),
        (_DEEPSEEK, ("deepseek-llm",)),
        (_DEEPSEEK_CODER, ("deepseek-coder",)),
        ((_SEED,), ("seed-coder",)),
        ((_JAIS2,), ("jais-2",)),
        ((rf"\p{{Han}}+|{_KIMI}",), ("kimi-k2",)),
        ((_PUNCTUATION, _GPT2, _THREE), ("falcon",)),
        # what llama.cpp does with a file that does not know better
        ((_PUNCTUATION, _GPT2, r"\p{N}+", _THREE), ("default",)),
    )
    for name in names
}
_ADDS_BOS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"}
# A word that is a token is taken whole, whether or not merges lead to it.
_WHOLE_WORDS = _ADDS_BOS | {"kimi-k2"}
# The tokenizers of these models compose characters first, which their files do not say.
_COMPOSED = {"qwen2", "command-r", "olmo", "mpt"}


def tokenizer_json(metadata: Mapping[str, Any], file: str) -> str:
    """Return the content of a tokenizer.json that splits texts as a file's tokenizer.

    UserError: the file has none, or one that cannot be expressed.
    """
    given = _given(metadata)
    kind = given.get("model")
    needed = {"gpt2": "merges", "llama": "scores"}
    if kind not in needed:
        raise UserError(f"{file}: {_KEY}model: {kind!r} is not one of {', '.join(needed)}")
    for key in ("tokens", needed[kind]):
        if key not in given:
            raise UserError(f"{file}: {_KEY}{key}: is missing, as a {kind} tokenizer needs it")
    name = given.get("pre", "default")
    if kind == "gpt2" and name not in _PATTERNS:
        raise UserError(f"{file}: {_KEY}pre: {name!r} is not one of {', '.join(sorted(_PATTERNS))}")
    tokens = given["tokens"]
    scores, types = (
        given.get(key) or [by_default] * len(tokens)
        for key, by_default in (("scores", 0.0), ("token_type", _NORMAL))
    )
    if not len(tokens) == len(scores) == len(types):
        raise UserError(
            f"{file}: {_KEY}tokens: has {len(tokens):,} elements, but scores {len(scores):,} and "
            f"token_type {len(types):,}; all should be as long"
        )
    pieces = [Piece(*each) for each in zip(tokens, scores, types, strict=True)]
    bos = given.get("bos_token_id")
    adds = given.get("add_bos_token", kind == "llama" or name in _ADDS_BOS)
    if adds and (bos is None or not 0 <= bos < len(tokens)):
        raise UserError(f"{file}: {_KEY}bos_token_id: is {bos}, which is no token")
    with errors_in(f"{file}: {_KEY}{needed[kind]}: is damaged: ", UserError, Exception):
        if kind == "gpt2":
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
    found = {name: given[key] for name, key in _IDS.items() if given.get(key) in tokens}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {f"{name}_token": tokens[number] for name, number in found.items()}
    settings |= {} if template is None else {"chat_template": template}
    ids: dict[str, Any] = {f"{x}_token_id": n for x, n in found.items() if x != "unk"}
    if given.get(_TURN, ids.get("eos_token_id")) != ids.get("eos_token_id"):
        ids["eos_token_id"] = [*([found["eos"]] if "eos" in found else []), given[_TURN]]
    return ids, settings


def _given(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer's metadata, by key without what all begin with."""
    defaults = _OF_LLAMA if metadata.get(f"{_KEY}model") == "llama" else {}
    own = {key.removeprefix(_KEY): v for key, v in metadata.items() if key.startswith(_KEY)}
    return {**defaults, **own}


def _byte_level(tokens: list[str], merges: list[str], name: str) -> Any:
    """Return a byte-level BPE. name: of the rule that cuts a text into words."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    library = Tokenizer(models.BPE(ids, pairs, ignore_merges=name in _WHOLE_WORDS))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[name]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    if name in _COMPOSED:
        library.normalizer = normalizers.NFC()
    return library
