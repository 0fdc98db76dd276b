"""How much memory a model needs: the one figure for training, sweeps, fits, imports and plans.

Parameters and optimizer state are exact, from their shapes. What a program adds to them is first
bounded or estimated without a compiler, so that absurd sizes are refused at once. What passes is
compiled, and the compiler's figure decides (`devices.memory.program_bytes`).

All figures are bytes on each device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from rich import box
from rich.table import Column, Table
from rich.text import Text

from rope_jax.attention.blockwise import BLOCK
from rope_jax.config.model import ModelConfig
from rope_jax.devices.memory import check_fits, in_gib, is_host_memory
from rope_jax.model.decoder import LanguageModel, Params
from rope_jax.model.loss import MOST_LOGITS

LARGEST_OVERESTIMATE = 1.7
"""`window_bytes` is at most this many times what XLA allocates."""
_FLOAT32 = 4
_BATCH_ARRAYS = 5  # tokens, targets, segments, positions, weights: 4 bytes each
# A model that takes less than this share of the device fits easily: no table of it is shown. One
# that was imported is larger in most cases, and its settings are another's: its table comes sooner.
_SMALL_SHARE, _SMALL_SHARE_IMPORTED = 1 / 2, 1 / 20


def parameter_count(model: LanguageModel) -> int:
    """Return the number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: model.init(0))))


