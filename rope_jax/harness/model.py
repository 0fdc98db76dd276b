"""A run's model, as lm-evaluation-harness asks it: scores of texts, and continuations.

How texts become tokens, and what is cut where they are too long, is as in its model `hf`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import Collator, normalize_gen_kwargs, postprocess_generated_text
from tqdm import tqdm

from rope_jax import cli, stopping
from rope_jax.checkpoints.exporting import original_files, run_sources
from rope_jax.checkpoints.files import CONFIG
from rope_jax.config.entries import SweepEntry
from rope_jax.config.generate import GenerateConfig
from rope_jax.config.load import validate
from rope_jax.data.chat import Messages
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import scores_of_last
from rope_jax.generation.decoding import CachedDecoder
from rope_jax.generation.opening import OpenedModel, open_model
from rope_jax.generation.prompt import end_tokens
from rope_jax.generation.sampling import Sampling
from rope_jax.positions.bands import of_tokens
from rope_jax.session import Session

Answer = tuple[float, bool]
"""ln p of a continuation, and whether each of its tokens is the model's first choice."""
T = TypeVar("T")
_END = "<end of what is begun>"


class HarnessModel(TemplateLM):
    """A model that reads every text as the beginning of a window of max_length tokens.

    So an entry with factor auto is that of this window for all texts, as in a sweep.
    """

    def __init__(
        self, opened: OpenedModel, entry: SweepEntry, max_length: int, batch_size: int
    ) -> None:
        """batch_size: how many texts are read at a time. UserError: as `read_with`."""
        super().__init__()
        self.batch_size, self._opened = batch_size, opened
        self._tokenizer = opened.session.tokenizer
        self._sources = opened.session.run, opened.session.config
        self._ends = end_tokens(*self._sources, self._tokenizer)
        self._params = opened.params  # read now, not beside a bar
        of_last = scores_of_last(opened.model, opened.placement)
        self._score = jax.jit(of_last, static_argnums=3)
        self.read_with(entry, max_length)

    def read_with(self, entry: SweepEntry, max_length: int) -> None:
        """Read with another entry or length from now on, if possible by the same programs.

        UserError: the entry does not fit the model or the length.
        """
        self.max_length, self._rotary = max_length, self._opened.rotary(entry, max_length)

    @functools.cached_property
    def _decoder(self) -> CachedDecoder:
        return CachedDecoder(self._opened.model, self._params, self._opened.placement)

    @functools.cached_property
    def eot_token_id(self) -> int:
        """The token before a text that is scored from its first token on."""
        published = original_files(run_sources(*self._sources)).get(CONFIG, {}).get("bos_token_id")
        for token in (*self._tokenizer.bos_ids[-1:], published, *sorted(self._ends)):
            if token is not None:
                return int(token)
        raise UserError(f"{self._sources[0].path}: its tokenizer has no token to begin a text with")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """Return a text's tokens, after the document start unless the text has it already."""
        start = list(self._tokenizer.bos_ids)
        tokens: list[int] = self._tokenizer.encode_batch([string], control=True)[0].tolist()
        has_start = tokens[: len(start)] == start
        return tokens if has_start or add_special_tokens is False else start + tokens

    @property
    def tokenizer_name(self) -> str:
        return self._tokenizer.name

    def apply_chat_template(
        self, chat_history: Messages, add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as a text; without a prompt, it ends in an answer that goes on."""
        if (template := self._tokenizer.chat) is None:
            raise UserError("apply_chat_template: the run's tokenizer has no chat template")
        if add_generation_prompt:
            return template.render(chat_history, add_generation_prompt=True)
        *before, last = chat_history
        text = template.render([*before, {**last, "content": f"{last['content']}{_END} "}])
        begun, _, after = text.rpartition(_END)
        # as in transformers: a template that strips messages strips what goes on, too
        return begun if after.startswith(" ") else begun.rstrip()

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        totals = []
        for request in tqdm(requests, "loglikelihood_rolling", disable=disable_tqdm or None):
            tokens = self.tok_encode(*request.args)
            windows = utils.get_rolling_token_windows(
                tokens, self.prefix_token_id, self.max_length, context_len=1
            )
            asked = [(None, *utils.make_disjoint_window(window)) for window in windows]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(asked, True)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: object,
    ) -> list[Answer]:
        """Return an answer for the context and the continuation of each request."""
        size = min(self.batch_size, len(requests))
        rows = size + -size % self._opened.placement.row_shards

        def of_batch(batch: Sequence[tuple[Any, list[int], list[int]]]) -> list[Answer]:
            if (most := max(len(then) for *_, then in batch)) > self.max_length:
                raise UserError(f"max_length: {self.max_length:,}, but a continuation has {most:,}")
            windows = [self._cut(first + then, self.max_length + 1) for _, first, then in batch]
            return self._scores(windows, [len(scored) for *_, scored in batch], rows)

        ordered = Collator(requests, sort_fn=lambda request: -len(request[1] + request[2]))
        return self._answer("loglikelihood", ordered, of_batch, disable_tqdm)

    def _scores(
        self, windows: Sequence[list[int]], scored: Sequence[int], rows: int
    ) -> list[Answer]:
        """Return an answer for the last `scored` tokens of each window; rows: with empty ones."""
        ends = [len(window) - 1 for window in windows]
        length = min(self.max_length, _rounded(max(ends), per_octave=4))
        tokens = np.zeros((rows, length + 1), np.int32)
        for row, window in zip(tokens, windows, strict=False):
            row[: len(window)] = window  # no token sees the padding after it
        first = min(end - count for end, count in zip(ends, scored, strict=True))
        last = min(length, _rounded(length - first, per_octave=1))
        rotary = of_tokens(self._rotary, lambda x: x[..., :length])
        scores = self._score(self._params, tokens, rotary, last)
        nll, is_top1 = np.asarray(scores.nll, np.float64), np.asarray(scores.is_top1)
        answers = []
        for number, (end, count) in enumerate(zip(ends, scored, strict=True)):
            at = number, slice(end - count - (length - last), end - (length - last))
            answers.append((-float(nll[at].sum()), bool(is_top1[at].all())))
        return answers

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return what follows each prompt. UserError: there is no room for it."""

        def of_batch(batch: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
            settings = normalize_gen_kwargs(batch[0][1])
            room = self.max_length - settings["max_gen_toks"]
            if room < 1:
                raise UserError(f"max_gen_toks: must be less than max_length {self.max_length:,}")
            prompts = [self._cut(self.tok_encode(prompt), room) for prompt, _ in batch]
            return self._continuations(prompts, settings)

        ordered = Collator(
            [request.args for request in requests],
            sort_fn=lambda request: -len(self.tok_encode(request[0])),
            group_by="gen_kwargs",
            group_fn=lambda request: request[1],
        )
        return self._answer("generate_until", ordered, of_batch, disable_tqdm)

    def _continuations(
        self, prompts: Sequence[list[int]], settings: Mapping[str, Any]
    ) -> list[str]:
        """Return what follows each prompt, up to an end token, a stop string or max_gen_toks."""
        stops = [stop for stop in settings["until"] if stop]
        made: list[list[int]] = [[] for _ in prompts]
        is_open, most = np.full(len(prompts), True), settings["max_gen_toks"]
        choose = _sampling(settings).choose
        for tokens in self._decoder.continue_texts(prompts, self._rotary, choose, most):
            stopping.check()
            for row in np.flatnonzero(is_open):
                if (token := int(tokens[row])) in self._ends:
                    is_open[row] = False
                else:
                    made[row].append(token)
                    text = self._decode(made[row]) if stops else ""
                    is_open[row] = not any(stop in text for stop in stops)
            if not is_open.any():
                break
        return [postprocess_generated_text(self._decode(tokens), stops, None) for tokens in made]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(np.array(tokens, np.int64), skip_special_tokens=True)

    def _cut(self, tokens: list[int], most: int) -> list[int]:
        self._count_cut += len(tokens) > most
        return tokens[-most:]

    def _answer(
        self, kind: str, ordered: Collator, of_batch: Callable[..., list[T]], is_quiet: bool
    ) -> list[T]:
        """Return what `of_batch` gives for all requests, and cache it; warn if texts were cut."""
        answers: list[T] = []
        self._count_cut = 0
        # None: a bar only in a terminal
        with tqdm(total=len(ordered), desc=kind, disable=is_quiet or None) as bar:
            for batch in ordered.get_batched(n=self.batch_size):
                stopping.check()
                answers += (made := of_batch(batch))
                for request, answer in zip(batch, made, strict=True):
                    asked = request[0] if kind == "loglikelihood" else request
                    if asked is not None:  # else a window of a longer text
                        self.cache_hook.add_partial(kind, asked, answer)
                bar.update(len(batch))
        if self._count_cut:
            self._opened.session.warn(
                f"{self._count_cut} of {len(ordered)} texts do not fit into max_length "
                f"{self.max_length:,}, and lost their beginnings"
            )
        return ordered.get_original(answers)


def _rounded(size: int, per_octave: int) -> int:
    """Round up to one of few numbers; each is a program of its own."""
    size = max(size, 64)
    step = (1 << (size - 1).bit_length()) // (2 * per_octave)
    return -(-size // step) * step


def _sampling(settings: Mapping[str, Any]) -> Sampling:
    """Return how tokens are drawn. UserError: there is a key that would have no effect."""
    known = ("do_sample", "temperature", "top_k", "top_p", "until", "max_gen_toks")
    without_effect = {"num_beams": 1, "repetition_penalty": 1.0}
    for key, value in settings.items():
        if key not in known and value != without_effect.get(key):
            raise UserError(f"generation_kwargs: {key}: unknown; there are {', '.join(known)}")
    if not settings["do_sample"]:
        return Sampling()
    top_k = max(0, settings.get("top_k") or 0) or None  # 0 and −1: all, as in transformers and vLLM
    return Sampling(settings.get("temperature") or 1.0, top_k, settings.get("top_p") or 1.0)


@register_model("rope_jax")
class RegisteredModel(HarnessModel):
    """The model of a run directory or a checkpoint, from the harness's model_args."""

    def __init__(
        self,
        run: str = "",
        strategy: object = "trained",
        max_length: int | None = None,
        batch_size: int | str = 1,
        step: int | None = None,
        tokenizer: str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
        **unknown: object,
    ) -> None:
        """Open it.

        strategy: as an entry of a sweep, its name or its settings; or the path of a strategy file.
        max_length: n; None: the window that the model was trained with.
        tokenizer: tasks that make texts of a given length read it. device: JAX chooses its own.
        max_batch_size: of batch_size auto, which there is not.
        """
        if unknown or not run:
            wrong = f"{min(unknown)}: unknown" if unknown else "run=RUN is missing"
            raise UserError(f"model_args: {wrong}")
        if not str(batch_size).isdecimal():
            raise UserError(f"batch_size: should be a number, not {batch_size}")
        directory, training, console = cli.open_directory(run)
        asked = {"strategy": strategy, "length": max_length, "step": step}
        config = validate(GenerateConfig, asked, "model_args")
        opened = open_model(Session(directory, training, console), [config.strategy], config.step)
        length = config.length or opened.trained.window
        super().__init__(opened, config.strategy, length, int(batch_size))
