"""Accelerators that programs are planned for: their figures, and devices to compile for.

The compilers run without the device. They are those of the extras `tpu` and `cuda12`.
"""

import contextlib
import difflib
import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rope_jax.errors import UserError

_GIB = 2**30
_HOST_GPUS = 8
# The part of a GPU's memory that JAX reserves and computes in, unless this variable says otherwise.
_FRACTION, _FRACTION_VARIABLE = 0.75, "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True)
class GpuLayout:
    """What the GPU's compiler asks about a chip, as the driver reports it; sizes in bytes."""

    capability: int
    cores: int
    fpus_per_core: int
    clock_ghz: float
    shared_memory_per_core: int
    shared_memory_per_block: int
    l2_cache: int


@dataclass(frozen=True)
class Chip:
    """Figures of one device: bytes, bytes per second, FLOP/s.

    kinds:   how JAX's names of such devices begin.
    memory:  of a TPU, what the compiler lets a program use; of a GPU, what the driver reports.
    flops:   dense products of bfloat16 numbers.
    bandwidth:    between the chip and its memory.
    interconnect: to all neighbours together, or to the switch, in one direction.
    network: to other hosts, in one direction; None: its slices need no network.
    torus:   how many axes its slices have; 0: any device of a host reaches any other directly.
    slices:  such as can be rented, the smallest first; other sizes exist.
    """

    kinds: tuple[str, ...]
    memory: int
    flops: float
    bandwidth: float
    interconnect: float
    source: str
    network: float | None = None
    torus: int = 0
    wraps_at: int = 0
    slices: tuple[str, ...] = ()
    gpu: GpuLayout | None = None

    @property
    def platform(self) -> str:
        """What JAX calls the platform: "tpu" or "gpu"."""
        return "tpu" if self.gpu is None else "gpu"

    @property
    def usable(self) -> int:
        """How much of the memory JAX uses for arrays, in bytes."""
        if self.gpu is None:
            return self.memory
        return int(self.memory * float(os.environ.get(_FRACTION_VARIABLE) or _FRACTION))


_TPU_DOCS = "Cloud TPU documentation, system architecture of TPU {}"
_NVIDIA = "NVIDIA {} data sheet; layout as the driver reports it"
_PLANE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
_COUNTS = ("1", "2", "4", "8", "16", "32", "64")
_HOPPER = GpuLayout(90, 132, 128, 1.98, 233_472, 232_448, 52_428_800)

CHIPS: Mapping[str, Chip] = {
    "v4": Chip(
        kinds=("TPU v4",),
        memory=int(30.75 * _GIB),
        flops=275e12,
        bandwidth=1200e9,
        interconnect=300e9,
        source=_TPU_DOCS.format("v4"),
        torus=3,
        wraps_at=4,
        slices=_CUBES,
    ),
    "v5e": Chip(
        kinds=("TPU v5 lite", "TPU v5e"),
        memory=int(15.75 * _GIB),
        flops=197e12,
        bandwidth=819e9,
        interconnect=200e9,
        source=_TPU_DOCS.format("v5e"),
        torus=2,
        wraps_at=16,
        slices=_PLANE,
    ),
    "v5p": Chip(
        kinds=("TPU v5", "TPU v5p"),
        memory=int(95.74 * _GIB),
        flops=459e12,
        bandwidth=2765e9,
        interconnect=600e9,
        source=_TPU_DOCS.format("v5p"),
        torus=3,
        wraps_at=4,
        slices=_CUBES,
    ),
    "v6e": Chip(
        kinds=("TPU v6 lite", "TPU v6e", "TPU v6"),
        memory=int(31.25 * _GIB),
        flops=918e12,
        bandwidth=1600e9,
        interconnect=400e9,
        source=_TPU_DOCS.format("v6e"),
        torus=2,
        wraps_at=16,
        slices=_PLANE,
    ),
    "a100": Chip(
        kinds=("NVIDIA A100",),
        memory=85_100_068_864,
        flops=312e12,
        bandwidth=2039e9,
        interconnect=300e9,
        network=25e9,
        source=_NVIDIA.format("A100 80GB SXM and DGX A100"),
        slices=_COUNTS,
        gpu=GpuLayout(80, 108, 64, 1.41, 167_936, 166_912, 41_943_040),
    ),
    "h100": Chip(
        kinds=("NVIDIA H100",),
        memory=84_942_979_072,
        flops=989e12,
        bandwidth=3350e9,
        interconnect=450e9,
        network=50e9,
        source=_NVIDIA.format("H100 SXM and DGX H100"),
        slices=_COUNTS,
        gpu=_HOPPER,
    ),
    "h200": Chip(
        kinds=("NVIDIA H200",),
        memory=151_397_597_184,
        flops=989e12,
        bandwidth=4800e9,
        interconnect=450e9,
        network=50e9,
        source=_NVIDIA.format("H200 SXM and DGX H200"),
        slices=_COUNTS,
        gpu=_HOPPER,
    ),
    "b200": Chip(
        kinds=("NVIDIA B200",),
        memory=191_514_411_008,
        flops=2250e12,
        bandwidth=7700e9,
        interconnect=900e9,
        network=50e9,
        source=_NVIDIA.format("HGX B200 and DGX B200"),
        slices=_COUNTS,
        gpu=GpuLayout(100, 148, 128, 1.965, 233_472, 232_448, 132_644_864),
    ),
}
"""The known chips, by the name that a target begins with."""


