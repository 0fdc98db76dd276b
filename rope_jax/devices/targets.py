"""Known accelerators, and slices of them that are not here, such as v5e:4x4 or h100:8.

Their compilers are those of the extras `tpu` and `cuda12`. Imported before jax.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rope_jax.config.messages import explain_type
from rope_jax.errors import UserError
from rope_jax.extras import install_line, is_installed

# The part of a GPU's memory that JAX reserves and computes in, unless this variable says otherwise.
_FRACTION, _FRACTION_VARIABLE = 0.75, "XLA_PYTHON_CLIENT_MEM_FRACTION"
_HOST_GPUS = 8
# Sizes of targets by the number of a chip's axes: the smallest, and one to show.
_SMALLEST, _EXAMPLES = {0: "1", 2: "1x1", 3: "2x2x1"}, {0: "8", 2: "4x4", 3: "2x2x4"}
_GIB = 2**30


# A GPU as XLA's compiler wants it described, a GpuTargetConfigProto, with the figures that the
# driver reports. What has a number here is the same for all of them.
_GPU = """
    platform_name: "CUDA"
    device_description_str: "{kind}"
    dnn_version_info {{ major: 9 minor: 10 }}
    gpu_device_info {{
        cuda_compute_capability {{ major: {} minor: 0 }}
        core_count: {} fpus_per_core: {} clock_rate_ghz: {}
        shared_memory_per_core: {} shared_memory_per_block_optin: {} l2_cache_size: {}
        memory_bandwidth: {} device_memory_size: {memory} shared_memory_per_block: 49152
        threads_per_block_limit: 1024 threads_per_core_limit: 2048 threads_per_warp: 32
        registers_per_core_limit: 65536 registers_per_block_limit: 65536
        block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
    }}
