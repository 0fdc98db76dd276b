"""The byte tokenizer."""

import numpy as np

from rope_jax.data.tokenizer import ByteTokenizer


def test_tokens_are_the_bytes_of_utf8():
    tokenizer = ByteTokenizer()
    text = "é\r\n\x00\x7f🙂"
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == list(text.encode())
    assert tokenizer.decode(tokens) == text
    assert max(tokenizer.bos_id, 255) < tokenizer.vocab_size


def test_decoding_skips_document_starts_and_marks_cut_characters():
    assert ByteTokenizer().decode(np.array([256, 104, 256, 105, 0xC3])) == "hi\ufffd"
