"""Schemas of the device mesh and of several processes."""

from typing import Literal

from pydantic import Field, model_validator

from rope_jax.config.types import Count, Frozen, NonNegativeInt, PositiveInt


class MeshConfig(Frozen):
    """How devices share the work; data × fsdp × context × tensor is the number of devices."""

    data: PositiveInt | None = Field(None, description="copies of the parameters; null: what fits")
    fsdp: PositiveInt = Field(1, description="devices that split parameters and batch")
    context: PositiveInt = Field(1, description="devices that split the tokens of each window")
    tensor: PositiveInt = Field(1, description="devices that split heads, MLP and vocabulary")

    def check_split(self, axis: Literal["fsdp", "tensor"], key: str, size: int) -> None:
        """ValueError, which names both keys, if an axis cannot split the size `model.KEY`."""
        devices: int = getattr(self, axis)
        if size % devices:
            fewer = max(number for number in range(1, devices) if size % number == 0)
            raise ValueError(
                f"mesh.{axis}: model.{key} {size:,} cannot be split over {devices:,} devices; "
                f"model.{key}={_multiple(size, devices)} or mesh.{axis}={fewer} can"
            )

    def check_seq_len(self, seq_len: int) -> None:
        """ValueError if such windows do not consist of two equal chunks for each device."""
        if seq_len % (chunks := 1 if self.context == 1 else 2 * self.context):
            raise ValueError(
                f"{seq_len:,} tokens cannot be split into {chunks} equal chunks, two for each of "
                f"mesh.context {self.context} devices; {_multiple(seq_len, chunks):,} can"
            )


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


def _multiple(size: int, of: int) -> int:
    """Return the smallest multiple that is not below `size`."""
    return -(-size // of) * of
