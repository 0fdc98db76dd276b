"""How much memory a model needs: the one figure for training, sweeps, fits, imports and plans.

Parameters and optimizer state are exact, from their shapes. What a program adds to them is first
bounded or estimated without a compiler, so that absurd sizes are refused at once. What passes is
compiled, and the compiler's figure decides (`devices.memory.program_bytes`).

All figures are bytes on each device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from rope_jax.attention.blockwise import BLOCK
from rope_jax.devices.memory import check_fits, in_gib, is_host_memory
from rope_jax.devices.mesh import Placement
from rope_jax.model.decoder import LanguageModel, Params
from rope_jax.model.loss import MAX_LOGITS
from rope_jax.model.spec import ModelSpec

LARGEST_OVERESTIMATE = 1.7
"""`window_bytes` is at most this many times what XLA allocates."""
_FLOAT32 = 4
_BATCH_ARRAYS = 5  # tokens, targets, segments, positions, weights: 4 bytes each


def parameter_count(model: LanguageModel) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(model.abstract_params()))


def bytes_per_device(tree: object) -> int:
    """Return the bytes of one device's part of arrays with shapes, dtypes and shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def step_bound(model: ModelSpec, trained: int, state: int, tokens: int, accumulation: int) -> int:
    """Lower bound on the memory of a training step: state, batch, and gradients or activations.

    Clipping needs all gradients at once, and the backward pass the input of every layer.

    trained, state: bytes of what is trained; of all parameters and the optimizer's state.
    tokens: in a batch, on each device. accumulation: micro-batches per step.
    """
    of_token = model.num_hidden_layers * _itemsize(model) * model.hidden_size
    activations = of_token * tokens // accumulation
    sums = trained if accumulation > 1 else 0
    return state + _BATCH_ARRAYS * _FLOAT32 * tokens + sums + max(trained, activations)


