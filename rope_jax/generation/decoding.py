"""Read texts token by token, and continue them; what was read is kept in a cache.

Shapes: B texts, C capacity of the cache in tokens, T tokens that are read at once, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from rope_jax import stopping
from rope_jax.blocks.cache import Cache
from rope_jax.devices.mesh import Placement
from rope_jax.generation.sampling import GREEDY, Sampling
from rope_jax.model.decoder import CachedWindow, LanguageModel, Params, with_separate_layers
from rope_jax.positions.bands import of_tokens
from rope_jax.rope import Rotary
from rope_jax.rope.geometry import AnyArray

Prompt = Sequence[int] | Int[np.ndarray, " _"]
Rows = tuple[Int[Array, "B T"], Int[Array, "B C"], Int[Array, "B C"]]
"""Tokens, and of the whole cache positions and segment ids."""
Sample = Callable[[Float[Array, "B V"], int], Int[Array, " B"]]
"""sample(logits, step): the next token of each text; step: how many were drawn before."""

# By platform: on a CPU, longer ones are no faster.
CHUNK = {"cpu": 256, "gpu": 1024, "tpu": 1024}
_SHORTEST_CHUNK = 16


class CachedDecoder:
    """A model with its parameters, which continues texts.

    A text is read as a window of n tokens with n fixed, that of `rotary`: the logits after its
    token t are those of the whole window at t. Programs are compiled once for each size of the
    cache.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: Params,
        placement: Placement | None = None,
        *,
        donate: bool = False,
    ) -> None:
        """Copy the layers, one parameter at a time.

        placement: that of the parameters, by which the rows of a batch are split over devices.
        donate: delete each parameter that was copied, so that there is memory for large models.
        """
        self.model, self._placement = model, placement
        self._params = with_separate_layers(params, model.spec.stacks, donate=donate)
        self._row_shards, on_each, platform = 1, model, jax.default_backend()
        if placement is not None:
            self._row_shards, platform = placement.row_shards, placement.platform
            on_each = model.on(placement.collectives)

        def read(
            params: Params, rows: Rows, rotary: Rotary, caches: list[Cache], first: Array
        ) -> tuple[Array, list[Cache]]:
            tokens, positions, segment_ids = rows
            window = CachedWindow(positions, segment_ids, rotary)
            return on_each.next_logits(params, tokens, window, caches, first)

        if placement is not None:
            read = placement.splitting(model.shardings).continued(read)
        self._read = jax.jit(read, donate_argnums=3)
        self.chunk = CHUNK[platform]
        """Longer prompts are read in chunks of this many tokens, a power of two."""

    def continue_texts(
        self, prompts: Sequence[Prompt], rotary: Rotary, sample: Sample, max_new_tokens: int
    ) -> Iterator[Int[np.ndarray, " B"]]:
        """Yield the next token of every prompt, step by step; stop iterating to stop.

        prompts: at least one token each; they may differ in length, and are read together.
        rotary: that of one window of at least as many tokens as a prompt and its continuation.
        ValueError: it is for fewer.
        """
        texts = len(prompts)
        prompts = [*prompts, *(prompts[-1],) * (-texts % self._row_shards)]
        longest = max(map(len, prompts))
        chunk = _chunk(longest, self.chunk)
        end = -(-longest // chunk) * chunk  # where all prompts end
        capacity = cache_capacity(longest, max_new_tokens, self.chunk)
        begins = np.array([end - len(prompt) for prompt in prompts])
        tokens = np.zeros((len(prompts), end), np.int32)
        for row, (begin, prompt) in zip(tokens, zip(begins, prompts, strict=True), strict=True):
            row[begin:] = prompt
        index = np.arange(capacity, dtype=np.int32) - begins[:, None].astype(np.int32)
        positions = index.clip(0, longest + max_new_tokens - 2)  # the last token is not read
        segment_ids = (index >= 0).astype(np.int32)
        where = jax.device_put((positions, segment_ids))
        rotary = jax.device_put(of_tokens(rotary, lambda x: _of_rows(x, positions)))
        bands = max(1, len(rotary.bands))
        caches = self._empty_caches(len(prompts), capacity, bands)
        for first in range(0, end, chunk):
            stopping.check()
            rows = tokens[:, first : first + chunk], *where
            logits, caches = self._read(self._params, rows, rotary, caches, np.int32(first))
            jax.block_until_ready(logits)
        for step in range(max_new_tokens):
            chosen = sample(logits, step)
            if step + 1 < max_new_tokens:  # computed while the caller has this one
                rows, at = (chosen[:, None], *where), np.int32(end + step)
                logits, caches = self._read(self._params, rows, rotary, caches, at)
            yield np.asarray(chosen)[:texts]

    def _empty_caches(self, rows: int, capacity: int, bands: int) -> list[Cache]:
        def empty() -> list[Cache]:
            return self.model.empty_caches(rows, capacity, bands)

        if self._placement is None or self._placement.mesh.size == 1:
            return jax.jit(empty)()
        shardings = self._placement.shard_caches(jax.eval_shape(empty))
        return jax.jit(empty, out_shardings=shardings)()


def generate(
    model: LanguageModel,
    params: Params,
    tokens: Sequence[Prompt],
    rotary: Rotary,
    sampling: Sampling = GREEDY,
    *,
    max_new_tokens: int,
    placement: Placement | None = None,
) -> Iterator[Int[np.ndarray, " B"]]:
    """Yield the token that follows each text, step by step, as `CachedDecoder.continue_texts`."""
    decoder = CachedDecoder(model, params, placement)
    return decoder.continue_texts(tokens, rotary, sampling.choose, max_new_tokens)


def cache_capacity(prompt: int, new: int, most: int) -> int:
    """Return a size of the cache: one of few, at most an eighth or 256 tokens above what is needed.

    prompt: tokens of the longest prompt, which is read in whole chunks of at most `most` tokens.
    """
    chunk = _chunk(prompt, most)
    tokens = -(-prompt // chunk) * chunk + new
    step = max(256, (1 << tokens.bit_length()) // 16)
    return -(-tokens // step) * step


def _chunk(longest: int, most: int) -> int:
    """Return how many tokens of prompts are read at once: a power of two."""
    return min(most, max(_SHORTEST_CHUNK, 1 << (longest - 1).bit_length()))


def _of_rows(x: AnyArray, positions: Int[np.ndarray, "B C"]) -> AnyArray:
    """Return what x [..., 1, …, S], whose second axis is that of rows, has at their positions."""
    if (last := int(positions.max())) >= x.shape[-1]:
        raise ValueError(f"rotary: is for {x.shape[-1]:,} tokens, and {last + 1:,} are read")
    return np.stack([np.take(x[:, 0], row, axis=-1) for row in positions], axis=1)