def chip_of(device_kind: str) -> Chip | None:
    """Return the chip of a device by the name that JAX has for it; None: it is not known."""
    found = [
        (len(kind), chip)
        for chip in CHIPS.values()
        for kind in chip.kinds
        if device_kind.startswith(kind)
    ]
    return max(found, key=lambda entry: entry[0])[1] if found else None


@dataclass(frozen=True)
class Target:
    """Devices that are not here: a slice of TPUs, or hosts of GPUs.

    shape: chips along each axis of the slice; of GPUs, hosts and GPUs in each.
    """

    text: str
    chip: Chip
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    def devices(self) -> Sequence[Any]:
        """Return the devices, which only a compiler can use.

        Call `prepare` before anything imports jax.

        UserError: the compiler is not installed, or there is no such slice.
        """
        return _gpus(self) if self.chip.gpu else _tpus(self)

    def bandwidth(self, group: Sequence[Any]) -> float:
        """Return the bytes per second that a device can send to others of a group, at most.

        group: devices of this target, which exchange arrays along a ring.
        """
        if self.chip.torus:
            link = self.chip.interconnect / (2 * self.chip.torus)
            spanned = zip(*(device.coords for device in group), strict=True)
            # an axis that does not wrap around has one link to each side, and its ends only one
            ways = [
                2 if size % self.chip.wraps_at == 0 else 1
                for size, places in zip(self.shape, spanned, strict=False)
                if len(set(places)) > 1
            ]
            return link * max(1, sum(ways))
        hosts = {device.process_index for device in group}
        if len(hosts) == 1:
            return self.chip.interconnect
        # every GPU of a host has a network card, and a ring for each of them crosses it
        return min(self.chip.interconnect, (self.chip.network or 0) * len(group) / len(hosts))