def window_bytes(
    model: ModelSpec, vocab_size: int, length: int, *, context: int = 1, tensor: int = 1
) -> int:
    """Estimate the memory of a forward pass over one window of `length` tokens beside the weights.

    The residual stream, twice, and the results of attention or of the feed-forward, whichever are
    more; keys and values of one layer; scores or logits, which do not exist at the same time.

    vocab_size: the model's own.
    context, tensor: how many devices share the window and the heads. Each has the keys and values
        of the whole window.
    """
    itemsize, queries = _itemsize(model), -(-length // context)
    heads = model.num_attention_heads * model.heads_width
    kv_heads = model.kv_heads * model.heads_width
    feed_forward = max(kind.feed_forward.activation_floats_per_token(model) for kind in model.kinds)
    results = max(3 * heads + 3 * kv_heads, feed_forward)
    keys_and_values = itemsize * length * 2 * kv_heads // tensor
    # among the results, except where devices share the window: these gather, and then order them
    cache = keys_and_values * (1 if context == 1 else 2) - keys_and_values // context
    # Measured: XLA allocates several chunks of query rows at once.
    scores = 1.2 * model.num_attention_heads * length * queries
    if not model.backend.is_softmax:
        scores = 0.0
    elif not model.backend.quadratic_memory:
        scores = 3 * model.num_attention_heads * min(length, BLOCK) ** 2
    vocabulary = vocab_size // tensor
    logits = min(queries * vocabulary, max(MAX_LOGITS, vocabulary))
    activations = itemsize * queries * (2 * model.hidden_size + results // tensor)
    return activations + cache + max(int(_FLOAT32 * scores) // tensor, _FLOAT32 * logits)


def _itemsize(model: ModelSpec) -> int:
    return 4 if model.dtype == "float32" else 2


@dataclass(frozen=True)
class MemoryEstimate:
    """What determines the memory of a forward pass that reads one window at a time.

    abstract_params: shapes, dtypes and shardings of the parameters, where `placement` puts them.
    available: bytes of a device. memory_gib: what a sweep's config allows for a window.
    """

    model: ModelSpec
    vocab_size: int
    abstract_params: Params
    placement: Placement
    available: float | int = math.inf
    memory_gib: float | int | None = None

    @property
    def weights(self) -> int:
        """Bytes of the parameters: exact, except on a CPU.

        There, XLA computes bfloat16 in float32, and converts the whole stack of layers at once
        (measured). Unrolled layers are copied in float32 as well, before the first is used.
        """
        weights, model = bytes_per_device(self.abstract_params), self.model
        is_converted = {model.dtype, model.param_dtype} != {"float32"}
        if is_host_memory(self.placement.device) and (model.layers == "unrolled" or is_converted):
            shards = (
                leaf.sharding.shard_shape(leaf.shape)
                for leaf in jax.tree.leaves(self.abstract_params)
            )
            weights += _FLOAT32 * sum(map(math.prod, shards))
        return weights

    def window(self, length: int) -> int:
        """Estimate the memory of reading a window of `length` tokens beside the weights."""
        model, mesh = self.model, self.placement.config
        if is_host_memory(self.placement.device):  # activations take as much as in float32
            model = replace(model, dtype="float32")
        shared = {"context": mesh.context, "tensor": mesh.tensor}
        return window_bytes(model, self.vocab_size, length, **shared)

    def fits(self, length: int) -> bool:
        """Whether a window may fit on a device, and into what a sweep's config allows it."""
        window = self.window(length)
        allowed = self.memory_gib is None or window <= self.memory_gib * 2**30
        return allowed and self.weights + window / LARGEST_OVERESTIMATE <= self.available

    def sharing(self, length: int) -> "MemoryEstimate":
        """Return the plan in which the fewest devices share a window: 1, 2, 4, … until it fits."""
        plan = self
        while not plan.fits(length):
            mesh = plan.placement.config
            if (mesh.data or 1) % 2 or not self.model.splits_windows:
                return plan
            plan = replace(plan, placement=plan.placement.sharing_windows(2 * mesh.context))
        return plan

    def check_weights(self) -> None:
        """UserError if not even the weights fit on a device."""
        copy = ", with XLA's float32 copy of them," if is_host_memory(self.placement.device) else ""
        advice = (
            "split them over more devices with mesh.fsdp, in the run's config.yaml or an import"
        )
        check_fits(f"mesh.fsdp: the weights{copy} take", self.weights, self.available, advice)

    def check(self, lengths: Sequence[int]) -> None:
        """UserError, naming the key to change, if a window of the last length cannot fit.

        lengths: ascending; without any, only the weights have to fit.
        """
        self.check_weights()
        if not lengths:
            return
        shared = self.sharing(lengths[-1])
        window, context = shared.window(lengths[-1]), shared.placement.config.context
        among = f" on each of {context} devices" if context > 1 else ""
        reading = f"a window of {lengths[-1]:,} tokens with attention {self.model.attention}"
        longest = max((n for n in lengths if self.sharing(n).fits(n)), default=None)
        advice = f"the longest that may fit is {longest:,}" if longest else "give shorter ones"
        if self.model.backend.quadratic_memory:
            advice += "; attention=blockwise takes less"
        if self.memory_gib is not None:
            allowed = self.memory_gib * 2**30
            check_fits(f"memory_gib: {reading} takes{among}", window, allowed, advice)
        check_fits(
            f"lengths: {reading}, beside {in_gib(shared.weights)} GiB of weights, takes{among}",
            *(window / LARGEST_OVERESTIMATE, self.available - shared.weights),
            advice,
        )

    def describe(self, length: int) -> str:
        """Describe the memory for a window, such as "0.02 of 15.3 GiB per device, at 64 tokens"."""
        of = f" of {in_gib(self.available)}" if math.isfinite(self.available) else ""
        plan = self.sharing(length)
        context = plan.placement.config.context
        sharing = f", which {context} devices share" if context > 1 else ""
        size = in_gib(plan.weights + plan.window(length))
        return f"{size}{of} GiB per device, at {length:,} tokens{sharing}"