def bytes_per_device(tree: Any) -> int:
    """Return the bytes of one device's part of arrays with shapes, dtypes and shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def step_bound(
    model: ModelConfig, params: int, state: int, tokens: int, accumulation: int, keys: int
) -> int:
    """Lower bound on the memory of a training step: state, batch, and gradients or activations.

    Clipping needs all gradients at once. The backward pass needs the input of every layer, whatever
    is recomputed, and one layer's scores.

    params, state: bytes of the parameters, and of these with the optimizer's state.
    tokens: in a batch, on each device. accumulation: micro-batches per step.
    keys: that a query sees, at most.
    """
    at_once = tokens // accumulation
    activations = model.num_hidden_layers * _itemsize(model) * at_once * model.hidden_size
    if model.backend.quadratic_memory:  # the others have blocks of scores
        activations += _itemsize(model) * model.num_attention_heads * at_once * keys // 2
    sums = params if accumulation > 1 else 0
    return state + _BATCH_ARRAYS * _FLOAT32 * tokens + sums + max(params, activations)


def validation_bound(model: ModelConfig, state: int, tokens: int) -> int:
    """Lower bound on the memory while a batch is scored that is not split into micro-batches."""
    return state + tokens * (_BATCH_ARRAYS * _FLOAT32 + _itemsize(model) * model.hidden_size)


class WindowBytes(NamedTuple):
    """Estimated memory of a forward pass over one window beside the weights, by kind of array.

    activations: the residual stream, twice, and the results of attention or of the feed-forward,
        whichever are more; without the rest below.
    cache: keys and values of one layer.
    scores, logits: of attention, and of the output, that exist at once.
    """

    activations: int
    cache: int
    scores: int
    logits: int

    @property
    def total(self) -> int:
        """The peak: scores and logits do not exist at the same time."""
        return self.activations + self.cache + max(self.scores, self.logits)


def window_bytes(
    model: ModelConfig, vocab_size: int, length: int, *, context: int = 1, tensor: int = 1
) -> WindowBytes:
    """Estimate the memory of a forward pass over one window of `length` tokens, all scored.

    vocab_size: the tokenizer's; it counts if the model's own is null.
    context, tensor: how many devices share the window and the heads. Each has the keys and values
        of the whole window.
    """
    itemsize, own = _itemsize(model), -(-length // context)
    heads = model.num_attention_heads * model.heads_width
    kv_heads = model.kv_heads * model.heads_width
    # results of every matrix product, and the input of the last one
    feed_forward = model.feed_forward.flops_per_token(model) // (2 * model.hidden_size)
    wide = max(3 * heads + 3 * kv_heads, feed_forward)
    keys_and_values = itemsize * length * 2 * kv_heads // tensor
    # Measured: XLA allocates several chunks of query rows at once.
    scores = 1.2 * model.num_attention_heads * length * own
    if not model.backend.is_softmax:
        scores = 0.0
    elif not model.backend.quadratic_memory:
        scores = 3 * model.num_attention_heads * min(length, BLOCK) ** 2
    vocabulary = (model.vocab_size or vocab_size) // tensor
    return WindowBytes(
        activations=itemsize * own * (2 * model.hidden_size + wide // tensor)
        - keys_and_values // context,
        # where devices share the window, they are gathered and then put in order
        cache=keys_and_values * (1 if context == 1 else 2),
        scores=int(_FLOAT32 * scores) // tensor,
        logits=_FLOAT32 * min(own * vocabulary, max(MOST_LOGITS, vocabulary)),
    )


def _itemsize(model: ModelConfig) -> int:
    return 4 if model.dtype == "float32" else 2


@dataclass(frozen=True)
class MemoryPlan:
    """What determines the memory of a forward pass that reads one window at a time.

    like: shapes, dtypes and shardings of the parameters.
    tensor, context: how many devices share the heads, and each window.
    copies: of the parameters. That many devices can share a window.
    device: one of the devices; None: the first one here.
    available: bytes of a device. memory_gib: what a sweep's config allows for a window.
    imported: whether the run was imported, and may be again.
    """

    model: ModelConfig
    vocab_size: int
    like: Params
    tensor: int = 1
    context: int = 1
    copies: int = 1
    device: Any = None
    available: float | int = math.inf
    memory_gib: float | int | None = None
    imported: bool = False

    @property
    def weights(self) -> int:
        """Bytes of the parameters: exact, except on a CPU.

        There, XLA computes bfloat16 in float32, and converts the whole stack of layers at once
        (measured). Unrolled layers are copied in float32 as well, before the first is used.
        """
        weights, model = bytes_per_device(self.like), self.model
        is_converted = {model.dtype, model.param_dtype} != {"float32"}
        if is_host_memory(self.device) and (model.layers == "unrolled" or is_converted):
            shards = (leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(self.like))
            weights += _FLOAT32 * sum(map(math.prod, shards))
        return weights

    def window(self, length: int) -> WindowBytes:
        """Estimate the memory of reading a window of `length` tokens beside the weights."""
        model = self.model
        if is_host_memory(self.device):  # activations take as much as in float32
            model = model.model_copy(update={"dtype": "float32"})
        shared = {"context": self.context, "tensor": self.tensor}
        return window_bytes(model, self.vocab_size, length, **shared)

    def total(self, length: int) -> int:
        """Estimate the memory of reading a window together with the weights."""
        return self.weights + self.window(length).total

    def fits(self, length: int) -> bool:
        """Whether a window may fit on a device, and into what a sweep's config allows it."""
        window = self.window(length).total
        allowed = self.memory_gib is None or window <= self.memory_gib * 2**30
        return allowed and self.weights + window / LARGEST_OVERESTIMATE <= self.available

    def sharing(self, length: int) -> "MemoryPlan":
        """Return the plan in which the fewest devices share a window: 1, 2, 4, … until it fits."""
        plan = self
        while not plan.fits(length):
            if self.copies % (2 * plan.context) or not self.model.backend.splits_windows:
                return plan
            plan = replace(plan, context=2 * plan.context)
        return plan

    def check_weights(self) -> None:
        """UserError if not even the weights fit on a device."""
        advice = "split them over more devices with mesh.fsdp in the run's config.yaml"
        if self.imported:
            advice = "import the checkpoint with a larger mesh.fsdp, on more devices"
            if self.model.param_dtype == "float32" and not is_host_memory(self.device):
                advice += ", or with param_dtype=bfloat16"
        with_copy = ", with XLA's float32 copy of them," if is_host_memory(self.device) else ""
        what = f"mesh.fsdp: the weights{with_copy} take"
        check_fits(what, self.weights, self.available, advice)

    def check(self, lengths: Sequence[int]) -> None:
        """UserError, naming the key to change, if a window of the last length cannot fit.

        lengths: ascending; without any, only the weights have to fit.
        """
        if not lengths:
            self.check_weights()
            return
        longest, attention = lengths[-1], self.model.attention
        shared = self.sharing(longest)
        window = shared.window(longest).total
        among = f" on each of {shared.context} devices" if shared.context > 1 else ""
        reading = f"a window of {longest:,} tokens with attention {attention}"
        less = "attention=blockwise takes less" if self.model.backend.quadratic_memory else ""
        if self.memory_gib is not None:
            allowed = self.memory_gib * 2**30
            check_fits("memory_gib: it asks for", allowed, self.available, "lower it")
            advice = less or "give shorter lengths"
            check_fits(f"memory_gib: {reading} takes{among}", window, allowed, advice)
        self.check_weights()
        fitting = [length for length in lengths if self.sharing(length).fits(length)]
        advice = f"give lengths shorter than {lengths[0]:,}"
        if fitting:
            advice = f"the longest of the lengths that may fit is {fitting[-1]:,}"
        check_fits(
            f"lengths: {reading}, beside {in_gib(shared.weights)} GiB of weights, takes{among}",
            *(window / LARGEST_OVERESTIMATE, self.available - shared.weights),
            less or advice,
        )

    def describe(self, length: int) -> str:
        """Describe the memory for a window, such as "0.02 of 15.3 GiB per device, at 64 tokens"."""
        of = f" of {in_gib(self.available)}" if math.isfinite(self.available) else ""
        plan = self.sharing(length)
        sharing = f", which {plan.context} devices share" if plan.context > 1 else ""
        return f"{in_gib(plan.total(length))}{of} GiB per device, at {length:,} tokens{sharing}"

    def table(self, lengths: Sequence[int]) -> Table | None:
        """Return a table of the memory by kind of array with one row per length.

        None if the longest window takes so little that one line says enough.
        """
        plans = {length: self.sharing(length) for length in lengths}
        largest = plans[lengths[-1]].total(lengths[-1])
        devices_share = any(shared.context > 1 for shared in plans.values())
        small = _SMALL_SHARE_IMPORTED if self.imported else _SMALL_SHARE
        if not devices_share and largest < small * self.available:
            return None
        unit, size = ("GiB", 2**30) if largest >= 2**30 else ("MiB", 2**20)
        limit = f"; there are {self.available / size:,.1f}" * math.isfinite(self.available)
        notes = ["total: with the larger of scores and logits, one at a time"]
        headings = ["length", "weights", "activations", "keys and values", "scores", "logits"]
        headings.append("total")
        if is_host_memory(self.device):
            notes.append("weights: with the float32 copies that XLA makes on a CPU")
        if devices_share:
            notes.append("devices: how many share a window")
            headings.append("devices")
        table = Table(
            *(Column(heading, justify="right", no_wrap=True) for heading in headings),
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            title=Text(f"memory per device for one window, in {unit}{limit}"),
            title_justify="left",
            title_style="bold",
            caption=Text("\n".join(notes)),
            caption_justify="left",
        )
        for length, shared in plans.items():
            parts = (shared.weights, *shared.window(length), shared.total(length))
            shared_by = [f"{shared.context}"] if devices_share else []
            table.add_row(f"{length:,}", *(f"{part / size:,.2f}" for part in parts), *shared_by)
        return table
