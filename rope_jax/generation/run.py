"""Continue a text with a run's model, and show the continuation as it is made."""

import itertools
import re
import time
from collections.abc import Iterable

from rich.console import Console

from rope_jax import stopping
from rope_jax.config.generate import GenerateConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console, print_message
from rope_jax.devices.memory import in_gib
from rope_jax.errors import Stopped, UserError, printable
from rope_jax.generation.decoding import CachedDecoder
from rope_jax.generation.opening import OpenedModel, open_model
from rope_jax.generation.prompt import end_tokens, prompt_tokens
from rope_jax.generation.sampling import Sampling
from rope_jax.generation.streaming import TextStream
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import open_run

_SHOWN = 1000  # characters of the end of a prompt
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and newlines


def continue_prompt(
    run: RunDirectory,
    training: TrainingConfig,
    config: GenerateConfig,
    prompt: str,
    console: Console,
) -> None:
    """Print the continuation of a prompt on stdout, as it is made, and all else on `console`.

    A terminal shows the prompt, too. Raises UserError, or Stopped after a signal.
    """
    advice = "max_new_tokens: there is not enough memory; lower it, or give a shorter prompt"
    with open_run(run, training, console, out_of_memory=advice) as session:
        tokens = prompt_tokens(session.tokenizer, prompt, config.chat)
        opened = open_model(session, [config.strategy], config.step)
        length, most = window_and_new(opened, config, len(tokens))
        opened.check_cache(len(tokens), most)  # before there are arrays of n numbers
        rotary = opened.rotary(config.strategy, length)
        size = opened.check_cache(len(tokens), most, max(1, len(rotary.bands)))
        decoder = CachedDecoder(opened.model, opened.params, opened.placement, donate=True)
        read_as = f"{config.strategy.label}, in a window of {length:,} tokens"
        print_message(console, f"{run.path}, step {opened.step}: {read_as}", "dim")
        ends = end_tokens(run, training, session.tokenizer)
        stream = TextStream(session.tokenizer, tokens, config.stop, ends)

        sampling = Sampling(config.temperature, config.top_k, config.top_p, config.seed)
        steps = decoder.continue_texts([tokens], rotary, sampling.choose, most)
        begun = time.perf_counter()
        with console.status(f"reading {len(tokens):,} tokens"):
            first = next(steps)
        read = time.perf_counter()
        out = plain_console()
        if out.is_terminal:
            is_message = config.chat is not False and session.tokenizer.chat is not None
            shown = prompt if len(prompt) <= _SHOWN else f"…{prompt[-_SHOWN:]}"
            out.out(_without_control(shown) + "\n\n" * is_message, style="dim", end="")
        count = write_text(out, stream, (int(step[0]) for step in itertools.chain([first], steps)))
        speed = (count - 1) / (time.perf_counter() - read)
    signal = stopping.requested()
    is_full = most < config.max_new_tokens
    why = stream.ended_by or ("a signal" if signal else "length" if is_full else "max_new_tokens")
    print_message(
        console,
        f"prompt: {len(tokens):,} tokens, {len(tokens) / (read - begun):,.1f} per second with "
        f"compiling; continuation: {count:,} tokens, {speed:,.1f} per second, ended by {why}; "
        f"cache: {in_gib(size)} GiB",
        "dim",
    )
    if signal:
        raise Stopped("stopped", signal)


def window_and_new(opened: OpenedModel, config: GenerateConfig, count: int) -> tuple[int, int]:
    """Return n, and how many tokens may follow a prompt of `count`. UserError: none."""
    needed = max(opened.trained.window, count + config.max_new_tokens)
    length = config.length or min(needed, opened.longest or needed)
    if count >= length:
        where = f"a window of {length:,}; shorten it, or raise length"
        if length == opened.longest:
            where = f"{length:,}, where the model's positions end; shorten it"
        raise UserError(f"prompt: {count:,} tokens leave no room in {where}")
    return length, min(config.max_new_tokens, length - count)


def write_text(out: Console, stream: TextStream, tokens: Iterable[int]) -> int:
    """Write a continuation as it is made; return how many tokens it has."""
    count = 0
    for token in tokens:
        count += 1
        _write(out, stream.add(token))
        if stream.ended_by or stopping.requested():
            break
    _write(out, f"{stream.rest()}\n")
    return count


def _write(out: Console, text: str) -> None:
    # not by Rich, which makes spaces of tabs
    out.file.write(_without_control(text) if out.is_terminal else text)
    out.file.flush()


def _without_control(text: str) -> str:
    """Return a text that no terminal obeys."""
    return _CONTROL.sub(lambda match: printable(match[0]), text)
