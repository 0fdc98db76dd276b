"""The tokens of a prompt, and those at which a continuation ends."""

import sys
from pathlib import Path

import numpy as np

from rope_jax.checkpoints.exporting import original_files, run_sources
from rope_jax.checkpoints.files import CONFIG, GENERATION
from rope_jax.config.generate import GenerateConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.errors import UserError, errors_in, file_errors
from rope_jax.runs.directory import RunDirectory


def read_prompt(config: GenerateConfig) -> str:
    """Return the text to continue. UserError: there is none, or it is not UTF-8."""
    if config.prompt is not None:
        return config.prompt
    is_stdin = config.file == "-"
    if is_stdin and sys.stdin.isatty():
        raise UserError("prompt: give prompt='…' or file=PATH, or pipe a text to this command")
    with file_errors("standard input" if is_stdin else config.file):
        content = sys.stdin.buffer.read() if is_stdin else Path(config.file).read_bytes()
    with errors_in(f"file: {config.file}: ", UserError, UnicodeDecodeError):
        return content.decode("utf-8").removesuffix("\n").removesuffix("\r")


def prompt_tokens(tokenizer: Tokenizer, text: str, chat: bool | None = None) -> list[int]:
    """Return the tokens of a prompt: the beginning of a document, or a user's message.

    As in transformers, a control token's text stands for the token.
    UserError: there is no template for a message, or nothing to begin with.
    """
    start = list(tokenizer.bos_ids)
    if chat is not False and tokenizer.chat is not None:
        start, messages = [], [{"role": "user", "content": text}]
        with errors_in("chat: ", UserError):
            text = tokenizer.chat.render(messages, add_generation_prompt=True)
    elif chat:
        raise UserError("chat: this tokenizer has no chat template; give false")
    (tokens,) = tokenizer.encode_batch([text], control=True)
    if not (start or len(tokens)):
        raise UserError("prompt: is empty, and this model has no document start; give some text")
    return start + tokens.tolist()


def end_tokens(run: RunDirectory, training: TrainingConfig, tokenizer: Tokenizer) -> set[int]:
    """Return the tokens that end a text: the publisher's and data.eos, or the document start."""
    original, ends = original_files(run_sources(run, training)), set[int]()
    for file in (CONFIG, GENERATION):  # transformers prefers the second
        if (ids := original.get(file, {}).get("eos_token_id")) is not None:
            ends = {int(number) for number in np.atleast_1d(ids)}
    if training.data.eos is not None:
        ends.add(tokenizer.token_id(training.data.eos, "data.eos"))
    return ends or {*tokenizer.bos_ids[:1]}
