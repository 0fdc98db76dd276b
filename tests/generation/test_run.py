"""`rope-jax generate`: the text that appears, what is printed beside it, and what is refused."""

import io
import json

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.commands.main import main
from rope_jax.config.entries import parse_entries
from rope_jax.config.generate import GenerateConfig
from rope_jax.console import plain_console
from rope_jax.data.chat import ChatTemplate
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import nll_of_last
from rope_jax.generation.opening import open_model
from rope_jax.generation.prompt import end_tokens, prompt_tokens
from rope_jax.generation.run import window_and_new, write_text
from rope_jax.generation.streaming import TextStream
from rope_jax.session import Session
from tests.sweeps.conftest import SMALL, run, trained

__all__ = ["run"]
QUIET = plain_console(quiet=True)
TEMPLATE = "{{ bos_token }}U:{{ messages[0].content }}{% if add_generation_prompt %} A:{% endif %}"
BYTES = ByteTokenizer()


def likeliest(opened, prompt, count, entry, length):
    """Return the greedy continuation, by the loss of every token in every place."""
    read = nll_of_last(opened.model, opened.placement)
    tokens, rotary = list(prompt), opened.rotary(parse_entries(entry)[0], length)
    for _ in range(count):
        rows = np.array([[*tokens, token] + [0] * (length - len(tokens)) for token in range(257)])
        nll = read(opened.params, jnp.asarray(rows, jnp.int32), rotary, None)
        tokens.append(int(np.argmin(nll[:, len(tokens) - 1])))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(("words", "entry"), [((), "trained"), (("strategy=yarn",), "yarn")])
def test_stdout_has_the_likeliest_continuation(run, call, words, entry):
    prompt = "rope: turns # slow, fast"
    said = call(main, "rope-jax", "generate", str(run[0].path), f"prompt={prompt}", *words,
                "max_new_tokens=8", "length=40")  # fmt: skip
    opened = open_model(Session(*run, QUIET))
    expected = likeliest(opened, prompt_tokens(BYTES, prompt), 8, entry, 40)
    assert said[:2] == (0, BYTES.decode(np.array(expected)) + "\n")
    assert f"step 2: {entry}" in said[2]
    assert "prompt: 25 tokens" in said[2]
    assert "continuation: 8 tokens" in said[2]
    assert "ended by max_new_tokens; cache: " in said[2]


def test_a_prompt_from_standard_input_and_a_seed(run, call, monkeypatch):
    def generated(*words):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"rope turns\n")))
        return call(main, "rope-jax", "generate", str(run[0].path), *words, "max_new_tokens=12")[1]

    drawn = ["temperature=1.5", "top_p=0.9", "top_k=200"]
    assert generated(*drawn, "seed=1") == generated(*drawn, "seed=1", "prompt=rope turns")
    assert generated(*drawn, "seed=1") != generated(*drawn, "seed=2")


def test_a_terminal_is_not_obeyed():
    def written(is_terminal):
        out = plain_console(file=io.StringIO(), force_terminal=is_terminal)
        assert write_text(out, TextStream(BYTES, [256], ["!"]), b"a\t\x1b[2J\n! b") == 8
        return out.file.getvalue()

    assert written(True) == "a\t\\x1b[2J\n\n"
    assert written(False) == "a\t\x1b[2J\n\n"


def test_a_chat_template_makes_the_prompt_a_message(monkeypatch):
    bos = BYTES.bos_ids[0]
    assert prompt_tokens(BYTES, "é") == [bos, *"é".encode()]
    assert prompt_tokens(BYTES, "") == [bos]
    with pytest.raises(UserError, match="chat: this tokenizer has no chat template; give false"):
        prompt_tokens(BYTES, "é", chat=True)
    template = ChatTemplate(TEMPLATE, {"bos_token": "<|begin_of_text|>"})
    monkeypatch.setattr(ByteTokenizer, "chat", template)
    assert prompt_tokens(BYTES, "hi") == [bos, *b"U:hi A:"]
    assert prompt_tokens(BYTES, "hi", chat=False) == [bos, *b"hi"]
    monkeypatch.setattr(ByteTokenizer, "bos_ids", ())
    with pytest.raises(UserError, match="prompt: is empty, and this model has no document start"):
        prompt_tokens(BYTES, "", chat=False)


def test_a_text_ends_where_its_publisher_says(tmp_path):
    directory, training = trained(tmp_path)
    assert end_tokens(directory, training, BYTES) == {256}
    directory.huggingface.mkdir()
    imported = training.model_copy(update={"imported": {"model": "a", "identity": "b"}})
    for file, ids in (("config.json", 7), ("generation_config.json", [7, 9])):
        (directory.huggingface / file).write_text(json.dumps({"eos_token_id": ids}))
        assert end_tokens(directory, imported, BYTES) == {*np.atleast_1d(ids)}


def test_a_window_holds_prompt_and_continuation(run, tmp_path):
    asked, opened = GenerateConfig(max_new_tokens=8), open_model(Session(*run, QUIET))
    assert window_and_new(opened, asked, 8) == (16, 8)
    assert window_and_new(opened, asked, 9) == (17, 8)
    assert window_and_new(opened, GenerateConfig(length=12), 9) == (12, 3)
    learned = trained(tmp_path, model=SMALL | {"position": {"type": "learned"}})
    opened = open_model(Session(*learned, QUIET))
    assert window_and_new(opened, asked, 10) == (16, 6)
    with pytest.raises(UserError, match="prompt: 16 tokens leave no room in 16, where the"):
        window_and_new(opened, asked, 16)
    with pytest.raises(UserError, match="length: the model's positions end at 16; give at most"):
        opened.rotary(parse_entries("trained")[0], 17)


def test_a_cache_larger_than_memory_is_refused(run, call, monkeypatch):
    monkeypatch.setattr("rope_jax.sweeps.model.device_bytes", lambda: 2**18)
    words = "generate", str(run[0].path), "prompt=a", "max_new_tokens=9999999"
    status, out, err = call(main, "rope-jax", *words)
    assert (status, out) == (2, "")
    assert err.startswith("rope-jax generate: max_new_tokens: a cache of 2 tokens and 9,999,999 ne")
