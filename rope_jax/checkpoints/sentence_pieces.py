"""A tokenizer.model (SentencePiece), as of older Llamas and Mistrals, as a tokenizer.json.

Needs the library `sentencepiece`, an optional extra.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rope_jax.errors import UserError, file_errors, library_errors
from rope_jax.rope.files import read_limited

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_SPACE = "▁"
_MOST_BYTES = 2**26
_NEVER = -1e9  # a score; 64 bits, so adding it to others loses nothing that matters
_UNIGRAM, _BPE = 1, 2  # values of `model_type`
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # values of a piece's `type`


def converted(path: Path, settings: dict[str, Any]) -> str:
    """Return the content of a tokenizer.json that splits texts as a tokenizer.model does.

    settings: of tokenizer_config.json, which says whether a text begins with the start token.
    """
    try:
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
    except ImportError:
        raise UserError(
            f"{path}: is a tokenizer of SentencePiece; to read it, pip install "
            "'rope-jax[sentencepiece]', or save a tokenizer.json beside it"
        ) from None
    model = ModelProto()
    with file_errors(path):
        content = read_limited(path, _MOST_BYTES)
    with library_errors(f"{path}: is not a model of SentencePiece"):  # protobuf's DecodeError
        model.ParseFromString(content)
    trainer, pieces = model.trainer_spec, model.pieces
    if not pieces:  # any short text may be a message without them
        raise UserError(f"{path}: is not a model of SentencePiece")
    if trainer.model_type not in (_UNIGRAM, _BPE) or trainer.treat_whitespace_as_suffix:
        raise UserError(
            f"{path}: is neither a BPE nor a unigram model that marks the spaces before words; "
            "save a tokenizer.json beside it"
        )
    from tokenizers import AddedToken, decoders, processors

    library = _unigram(model) if trainer.model_type == _UNIGRAM else _bpe(model)
    library.normalizer = _normalizer(model.normalizer_spec)
    library.decoder = decoders.Sequence(
        [
            *(decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()),
            decoders.Strip(content=" ", left=int(model.normalizer_spec.add_dummy_prefix)),
        ]
    )
    control = [piece for piece in pieces if piece.type == _CONTROL]
    defined = [p for p in pieces if p.type == _USER_DEFINED and not _is_spaces(p)]
    library.add_special_tokens([AddedToken(piece.piece, normalized=False) for piece in control])
    library.add_tokens([AddedToken(piece.piece, normalized=False) for piece in defined])
    if trainer.bos_id >= 0 and settings.get("add_bos_token", True):
        bos = pieces[trainer.bos_id].piece
        library.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, trainer.bos_id)]
        )
    _check(library, model, path)
    return library.to_str()


def _check(library: "Library", model: Any, path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    theirs = SentencePieceProcessor(model_proto=model.SerializeToString())
    pieces = [p.piece.replace(_SPACE, " ") for p in model.pieces if p.type == _USER_DEFINED]
    for piece in ["   ", *pieces]:
        text = f"a{piece}b {piece} c\n{piece}the"
        if library.encode(text, add_special_tokens=False).ids != theirs.encode(text):
            raise UserError(
                f"{path}: the library tokenizers cannot split texts at its piece {piece!r} as "
                "SentencePiece does; save a tokenizer.json beside it"
            )


def _is_spaces(piece: Any) -> bool:
    return piece.type == _USER_DEFINED and not piece.piece.strip(_SPACE)


def _bpe(model: Any) -> "Library":
    """Return a BPE that always merges the two neighbours which give the piece of highest score.

    Text that spells a control piece or a byte, such as "<s>", is not merged to it.
    """
    import tokenizers

    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    merges = []
    for piece in model.pieces:
        # runs of spaces are often user-defined, and as added tokens would not be found
        if piece.type != _NORMAL and not _is_spaces(piece):
            continue
        splits = [(piece.piece[:i], piece.piece[i:]) for i in range(1, len(piece.piece))]
        merges += [
            (piece.score, ids[left], ids[right], left, right)
            for left, right in splits
            if left in ids and right in ids
        ]
    merges.sort(key=lambda merge: (-merge[0], merge[1], merge[2]))
    bpe = tokenizers.models.BPE(
        ids,
        [(left, right) for *_, left, right in merges],
        unk_token=model.pieces[model.trainer_spec.unk_id].piece,
        fuse_unk=True,
        byte_fallback=model.trainer_spec.byte_fallback,
    )
    return tokenizers.Tokenizer(bpe)


def _unigram(model: Any) -> "Library":
    """Return a unigram model. Text that spells a control piece, such as "<s>", stays text."""
    import tokenizers

    scores = [
        (p.piece, p.score if p.type == _NORMAL or _is_spaces(p) else _NEVER) for p in model.pieces
    ]
    spec = model.trainer_spec
    return tokenizers.Tokenizer(tokenizers.models.Unigram(scores, spec.unk_id, spec.byte_fallback))


def _normalizer(spec: Any) -> Any:
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
