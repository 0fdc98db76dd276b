"""tokenizer.model: converted to a tokenizer.json that splits texts alike."""

import json
import sys
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer

from rope_jax.checkpoints.files import CheckpointFiles
from rope_jax.checkpoints.sentence_pieces import converted
from tests.checkpoints.folders import byte_checkpoint, imported, says

WORDS = (Path(__file__).parents[2] / "LICENSE").read_text()
TEXTS = (
    WORDS[:3000],
    "  two  spaces, a\ttab\nand a line\r\n",
    "Größe naïve ½ ﬁne 😀 日本",
    "",
    " ",
    "<s> is text",
)


def trained(folder: Path, size: int = 400, **settings: object) -> Path:
    """Train a tokenizer.model on the licence, whose characters are part of the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*WORDS.splitlines(), *["a < b > c"] * 40]),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=size,
        minloglevel=2,
        **({"byte_fallback": True} | settings),
    )
    return folder / "tokenizer.model"


@pytest.mark.parametrize("spaces", [False, True])
def test_texts_are_split_alike(tmp_path: Path, spaces: bool) -> None:
    path = trained(
        tmp_path,
        remove_extra_whitespaces=spaces,
        add_dummy_prefix=not spaces,
        normalization_rule_name="nmt_nfkc" if spaces else "identity",
    )
    theirs = sentencepiece.SentencePieceProcessor(str(path))
    ours = Tokenizer.from_str(converted(path, {}))
    ours.encode_special_tokens = True
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False).ids == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
        assert ours.encode(text).ids == [theirs.bos_id(), *ids], text
    without = Tokenizer.from_str(converted(path, {"add_bos_token": False}))
    assert without.encode(WORDS[:50]).ids == theirs.encode(WORDS[:50])


def test_user_defined_pieces_of_spaces_are_found(tmp_path: Path) -> None:
    """Gemma's layout; an added token for them would be looked for before spaces become "▁"."""
    path = trained(
        tmp_path,
        user_defined_symbols=["▁▁", "▁▁▁", "<pad>", "\n\n"],
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    theirs = sentencepiece.SentencePieceProcessor(str(path))
    ours = Tokenizer.from_str(converted(path, {}))
    for text in ("a   b", "a  the", "new\nline\n\n\nthe", "<pad>a <pad> the"):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text


def test_user_defined_pieces_that_cannot_be_expressed_are_refused(tmp_path: Path) -> None:
    """The library puts the prefix after each of them, SentencePiece only before a text."""
    path = trained(tmp_path, user_defined_symbols=["<pad>"])
    assert says(converted, path, {}).startswith(
        f"{path}: the library tokenizers cannot split texts at its piece '<pad>' as SentencePiece "
    )


def test_a_checkpoint_with_a_tokenizer_model_alone_is_imported(tmp_path: Path) -> None:
    folder = byte_checkpoint(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()
    path = trained(folder, size=264, byte_fallback=False)
    assert CheckpointFiles(folder).tokenizer == path
    run = imported(folder)
    tokenizer = run.open_tokenizer(run.load_config())
    theirs = sentencepiece.SentencePieceProcessor(str(path))
    assert tokenizer.encode(WORDS[:300]).tolist() == theirs.encode(WORDS[:300])
    assert tokenizer.bos_ids == (theirs.bos_id(),)
    assert json.loads(run.tokenizer_file.read_text())["model"]["type"] == "BPE"


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"IQ== 0\nIg== 1\n")  # the form of tiktoken, under the same name
    assert says(converted, path, {}).startswith(f"{path}: is not a model of SentencePiece")
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    said = says(converted, path, {})
    assert said.startswith(f"{path}: a tokenizer of SentencePiece needs the package sentencepiece;")
