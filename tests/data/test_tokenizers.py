"""Tokenizers: exact, with the document start of the config, and one line for what does not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from rope_jax.config.data import TextData
from rope_jax.config.tokenizer import (
    START_TOKEN,
    BPETokenizerConfig,
    ByteTokenizerConfig,
    FileTokenizerConfig,
)
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import (
    ByteTokenizer,
    JsonTokenizer,
    describe_tokenizer,
    open_tokenizer,
    read_tokenizer,
    token_dtype,
    train_bpe,
)
from rope_jax.errors import UserError
from tests.data.test_corpora import whole
from tests.data.test_storage import in_files

TEXT = (Path(__file__).parents[1] / "fixtures" / "text.txt").read_text("utf-8")
AWKWARD = "é\r\n\x00\x7f🙂\t 日本  \u2028<s></s>" + START_TOKEN


def library(**parts):
    """Return a tokenizer of words, like those on the hub: <s> 0, </s> 1, then the words of TEXT."""
    words = sorted({*TEXT.split(), "a", "b", "<unk>"})
    vocabulary = {"<s>": 0, "</s>": 1} | {word: i + 2 for i, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def spaces_as_blocks():
    """Return the content of a tokenizer.json that falls back to bytes, as Llama 2's and Gemma's."""
    pieces = ["<s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "日"]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    made = Tokenizer(
        models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Replace(" ", "▁")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(parts)
    made.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "<unk>")])
    made.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\n\n\n", normalized=False)])
    return made.to_str()


PIECES = JsonTokenizer(spaces_as_blocks(), "<s>", "pieces")
SAME_AS_BYTES = JsonTokenizer(ByteTokenizer().json(), START_TOKEN, "bytes")


def template(single):
    return TemplateProcessing(single=single, special_tokens=[("<s>", 0), ("</s>", 1)])


def tokenizer_of(made, bos=None):
    return JsonTokenizer(made.to_str(), bos, "T")


@pytest.fixture(scope="module")
def bpe():
    return JsonTokenizer(train_bpe([[TEXT]], 400), START_TOKEN, "bpe")


# Bytes


def test_tokens_are_the_bytes_of_utf8():
    tokenizer = ByteTokenizer()
    text = "é\r\n\x00\x7f🙂"
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == list(text.encode())
    assert tokenizer.decode(tokens) == text
    # document starts are skipped, and cut characters are marked
    assert tokenizer.decode(np.array([256, 104, 256, 105, 0xC3])) == "hi\ufffd"


ANY_TEXT = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANY_TEXT
@given(st.text())
def test_the_bytes_have_an_equivalent_tokenizer_json(text):
    assert SAME_AS_BYTES.encode(text).tolist() == ByteTokenizer().encode(text).tolist()
    assert SAME_AS_BYTES.decode(SAME_AS_BYTES.encode(text)) == text


# A tokenizer.json


def test_a_tokenizer_json_is_run_as_it_is_but_without_special_tokens():
    made = library(
        normalizer=normalizers.Lowercase(), post_processor=template("<s> $A"), decoder=None
    )
    made.enable_truncation(3)
    made.enable_padding(length=8)
    tokenizer = tokenizer_of(made, "<s>")
    text = " ".join(word for word in TEXT.split() if word.islower())
    tokens = tokenizer.encode(text.upper())
    assert tokens.tolist() == [made.token_to_id(word) for word in text.split()]
    assert tokenizer.bos_ids == (0,)
    assert tokenizer.decode(np.array([0, *tokens, 0])) == text
    assert [t.tolist() for t in tokenizer.encode_batch([text, ""])] == [tokens.tolist(), []]
    assert tokenizer.json() == made.to_str()


def test_the_name_depends_on_the_file_and_the_document_start():
    made = library()
    names = {tokenizer_of(made, bos).name for bos in (None, "<s>", "</s>")}
    names.add(tokenizer_of(library(normalizer=normalizers.Lowercase())).name)
    assert len(names) == 4
    assert tokenizer_of(made, "<s>").name == tokenizer_of(library(), "<s>").name


def test_a_document_may_start_with_several_tokens():
    """GLM-4: [gMASK] <sop>."""
    config = FileTokenizerConfig(path="T", bos=("</s>", "<s>"))
    tokenizer = tokenizer_of(library(post_processor=template("</s> <s> $A")), config.bos)
    assert tokenizer.bos_ids == (1, 0)
    assert tokenizer.decode(np.array([1, 0, *tokenizer.encode("a b")])) == "a b"
    described = describe_tokenizer(config, tokenizer)
    assert described.endswith(" tokens; document start: </s> <s> (tokens 1, 0)")


def words_up_to(count):
    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def test_a_large_vocabulary_is_kept_in_32_bits(tmp_path):
    # the identity that wrapping would break, at ids around 65,536
    tokenizer = tokenizer_of(words_up_to(70_000))
    ids = [65_535, 65_536, 65_537, 69_999]
    text = " ".join(f"w{i}" for i in ids)
    tokens = tokenizer.encode(text)
    assert (tokens.dtype, tokens.tolist()) == (np.uint32, ids)
    assert [token_dtype(n).itemsize for n in (257, 2**16, 2**16 + 1)] == [2, 2, 4]
    (tmp_path / "a").write_text(text)
    data = TextData(files=[str(tmp_path / "a")], validation_fraction=0, test_fraction=0)
    train = open_corpus(data, tokenizer).train
    assert (train.tokens.dtype, train.tokens.tolist()) == (np.uint32, ids)


def test_special_tokens_that_no_text_can_become_do_not_count():
    """Gemma 3's tokenizer has one more than the text models know."""
    made = Tokenizer(models.WordLevel({"a": 0, "<s>": 1}, unk_token="a"))
    made.add_special_tokens(["<image>"])
    assert tokenizer_of(made).vocab_size == 2
    assert 2 not in tokenizer_of(made).encode("a <image> a").tolist()
    assert tokenizer_of(made, "<image>").vocab_size == 3
    made.add_tokens(["word"])
    assert tokenizer_of(made).vocab_size == 4  # "word" is 3
    gaps = Tokenizer(models.WordLevel({"a": 3, "b": 900}, unk_token="a"))
    assert tokenizer_of(gaps).vocab_size == 901


