"""A tokenizer.model (SentencePiece), as of older Llamas and Mistrals, as a tokenizer.json.

Needs the library `sentencepiece`, an optional extra.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from rope_jax.errors import UserError, errors_in, file_errors
from rope_jax.extras import needs_extra

_SPACE = "▁"
_BPE = 2  # of the values of `model_type`
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # values of a piece's `type`


class Piece(NamedTuple):
    """A piece of a vocabulary, as SentencePiece has it."""

    piece: str
    score: float
    type: int


def converted(path: Path, settings: dict[str, Any]) -> str:
    """Return the content of a tokenizer.json that splits texts as a tokenizer.model does.

    settings: of tokenizer_config.json, which says whether a text begins with the start token.
    """
    with needs_extra("sentencepiece", f"{path}: a tokenizer of SentencePiece"):
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
    model = ModelProto()
    with file_errors(path):
        content = path.read_bytes()
    # protobuf's DecodeError
    with errors_in(f"{path}: is not a model of SentencePiece: ", UserError, Exception):
        model.ParseFromString(content)
    trainer = model.trainer_spec
    pieces = [Piece(piece.piece, piece.score, piece.type) for piece in model.pieces]
    if not pieces:  # any short text may be a message without them
        raise UserError(f"{path}: is not a model of SentencePiece")
    if trainer.model_type != _BPE or trainer.treat_whitespace_as_suffix:
        raise UserError(
            f"{path}: is no BPE that marks the spaces before words; save a tokenizer.json beside it"
        )
    library = score_bpe(pieces, trainer.unk_id, trainer.byte_fallback)
    spec = model.normalizer_spec
    charsmap = spec.precompiled_charsmap
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    add_prefix(library, spec.add_dummy_prefix, steps)
    has_bos = trainer.bos_id >= 0 and settings.get("add_bos_token", True)
    add_pieces(library, pieces, trainer.bos_id if has_bos else None)
    _check(library, content, pieces, path)
    return library.to_str()


def add_prefix(library: Tokenizer, is_added: bool, before: Sequence[Any] = ()) -> None:
    """Let a tokenizer read and write spaces as "▁", and one more before a text if it is added.

    before: steps of normalization that come first.
    """
    prefix = [normalizers.Prepend(_SPACE)] if is_added else []
    library.normalizer = normalizers.Sequence([*before, *prefix, normalizers.Replace(" ", _SPACE)])
    library.decoder = decoders.Sequence(
        [
            *(decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()),
            decoders.Strip(content=" ", left=int(is_added)),
        ]
    )


def add_pieces(library: Tokenizer, pieces: Sequence[Piece], bos_id: int | None) -> None:
    """Let a tokenizer find the control and the user-defined pieces in a text.

    bos_id: the piece that it puts before a text.
    """
    control = [piece for piece in pieces if piece.type == _CONTROL]
    defined = [p for p in pieces if p.type == _USER_DEFINED and not _is_spaces(p)]
    library.add_special_tokens([AddedToken(piece.piece, normalized=False) for piece in control])
    library.add_tokens([AddedToken(piece.piece, normalized=False) for piece in defined])
    if bos_id is not None:
        bos = pieces[bos_id].piece
        library.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, bos_id)]
        )


def _check(library: Tokenizer, content: bytes, pieces: Sequence[Piece], path: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    theirs = SentencePieceProcessor(model_proto=content)
    defined = [p.piece.replace(_SPACE, " ") for p in pieces if p.type == _USER_DEFINED]
    for piece in ["   ", *defined]:
        text = f"a{piece}b {piece} c\n{piece}the"
        if library.encode(text, add_special_tokens=False).ids != theirs.encode(text):
            raise UserError(
                f"{path}: the library tokenizers cannot split texts at its piece {piece!r} as "
                "SentencePiece does; save a tokenizer.json beside it"
            )


def _is_spaces(piece: Piece) -> bool:
    return piece.type == _USER_DEFINED and not piece.piece.strip(_SPACE)


def score_bpe(pieces: Sequence[Piece], unk_id: int, byte_fallback: bool) -> Tokenizer:
    """Return a BPE that always merges the two neighbours which give the piece of highest score.

    Text that spells a control piece or a byte, such as "<s>", is not merged to it.
    """
    ids = {piece.piece: number for number, piece in enumerate(pieces)}
    merges = []
    for piece in pieces:
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
    bpe = models.BPE(
        ids,
        [(left, right) for *_, left, right in merges],
        unk_token=pieces[unk_id].piece,
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )
    return Tokenizer(bpe)