def parse_target(text: str) -> Target:
    """Read a target, such as v5e:4x4 or h100:8. UserError: there is no such thing."""
    name, colon, size = text.strip().lower().partition(":")
    chip = CHIPS.get(name)
    if chip is None:
        close = difflib.get_close_matches(name, CHIPS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(
            f"target: {text!r} is not one of {', '.join(CHIPS)}, with a size, as in v5e:4x4 or "
            f"h100:8{hint}"
        )
    size = size if colon else chip.slices[0]
    axes = re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})*", size)
    if not axes or size.count("x") != max(0, chip.torus - 1):
        is_like = f"a slice has {chip.torus} axes" if chip.torus else "it is a number of GPUs"
        raise UserError(f"target: {name}:{size}: {is_like}; {_examples(name, chip)}")
    shape = tuple(map(int, size.split("x")))
    if chip.torus:
        return Target(f"{name}:{size}", chip, shape)
    (count,) = shape
    if count > _HOST_GPUS and count % _HOST_GPUS:
        raise UserError(
            f"target: {name}:{count}: a host has {_HOST_GPUS} GPUs, so more than that are a "
            f"multiple; {_examples(name, chip)}"
        )
    per_host = min(count, _HOST_GPUS)
    return Target(f"{name}:{size}", chip, (count // per_host, per_host))


def _examples(name: str, chip: Chip) -> str:
    return f"there are {', '.join(f'{name}:{size}' for size in chip.slices)}"


def prepare() -> None:
    """Let this process use the compilers of devices that are not here, and none that are.

    Call it before anything imports jax: its libraries read the environment when they are loaded.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Without a TPU, libtpu would ask a metadata server, which only machines with TPUs have.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # Any would do; libtpu warns if there is none.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    # Only one process may use a TPU, but any number may compile for one.
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    # Autotuning measures kernels on the device.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()


def _tpus(target: Target) -> Sequence[Any]:
    import jax
    from jax.experimental import topologies

    _check_installed(target, ("libtpu",), "tpu")
    arguments: dict[str, Any] = {}
    if target.count == 1:
        arguments["chips_per_host_bounds"] = (1, 1, 1)  # the default is a host of 2x2
    if "TPU v4" in target.chip.kinds:
        arguments["chip_config_name"] = "megacore"  # its two cores as one device
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=target.text, **arguments)
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        name = target.text.partition(":")[0]
        raise UserError(
            f"target: {target.text}: the compiler refuses this slice "
            f"({str(error).splitlines()[0]}); {_examples(name, target.chip)}"
        ) from error
    return found.devices


def _gpus(target: Target) -> Sequence[Any]:
    from jax.experimental import topologies

    _check_installed(target, ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"), "cuda12")
    hosts, per_host = target.shape
    found = topologies.get_topology_desc(
        target.text,
        "cuda",
        target_config=_gpu_text(target.chip),
        topology=f"1x{hosts}x{per_host}",
    )
    return found.devices


def _check_installed(target: Target, modules: Sequence[str], extra: str) -> None:
    """UserError, saying what to install, unless one of these modules is there."""
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):  # of the package around it
            if importlib.util.find_spec(module) is not None:
                return
    raise UserError(
        f"target: {target.text}: its compiler is not installed; pip install 'jax[{extra}]', or "
        f"this package with the extra {extra}"
    )


def _gpu_text(chip: Chip) -> str:
    """Return what XLA calls a GpuTargetConfigProto, in its text form."""
    gpu = chip.gpu
    assert gpu is not None
    return f"""
        platform_name: "CUDA"
        device_description_str: "{chip.kinds[0]}"
        dnn_version_info {{ major: 9 minor: 10 }}
        gpu_device_info {{
          cuda_compute_capability {{ major: {gpu.capability // 10} minor: {gpu.capability % 10} }}
          core_count: {gpu.cores}
          fpus_per_core: {gpu.fpus_per_core}
          clock_rate_ghz: {gpu.clock_ghz}
          device_memory_size: {chip.memory}
          memory_bandwidth: {int(chip.bandwidth)}
          l2_cache_size: {gpu.l2_cache}
          shared_memory_per_core: {gpu.shared_memory_per_core}
          shared_memory_per_block_optin: {gpu.shared_memory_per_block}
          shared_memory_per_block: 49152
          threads_per_block_limit: 1024
          threads_per_core_limit: 2048
          threads_per_warp: 32
          registers_per_core_limit: 65536
          registers_per_block_limit: 65536
          block_dim_limit_x: 2147483647
          block_dim_limit_y: 65535
          block_dim_limit_z: 65535
        }}
    """