"""


class Chip(NamedTuple):
    """Figures of one accelerator.

    kinds:  how JAX's names of such devices begin.
    memory: bytes: of a TPU, what the compiler lets a program use; of a GPU, what the driver says.
    flops:  per second, in dense products of bfloat16 numbers.
    axes:   of a slice of TPUs; 0: GPUs, in hosts.
    gpu:    of a GPU, the figures in `_GPU`.
    """

    kinds: tuple[str, ...]
    memory: int
    flops: float
    axes: int = 0
    gpu: tuple[float | int, ...] | None = None

    @property
    def platform(self) -> str:
        return "tpu" if self.gpu is None else "gpu"

    @property
    def usable(self) -> int:
        """Bytes that JAX uses for arrays."""
        if self.gpu is None:
            return self.memory
        return int(self.memory * float(os.environ.get(_FRACTION_VARIABLE) or _FRACTION))


_A100 = (8, 108, 64, 1.41, 167_936, 166_912, 41_943_040, 2_039 * 10**9)
_H100 = (9, 132, 128, 1.98, 233_472, 232_448, 52_428_800, 3_350 * 10**9)
_H200 = (*_H100[:-1], 4_800 * 10**9)
_B200 = (10, 148, 128, 1.965, 233_472, 232_448, 132_644_864, 7_700 * 10**9)
# Sources: Cloud TPU documentation, "system architecture"; NVIDIA's data sheets of A100 80GB SXM,
# H100 SXM, H200 SXM and HGX B200.
CHIPS: Mapping[str, Chip] = {
    "v4": Chip(("TPU v4",), int(30.75 * _GIB), 275e12, axes=3),
    "v5e": Chip(("TPU v5 lite", "TPU v5e"), int(15.75 * _GIB), 197e12, axes=2),
    "v5p": Chip(("TPU v5", "TPU v5p"), int(95.74 * _GIB), 459e12, axes=3),
    "v6e": Chip(("TPU v6 lite", "TPU v6e", "TPU v6"), int(31.25 * _GIB), 918e12, axes=2),
    "a100": Chip(("NVIDIA A100",), 85_100_068_864, 312e12, gpu=_A100),
    "h100": Chip(("NVIDIA H100",), 84_942_979_072, 989e12, gpu=_H100),
    "h200": Chip(("NVIDIA H200",), 151_397_597_184, 989e12, gpu=_H200),
    "b200": Chip(("NVIDIA B200",), 191_514_411_008, 2250e12, gpu=_B200),
}
"""The known accelerators, by the name that a target begins with."""


def chip_of(device_kind: str) -> Chip | None:
    """Return the chip of a device by the name that JAX has for it; None if it is not known."""
    known = {kind: chip for chip in CHIPS.values() for kind in chip.kinds}
    return known.get(max(filter(device_kind.startswith, known), key=len, default=""))


@dataclass(frozen=True)
class Target:
    """A slice of TPUs, with the chips along each axis as shape, or hosts of GPUs: hosts, GPUs."""

    text: str
    chip: Chip
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def devices(self) -> Sequence[Any]:
        """Return the devices, for a compiler alone; call `prepare` first. UserError: none such."""
        import jax
        from jax.experimental import topologies

        extra, *modules = ("tpu", "libtpu") if self.chip.gpu is None else _GPU_COMPILERS
        if not any(map(is_installed, modules)):
            advice = f"install it with {install_line(extra)}"
            raise UserError(f"target: {self.text} needs its compiler; {advice}")
        platform, how = "tpu", dict[str, Any]()
        if self.chip.gpu is not None:
            gpu = _GPU.format(*self.chip.gpu, kind=self.chip.kinds[0], memory=self.chip.memory)
            platform, topology = "cuda", "1x{}x{}".format(*self.shape)
            how = {"target_config": gpu, "topology": topology}
        elif self.count == 1:
            how["chips_per_host_bounds"] = (1, 1, 1)  # the default is a host of 2x2
        if "TPU v4" in self.chip.kinds:
            how["chip_config_name"] = "megacore"  # its two cores as one device
        try:
            return topologies.get_topology_desc(self.text, platform, **how).devices
        except jax.errors.JaxRuntimeError as error:
            what = f"the compiler refuses this slice ({str(error).splitlines()[0]})"
            other = f"{self.text.partition(':')[0]}:{_EXAMPLES[self.chip.axes]}"
            raise UserError(f"target: {self.text}: {what}; another is {other}") from error


_GPU_COMPILERS = "cuda12", "jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"


def parse_target(text: str) -> Target:
    """Read a target, such as v5e:4x4 or h100:8; a chip alone is its smallest slice."""
    name, colon, size = text.strip().lower().partition(":")
    if name not in CHIPS:
        raise UserError(f"target: {explain_type(name, tuple(CHIPS))}; as in v5e:4x4 or h100:8")
    chip = CHIPS[name]
    full = f"{name}:{size if colon else _SMALLEST[chip.axes]}"
    axes = max(1, chip.axes)
    if not re.fullmatch(rf"\w+:[1-9]\d{{0,3}}(x[1-9]\d{{0,3}}){{{axes - 1}}}", full):
        is_like = f"a slice has {chip.axes} axes" if chip.axes else "it is a number of GPUs"
        raise UserError(f"target: {full}: {is_like}, as in {name}:{_EXAMPLES[chip.axes]}")
    shape = tuple(map(int, full.partition(":")[2].split("x")))
    if not chip.axes:
        per_host = min(shape[0], _HOST_GPUS)
        if shape[0] % per_host:
            more = f"a host has {_HOST_GPUS} GPUs, so more are a multiple of that"
            raise UserError(f"target: {full}: {more}")
        shape = (shape[0] // per_host, per_host)
    return Target(full, chip, shape)


def prepare() -> None:
    """Let this process use the compilers of devices that are not here; call it before any jax."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        # Without a TPU, libtpu would ask a metadata server, which only machines with TPUs have.
        "TPU_SKIP_MDS_QUERY": "1",
        # Only one process may use a TPU, but any number may compile for one.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # Autotuning measures kernels on the device.
        "XLA_FLAGS": f"{flags} --xla_gpu_autotune_level=0".strip(),
    }
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # Any would do; libtpu warns if there is none.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
