"""What can be configured of devices and processes."""

from typing import Self

from pydantic import (
    Field,
    model_validator,
)

from rope_jax.config.types import Frozen, NonNegativeInt, PositiveInt


class MeshConfig(Frozen):
    """How devices share the work; their product is the number of devices."""

    data: PositiveInt | None = Field(
        None, description="copies of the parameters, the batch split over them; null: what is left"
    )
    fsdp: PositiveInt = Field(1, description="devices that a copy of the parameters is split over")


class DistributedConfig(Frozen):
    """Several processes as one run; each is given its own process_id, all else alike."""

    coordinator: str | None = Field(
        None, description="host:port of process 0; null: as the cluster says (Slurm, TPU, …)"
    )
    num_processes: PositiveInt | None = Field(None, description="how many; null: as above")
    process_id: NonNegativeInt | None = Field(None, description="0 writes; null: as above")
    timeout: PositiveInt = Field(300, description="seconds to wait for all to come")

    @model_validator(mode="after")
    def _all_or_none(self) -> Self:
        given = [self.coordinator, self.num_processes, self.process_id]
        if any(v is None for v in given) and any(v is not None for v in given):
            raise ValueError("give coordinator, num_processes and process_id, or none of them")
        host, _, port = (self.coordinator or "host:1").rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(f"coordinator {self.coordinator!r} is not host:port")
        if self.num_processes and self.process_id and self.process_id >= self.num_processes:
            raise ValueError(
                f"process_id {self.process_id} is not below num_processes {self.num_processes}"
            )
        return self
