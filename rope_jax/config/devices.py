"""Schemas of the device mesh and of runs with several processes."""

from typing import Annotated

from pydantic import Field, model_validator

from rope_jax.config.types import Frozen, NonNegativeInt, PositiveInt
from rope_jax.rope.numbers import Whole


class MeshConfig(Frozen):
    """How devices share the work; data × fsdp × context × tensor is the number of devices."""

    data: PositiveInt | None = Field(
        None,
        description="number of copies of the parameters; the batch is split over them; "
        "null: as many as the devices allow",
    )
    fsdp: PositiveInt = Field(
        1,
        description="number of devices that each copy of the parameters is split over, and the "
        "batch with them; each layer is gathered where it is computed",
    )
    context: PositiveInt = Field(
        1, description="number of devices that the tokens of each window are split over"
    )
    tensor: PositiveInt = Field(
        1,
        description="number of devices that the heads, the MLP's hidden layer and the vocabulary "
        "are split over",
    )


class DistributedConfig(Frozen):
    """Several processes as one run; they differ only in process_id."""

    coordinator: str | None = Field(
        None, description="host:port of process 0; null: detected from the cluster (Slurm, TPU, …)"
    )
    num_processes: Annotated[int, Field(gt=0, le=2**16), Whole] | None = Field(
        None, description="number of processes; null: detected from the cluster"
    )
    process_id: NonNegativeInt | None = Field(
        None,
        description="this process's number; process 0 writes the files; "
        "null: detected from the cluster",
    )
    timeout: Annotated[int, Field(gt=0, le=7 * 24 * 3600), Whole] = Field(
        300, description="seconds to wait for all processes to connect"
    )

    @model_validator(mode="after")
    def _all_or_none(self) -> "DistributedConfig":
        given = [self.coordinator, self.num_processes, self.process_id]
        if any(v is None for v in given) and any(v is not None for v in given):
            raise ValueError("give all of coordinator, num_processes and process_id, or none")
        host, _, port = (self.coordinator or "host:1").rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(f"coordinator {self.coordinator!r} is not host:port")
        if self.num_processes and self.process_id and self.process_id >= self.num_processes:
            raise ValueError(
                f"process_id {self.process_id} is not less than num_processes {self.num_processes}"
            )
        return self
