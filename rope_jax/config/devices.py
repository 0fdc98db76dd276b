"""Schemas of the device mesh and of several processes, and which models a mesh can split."""

from collections.abc import Iterable

from pydantic import Field, model_validator

from rope_jax.blocks import LatentAttention
from rope_jax.config.model import ModelConfig
from rope_jax.config.types import Count, Frozen, NonNegativeInt, PositiveInt
from rope_jax.positions.maps import PositionMap


class MeshConfig(Frozen):
    """How devices share the work; data × fsdp × context × tensor is the number of devices."""

    data: PositiveInt | None = Field(
        None, description="copies of the parameters, which share the batch; null: as many as fit"
    )
    fsdp: PositiveInt = Field(1, description="devices that split parameters and batch")
    context: PositiveInt = Field(1, description="devices that split the tokens of each window")
    tensor: PositiveInt = Field(1, description="devices that split heads, MLP and vocabulary")


class DistributedConfig(Frozen):
    """Several processes as one run; they differ only in process_id."""

    coordinator: str | None = Field(None, description="host:port of process 0; null: detected")
    num_processes: Count | None = Field(None, description="null: detected from the cluster")
    process_id: NonNegativeInt | None = Field(None, description="0 writes files; null: detected")
    timeout: PositiveInt = Field(300, description="seconds to wait for all processes")

    @model_validator(mode="after")
    def _all_or_none(self) -> "DistributedConfig":
        given = [self.coordinator, self.num_processes, self.process_id]
        if given.count(None) not in (0, 3):
            raise ValueError("give all of coordinator, num_processes and process_id, or none")
        host, _, port = (self.coordinator or "host:1").rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(f"coordinator {self.coordinator!r} is not host:port")
        if self.num_processes and self.process_id and self.process_id >= self.num_processes:
            raise ValueError(
                f"process_id {self.process_id} is not less than num_processes {self.num_processes}"
            )
        return self


def check_mesh(mesh: MeshConfig, model: ModelConfig, maps: Iterable[PositionMap | None]) -> None:
    """ValueError, which begins with a key, if devices cannot share a model's windows or heads."""
    _check_divides("fsdp", mesh.fsdp, "hidden_size", model.hidden_size)
    if isinstance(latent := model.self_attention, LatentAttention.Config):
        for key in ("q_lora_rank", "kv_lora_rank"):
            _check_divides("fsdp", mesh.fsdp, f"self_attention.{key}", getattr(latent, key) or 0)
    _check_divides("tensor", mesh.tensor, "num_attention_heads", model.num_attention_heads)
    _check_divides("tensor", mesh.tensor, "num_key_value_heads", model.kv_heads)
    spec = model.spec()
    for feed_forward, _ in spec.stacks.values():
        for key, size in feed_forward.hidden_sizes(spec).items():
            _check_divides("tensor", mesh.tensor, key, size)
    if mesh.context > 1 and not model.backend.splits_windows:
        raise ValueError(
            f"mesh.context: attention {model.attention} needs whole windows, so {mesh.context} "
            "devices cannot share one; use blockwise, xla or splash, or mesh.context=1"
        )
    reason = None
    if model.position.differs_by_head:
        reason = f"position {model.position.type} has numbers of its own for each head"
    elif model.qk_norm == "all_heads":
        reason = "model.qk_norm all_heads divides by the norm of all heads together"
    elif differ_by_head(maps):
        reason = "map fitted has numbers of its own for each head"
    if mesh.tensor > 1 and reason is not None:
        raise ValueError(
            f"mesh.tensor: {reason}, so {mesh.tensor} devices cannot share the heads; use "
            "mesh.fsdp instead"
        )


def check_vocabulary(mesh: MeshConfig, vocab_size: int) -> None:
    """ValueError, which begins with a key, if devices cannot share a model's vocabulary."""
    _check_divides("tensor", mesh.tensor, "vocab_size", vocab_size)


def check_seq_len(mesh: MeshConfig, seq_len: int) -> None:
    """ValueError if windows of this length do not consist of two equal chunks for each device."""
    if seq_len % (chunks := 1 if mesh.context == 1 else 2 * mesh.context):
        raise ValueError(
            f"{seq_len:,} tokens cannot be split into {chunks} equal chunks, two for each of "
            f"mesh.context {mesh.context} devices; {_multiple(seq_len, chunks):,} can"
        )


def differ_by_head(maps: Iterable[PositionMap | None]) -> bool:
    """Whether any of these maps has numbers for each head."""
    return any(map_ is not None and map_.differs_by_head for map_ in maps)


def _check_divides(axis: str, devices: int, key: str, size: int) -> None:
    if size % devices:
        fewer = max(number for number in range(1, devices) if size % number == 0)
        raise ValueError(
            f"mesh.{axis}: model.{key} {size:,} cannot be split over {devices:,} devices; "
            f"model.{key}={_multiple(size, devices)} or mesh.{axis}={fewer} can"
        )


def _multiple(size: int, of: int) -> int:
    """Return the smallest multiple that is not below `size`."""
    return -(-size // of) * of