def test_control_tokens_in_texts_are_tokens_on_request(tmp_path):
    """As Qwen's: no start, and control tokens above all others."""
    made = Tokenizer(models.WordLevel({"a": 0, "<": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.add_special_tokens(["<end>", "<turn>"])
    (tmp_path / "t.json").write_text(made.to_str())
    config = FileTokenizerConfig(path=str(tmp_path / "t.json"))
    data = in_files(tmp_path, {"train": ["a<turn>a"]}).model_copy(update=whole())
    plain = open_tokenizer(config, data)
    assert plain.vocab_size == 3
    assert open_corpus(data, plain).train.tokens.tolist() == [0, 1, *[2] * 5, 0]
    asked = data.model_copy(update={"split_special_tokens": False, "eos": "<end>"})
    tokenizer = open_tokenizer(config, asked)
    assert (tokenizer.vocab_size, tokenizer.name) == (5, plain.name)
    train = open_corpus(asked, tokenizer).train
    assert train.tokens.tolist() == [0, 4, 0, 3]
    assert tokenizer.token_bytes.tolist() == [1, 1, 1, 0, 0]
    # texts of a sweep's own: the model knows these tokens, or it does not
    known = open_tokenizer(config, data, known=9)
    assert open_corpus(asked, known).train.tokens.tolist() == [0, 4, 0, 3]
    with pytest.raises(UserError, match=r"gives token 4 \('<turn>'\) for a text, outside the voca"):
        open_corpus(asked.model_copy(update={"eos": None, "cache_dir": str(tmp_path)}), plain)


@pytest.mark.parametrize(
    ("processor", "bos", "message"),
    [
        ("<s> $A", None, 'is [], but the post-processor of {} puts [["<s>"], []] before and'),
        ("<s> </s> $A", "<s>", 'is ["<s>"], but the post-processor of {} puts [["<s>", "'),
        ("<s> $A </s>", "<s>", 'is ["<s>"], but the post-processor of {} puts [["<s>"], ["</s>"]]'),
        ("$A </s>", None, 'is [], but the post-processor of {} puts [[], ["</s>"]] before and'),
    ],
)
def test_a_post_processor_that_adds_something_else_is_refused(tmp_path, processor, bos, message):
    made = library(post_processor=template(processor))
    assert_refused(tmp_path, made.to_str(), bos, f"tokenizer.bos: {message}")


def assert_refused(folder, content, bos, message):
    path = folder / "tokenizer.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as caught:
        read_tokenizer(path, bos)
    assert str(caught.value).startswith(message.format(path))


def only(word, unknown):
    return Tokenizer(models.WordLevel({word: 0}, unk_token=unknown))


@pytest.mark.parametrize(
    ("content", "bos", "message"),
    [
        ('{"a": "\udcff"}', None, "path: {} is not UTF-8 (byte 7)"),
        (library().to_str(), "<bos>",
         "bos: {} has no token '<bos>'; give null, or one of its special tokens ('<s>',"),
        (only("a", "a").to_str(), "<s>",
         "bos: {} has no token '<s>'; give null, or one of its special tokens (none, …)"),
        (only("x", "<unk>").to_str(), None, "path: {} cannot tokenize: WordLevel error: "),
        (Tokenizer(models.BPE()).to_str(), None, "path: {} has no tokens"),
    ],
)  # fmt: skip
def test_bad_files_are_explained(tmp_path, content, bos, message):
    assert_refused(tmp_path, content, bos, f"tokenizer.{message}")


def test_a_file_that_is_not_there_or_a_text_without_tokens_is_explained(tmp_path):
    for path, message in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directo")):
        with pytest.raises(UserError, match=rf"^tokenizer\.path: {path}.*{message}"):
            read_tokenizer(path, None)
    with pytest.raises(UserError, match=r"^tokenizer\.path: T cannot tokenize: Wo"):
        tokenizer_of(only("a", "<unk>")).encode("b")


# Byte-level BPE


@ANY_TEXT
@given(text=st.text() | st.text(alphabet=TEXT))
def test_bpe_recovers_any_text_exactly(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text


@ANY_TEXT
@given(st.text())
def test_the_bytes_of_tokens_add_up_to_those_of_the_text(bpe, text):
    """Also where a token ends within a character, and of spaces written as "▁"."""
    for tokenizer in (ByteTokenizer(), bpe, PIECES):
        sizes = tokenizer.token_bytes
        assert (sizes.shape, sizes[tokenizer.bos_ids[0]]) == ((tokenizer.vocab_size,), 0)
        assert sizes[tokenizer.encode(text)].sum() == len(text.encode())


def test_the_bytes_of_a_token_are_those_it_stands_for(bpe):
    tokens = bpe.encode("the name")
    assert bpe.token_bytes[tokens].tolist() == [len(bpe.decode(tokens[i : i + 1])) for i in
                                                range(len(tokens))]  # fmt: skip
    assert bpe.token_bytes[tokens].max() > 1
    # <s>, <unk>, 256 bytes, then ▁, a, ▁a, 日, and two that the file adds
    assert PIECES.token_bytes.tolist() == [0, 0, *[1] * 256, 1, 1, 2, 3, 2, 3]


def test_bpe_recovers_awkward_text_and_merges_what_it_was_trained_on(bpe):
    assert bpe.decode(bpe.encode(AWKWARD)) == AWKWARD
    assert bpe.bos_ids[0] not in bpe.encode(AWKWARD)
    assert len(bpe.encode(TEXT)) < 0.6 * len(TEXT.encode())
    assert (bpe.vocab_size, bpe.encode(TEXT).dtype) == (400, np.uint16)
    # outside of this package, it adds its document start by itself
    assert Tokenizer.from_str(bpe.json()).encode("a").ids[0] == bpe.bos_ids[0]


def test_bpe_merges_the_most_frequent_pair_first():
    # by hand: in "abab abab ac", ab occurs 4 times, then abab twice; ac once
    library = Tokenizer.from_str(train_bpe([["abab abab ac", "abab"]], 259))
    merges = json.loads(library.to_str())["model"]["merges"]
    assert [tuple(merge) for merge in merges] == [("a", "b"), ("ab", "ab")]


def test_too_little_text_for_the_vocabulary_is_explained():
    message = r"^tokenizer\.vocab_size: the train split is enough text for 262 tokens, not 4,096; l"
    with pytest.raises(UserError, match=message):
        train_bpe([["abab abab ac"]], 4096)


# In a corpus


@pytest.fixture
def data(tmp_path):
    return in_files(tmp_path, {"train": [TEXT, ""], "validation": ["v w"], "test": [AWKWARD]})


def test_bpe_is_trained_on_the_train_split_alone_and_cached(data, tmp_path, monkeypatch):
    config = BPETokenizerConfig(vocab_size=300)
    tokenizer = open_tokenizer(config, data)
    assert tokenizer.json() == train_bpe([[TEXT, ""]], 300)
    monkeypatch.setattr("rope_jax.data.tokenizers.load_documents", pytest.fail)
    assert open_tokenizer(config, data).name == tokenizer.name
    monkeypatch.undo()
    # the test split does not matter to the tokenizer; other train texts do
    (tmp_path / "test00.txt").write_text("something else " * 50)
    assert open_tokenizer(config, data).name == tokenizer.name
    (tmp_path / "train01.txt").write_text("xyz " * 500)
    assert open_tokenizer(config, data).name != tokenizer.name


def test_a_runs_own_copy_is_preferred(data, tmp_path):
    other = JsonTokenizer(train_bpe([[TEXT]], 310), START_TOKEN, "")
    copy = tmp_path / "tokenizer.json"
    copy.write_text(other.json())
    gone = FileTokenizerConfig(path="gone", bos=START_TOKEN)
    for config in (BPETokenizerConfig(vocab_size=300), gone):
        assert open_tokenizer(config, data, copy).json() == other.json()
    assert open_tokenizer(ByteTokenizerConfig(), data, copy).name == "bytes"


def test_a_corpus_has_the_documents_in_the_tokenizers_own_tokens(data):
    tokenizer = open_tokenizer(BPETokenizerConfig(vocab_size=300), data)
    corpus = open_corpus(data, tokenizer)
    train = corpus.train
    encoded = tokenizer.encode(TEXT)
    assert train.tokens.tolist() == [*tokenizer.bos_ids, *encoded, *tokenizer.bos_ids]
    assert [tokenizer.decode(text) for text in train.texts()] == [TEXT, ""]
    assert train.bytes_per_token == len(TEXT.encode()) / len(encoded)
    assert corpus.test.bytes_per_token == len(AWKWARD.encode()) / len(tokenizer.encode(AWKWARD))
    assert corpus.fingerprint != open_corpus(data, ByteTokenizer()).fingerprint
    assert open_corpus(data, tokenizer).fingerprint == corpus.fingerprint


def test_documents_without_a_start_token_are_kept_apart(data):
    made = Tokenizer.from_str(train_bpe([[TEXT]], 300))
    content = json.loads(made.to_str()) | {"post_processor": None}
    tokenizer = JsonTokenizer(json.dumps(content), None, "T")
    corpus = open_corpus(data, tokenizer)
    length = len(tokenizer.encode(TEXT))
    assert corpus.train.starts.tolist() == [0, length, length]  # the second document is empty
    assert [tokenizer.decode(text) for text in corpus.train.texts()] == [TEXT, ""]
    assert [tokenizer.decode(text) for text in corpus.test.texts()] == [AWKWARD]
