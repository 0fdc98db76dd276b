"""How much memory a model needs to read a window, planned before weights are read or compiled for.

All figures are bytes on each device, where parameters are split as in training and each device, or
group of devices that share windows, reads one window at a time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from rich import box
from rich.table import Table
from rich.text import Text

from rope_jax.attention import AttentionName
from rope_jax.config.model import FloatName, ModelConfig
from rope_jax.config.sharding_checks import can_share_windows
from rope_jax.devices.memory import in_gib, is_host_memory
from rope_jax.errors import UserError
from rope_jax.model.cost import LARGEST_OVERESTIMATE, ForwardBytes, forward_bytes
from rope_jax.model.decoder import Params

_FLOAT32 = 4
# A model that takes less than this share of the device fits easily: no table of it is shown. One
# that was imported is larger in most cases, and its settings are another's: its table comes sooner.
_SMALL_SHARE, _SMALL_SHARE_IMPORTED = 1 / 2, 1 / 20


@dataclass(frozen=True)
class MemoryPlan:
    """What determines the memory that a forward pass needs on each device."""

    model: ModelConfig
    vocab_size: int
    like: Params
    """Shapes, dtypes and shardings of the parameters."""
    tensor: int = 1
    """How many devices share the heads."""
    context: int = 1
    """How many devices share each window."""
    copies: int = 1
    """How many copies of the parameters there are. That many devices can share a window."""
    device: Any = None
    """One of the devices; None: the first one here."""

    @property
    def is_on_host(self) -> bool:
        """Whether the devices' memory is the host's, as on a CPU."""
        return is_host_memory(self.device)

    def sharing(
        self, length: int, available: float | int, memory_gib: float | int | None = None
    ) -> "MemoryPlan":
        """Return the plan in which the fewest devices share a window of `length` tokens.

        One, if a window fits on it; else 2, 4, …, until it fits or there are no more copies.
        """
        plan = self
        while not plan.fits(length, available, memory_gib):
            if self.copies % (2 * plan.context) or not can_share_windows(self.model):
                return plan
            plan = replace(plan, context=2 * plan.context)
        return plan

    def at(self, length: int) -> ForwardBytes:
        """Return the memory of a forward pass over one window of `length` tokens, all scored.

        The weights are exact, except on a CPU; the rest is the estimate of `forward_bytes`.
        """
        leaves = jax.tree.leaves(self.like)
        numbers = [math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves]
        weights = sum(n * leaf.dtype.itemsize for n, leaf in zip(numbers, leaves, strict=True))
        model = self.model
        if self.is_on_host:
            # On a CPU, XLA computes bfloat16 in float32: activations take as much as in float32,
            # and a float32 copy of all weights exists beside them, because XLA converts the whole
            # stack of layers at once, scanned or not (measured). Unrolled layers are copied in
            # float32 as well: the stack is split into all of its layers before the first is used.
            if model.layers == "unrolled" or {model.dtype, model.param_dtype} != {"float32"}:
                weights += _FLOAT32 * sum(numbers)
            model = model.model_copy(update={"dtype": "float32"})
        split = {"context": self.context, "tensor": self.tensor}
        made = forward_bytes(model, self.vocab_size, length, length, **split)
        return replace(made, weights=weights)

    def fits(
        self, length: int, available: float | int, memory_gib: float | int | None = None
    ) -> bool:
        """Whether a window may fit into `available` bytes: only the window may be overestimated.

        memory_gib: what a sweep's config allows for it.
        """
        needed = self.at(length)
        if memory_gib is not None and needed.window > memory_gib * 2**30:
            return False
        return needed.weights + needed.window / LARGEST_OVERESTIMATE <= available

    def with_attention(self, attention: AttentionName) -> "MemoryPlan":
        """Return the plan of the same model with another attention backend."""
        return replace(self, model=self.model.model_copy(update={"attention": attention}))

    def with_dtype(self, dtype: FloatName) -> "MemoryPlan":
        """Return the plan of the same model with weights and activations of another type."""

        def cast(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype), sharding=leaf.sharding)

        model = self.model.model_copy(update={"dtype": dtype, "param_dtype": dtype})
        return replace(self, model=model, like=jax.tree.map(cast, self.like))


def check_weights(plan: MemoryPlan, available: float | int, *, imported: bool) -> None:
    """UserError if not even the weights fit on a device.

    imported: whether they were imported, and may be imported again in other ways.
    """
    weights = plan.at(1).weights
    if weights <= available:
        return
    with_copy = " with XLA's float32 copy of them" if plan.is_on_host else ""
    advice = "split them over more devices with mesh.fsdp in the run's config.yaml"
    if imported:
        advice = "import the checkpoint with a larger mesh.fsdp, on more devices"
        for dtype in _other_dtypes(plan):
            if plan.with_dtype(dtype).at(1).weights <= available:
                advice += f", or with param_dtype={dtype}"
    raise UserError(
        f"mesh.fsdp: the weights take {in_gib(weights)} GiB per device{with_copy}, and there are "
        f"{in_gib(available)}; {advice}"
    )


def check_window(
    plan: MemoryPlan,
    lengths: Sequence[int],
    available: float | int,
    memory_gib: float | int | None = None,
    *,
    imported: bool = False,
) -> None:
    """UserError, naming the key to change, if a window of the longest length cannot fit.

    An estimate may be too high. What passes, the compiler's own figure decides.

    lengths: ascending. available: bytes of a device. memory_gib: as in a sweep's config.
    imported: as in `check_weights`.
    """
    longest, attention = lengths[-1], plan.model.attention
    shared = plan.sharing(longest, available, memory_gib)
    needed = shared.at(longest)
    among = f" on each of {shared.context} devices" if shared.context > 1 else ""
    window = f"a window of {longest:,} tokens takes about {in_gib(needed.window)} GiB{among} with"
    if memory_gib is not None:
        if memory_gib * 2**30 > available:
            raise UserError(
                f"memory_gib: should be at most {in_gib(available)}, the memory of a device, not "
                f"{memory_gib:g}"
            )
        if needed.window > memory_gib * 2**30:
            advice = (
                "; attention=blockwise takes less" if plan.model.backend.quadratic_memory else ""
            )
            raise UserError(
                f"memory_gib: {window} attention {attention}, and there are "
                f"{in_gib(memory_gib * 2**30)}{advice}"
            )
    check_weights(plan, available, imported=imported)
    if not shared.fits(longest, available):
        raise UserError(
            f"lengths: {window} attention {attention}, beside {in_gib(needed.weights)} GiB of "
            f"weights, and there are {in_gib(available)}; "
            f"{_advice(plan, lengths, available, imported)}"
        )


def _advice(
    plan: MemoryPlan, lengths: Sequence[int], available: float | int, imported: bool
) -> str:
    """Return the first change of settings that suffices by itself."""

    def may_fit(plan: MemoryPlan, length: int = lengths[-1]) -> bool:
        return plan.sharing(length, available).fits(length, available)

    if plan.model.backend.quadratic_memory and may_fit(plan.with_attention("blockwise")):
        return "attention=blockwise takes less"
    if imported:
        for dtype in _other_dtypes(plan):
            if may_fit(plan.with_dtype(dtype)):
                return f"import the checkpoint with param_dtype={dtype}, which takes less"
    fitting = [length for length in lengths if may_fit(plan, length)]
    if fitting:
        return f"the longest of the lengths that may fit is {fitting[-1]:,}"
    return f"give lengths shorter than {lengths[0]:,}"


def _other_dtypes(plan: MemoryPlan) -> list[FloatName]:
    names: tuple[FloatName, ...] = ("bfloat16", "float32")
    return [name for name in names if name != plan.model.param_dtype]


def describe_memory(
    plan: MemoryPlan, length: int, available: float | int, memory_gib: float | int | None = None
) -> str:
    """Describe in one line what a window takes, such as "0.02 of 15.3 GiB per device …"."""
    of = f" of {in_gib(available)}" if math.isfinite(available) else ""
    plan = plan.sharing(length, available, memory_gib)
    sharing = f", which {plan.context} devices share" if plan.context > 1 else ""
    return f"{in_gib(plan.at(length).total)}{of} GiB per device, at {length:,} tokens{sharing}"


def memory_table(
    plan: MemoryPlan,
    lengths: Sequence[int],
    available: float | int,
    memory_gib: float | int | None = None,
    *,
    imported: bool = False,
) -> Table | None:
    """Return a table of the memory by kind of array with one row per length.

    None if the longest window takes so little that one line says enough. imported: as in
    `check_weights`.
    """
    plans = {length: plan.sharing(length, available, memory_gib) for length in lengths}
    by_length: Mapping[int, ForwardBytes] = {n: shared.at(n) for n, shared in plans.items()}
    largest = by_length[lengths[-1]].total
    devices_share = any(shared.context > 1 for shared in plans.values())
    if (
        not devices_share
        and largest < (_SMALL_SHARE_IMPORTED if imported else _SMALL_SHARE) * available
    ):
        return None
    unit, size = ("GiB", 2**30) if largest >= 2**30 else ("MiB", 2**20)
    there_are = f"; there are {available / size:,.1f}" if math.isfinite(available) else ""
    notes = ["total: with the larger of scores and logits, one at a time"]
    if plan.is_on_host:
        notes.append("weights: with the float32 copies that XLA makes on a CPU")
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=Text(f"memory per device for one window, in {unit}{there_are}"),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
    table.add_column("length", justify="right", no_wrap=True)
    for heading in ("weights", "activations", "keys and values", "scores", "logits", "total"):
        table.add_column(heading, justify="right", no_wrap=True)
    if devices_share:
        notes.append("devices: how many share a window")
        table.add_column("devices", justify="right", no_wrap=True)
    table.caption = Text("\n".join(notes))
    for length, memory in by_length.items():
        parts = (memory.weights, memory.activations, memory.cache, memory.scores, memory.logits)
        shared_by = [f"{plans[length].context}"] if devices_share else []
        table.add_row(
            f"{length:,}", *(f"{part / size:,.2f}" for part in (*parts, memory.total)), *shared_by
        )
    return table
