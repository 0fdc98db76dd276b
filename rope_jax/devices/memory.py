"""How much memory a device has, whatever other processes use, and errors that it is too little."""

import contextlib
import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import jax

from rope_jax.devices import processes
from rope_jax.devices.chips import chip_of
from rope_jax.errors import UserError

# What Python, JAX and small programs themselves take, and what they map beyond that, measured.
_OWN_BYTES, _UNUSED_ADDRESSES = 2**28, 4 * 2**28


def device_bytes(device: jax.Device | None = None) -> float:
    """Memory that a device, or the first one here, has for arrays, in bytes; inf if unknown.

    The devices of a CPU share the host's memory equally, after what the process itself takes.
    """
    if is_host_memory(device):
        return max(0, host_bytes() - _OWN_BYTES) / jax.local_device_count()
    device = device or jax.local_devices()[0]
    try:
        return float((device.memory_stats() or {}).get("bytes_limit", math.inf))
    except jax.errors.JaxRuntimeError:  # it is not here
        chip = chip_of(device.device_kind)
        return math.inf if chip is None else float(chip.usable)


def is_host_memory(device: jax.Device | None = None) -> bool:
    """Whether the memory of a device, or the first one here, is the host's, as on a CPU."""
    return bool((device or jax.local_devices()[0]).platform == "cpu")


def host_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may use: physical memory, or the lowest limit on it.

    The limits are those of its cgroup and of all cgroups around that one (as Slurm, Docker and
    Kubernetes set them), and `ulimit -v` and `ulimit -d`. root: the folder that contains proc/.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits(root)]
    # most of the addresses that libraries map take no memory
    for kind, unused in ((resource.RLIMIT_DATA, 0), (resource.RLIMIT_AS, _UNUSED_ADDRESSES)):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            limits.append(max(0, limit - unused))
    return min(limits)


def program_bytes(
    compiled: jax.stages.Compiled, calls: int = 1, device: jax.Device | None = None
) -> int:
    """Return the compiler's figure for a program's memory on each device; 0: it does not say.

    An argument whose memory the results reuse counts once. If there are several calls, the next one
    is dispatched while one runs, and a CPU then has the temporary arrays of both.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        return 0
    device = device or jax.local_devices()[0]
    if device.platform == "tpu":  # the sum of the parts exceeds what its compiler says and accepts
        return int(memory.peak_memory_in_bytes)
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    temporary = memory.temp_size_in_bytes * (min(calls, 2) if is_host_memory(device) else 1)
    return int(memory.argument_size_in_bytes + results + temporary)


def least_available(device: jax.Device | None = None) -> float | int:
    """Return the least `device_bytes` of all processes, which must call this together."""
    return processes.min_over_hosts(device_bytes(device))


def check_fits(
    what: str, needed: float | int, available: float | int, advice: str, where: str = "per device"
) -> None:
    """UserError if `what`, such as "lengths: 64 tokens take", needs more bytes than available."""
    if needed > available:
        raise UserError(
            f"{what} at least {in_gib(needed)} GiB {where}, but there are only "
            f"{in_gib(max(available, 0))}; {advice}"
        )


def in_gib(size: float | int) -> str:
    """Format bytes as GiB, with three digits or more, so that no amount is shown as 0."""
    gib = size / 2**30
    return f"{gib:,.1f}" if gib >= 0.95 or gib == 0 else f"{gib:.2g}"


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yield every limit on the path from this process's cgroup to the root, in versions 1 and 2.

    In a container this path may be that of the host, of which only the root is there.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):  # not Linux
        lines = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        top, name = root / "sys/fs/cgroup", "memory.max"
        if "memory" in controllers.split(","):  # version 1
            top, name = top / "memory", "memory.limit_in_bytes"
        inside = PurePosixPath(path.lstrip("/"))
        for folder in (inside, *inside.parents):
            with contextlib.suppress(OSError, ValueError):  # absent, or "max"
                limit = int((top / folder / name).read_text())
                if limit >= 0:  # emulations of version 1 write -1 for no limit
                    yield limit
