"""Known accelerators: their memory and speed, by the names that JAX has for them."""

import os
from collections.abc import Mapping
from typing import NamedTuple

# The part of a GPU's memory that JAX reserves and computes in, unless this variable says otherwise.
_FRACTION, _FRACTION_VARIABLE = 0.75, "XLA_PYTHON_CLIENT_MEM_FRACTION"
_GIB = 2**30


class Chip(NamedTuple):
    """Figures of one accelerator.

    kinds:  how JAX's names of such devices begin.
    memory: bytes: of a TPU, what the compiler lets a program use; of a GPU, what the driver says.
    flops:  per second, in dense products of bfloat16 numbers.
    """

    kinds: tuple[str, ...]
    memory: int
    flops: float

    @property
    def platform(self) -> str:
        return "gpu" if self.kinds[0].startswith("NVIDIA") else "tpu"

    @property
    def usable(self) -> int:
        """Bytes that JAX uses for arrays."""
        if self.platform == "tpu":
            return self.memory
        return int(self.memory * float(os.environ.get(_FRACTION_VARIABLE) or _FRACTION))


# Sources: Cloud TPU documentation, "system architecture"; NVIDIA's data sheets of A100 80GB SXM,
# H100 SXM, H200 SXM and HGX B200.
CHIPS: Mapping[str, Chip] = {
    "v4": Chip(("TPU v4",), int(30.75 * _GIB), 275e12),
    "v5e": Chip(("TPU v5 lite", "TPU v5e"), int(15.75 * _GIB), 197e12),
    "v5p": Chip(("TPU v5", "TPU v5p"), int(95.74 * _GIB), 459e12),
    "v6e": Chip(("TPU v6 lite", "TPU v6e", "TPU v6"), int(31.25 * _GIB), 918e12),
    "a100": Chip(("NVIDIA A100",), 85_100_068_864, 312e12),
    "h100": Chip(("NVIDIA H100",), 84_942_979_072, 989e12),
    "h200": Chip(("NVIDIA H200",), 151_397_597_184, 989e12),
    "b200": Chip(("NVIDIA B200",), 191_514_411_008, 2250e12),
}


def chip_of(device_kind: str) -> Chip | None:
    """Return the chip of a device by the name that JAX has for it, or None if it is not known."""
    known = {kind: chip for chip in CHIPS.values() for kind in chip.kinds}
    return known.get(max(filter(device_kind.startswith, known), key=len, default=""))
