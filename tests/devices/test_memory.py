"""How much memory a process may use, what a program takes, and errors that say it is too little."""

import resource
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rope_jax.devices import memory
from rope_jax.devices.memory import device_bytes, host_bytes, in_gib, program_bytes
from rope_jax.errors import UserError, shortage_as

PHYSICAL = 2**40
TOP = "sys/fs/cgroup"


@pytest.fixture(autouse=True)
def _physical(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_PHYS_PAGES": PHYSICAL // 2**12, "SC_PAGE_SIZE": 2**12}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("", {}, PHYSICAL),
        ("nonsense\n", {}, PHYSICAL),
        ("0::/a/b\n", {f"{TOP}/a/b/memory.max": "max\n"}, PHYSICAL),
        # its own limit, one of a cgroup around it, and one of the root of a container
        ("0::/a/b\n", {f"{TOP}/a/b/memory.max": f"{2**30}\n"}, 2**30),
        ("0::/a/b\n", {f"{TOP}/a/memory.max": "9", f"{TOP}/a/b/memory.max": "10"}, 9),
        ("0::/a/b\n", {f"{TOP}/memory.max": f"{2**31}\n"}, 2**31),
        # one of somebody else
        ("0::/a/b\n", {f"{TOP}/a/c/memory.max": f"{2**30}\n"}, PHYSICAL),
        # above the namespace's root, whose own limit is all that can be seen
        ("0::/../x\n", {f"{TOP}/memory.max": f"{2**32}\n"}, 2**32),
        # version 1, where 2^63 less a page means no limit
        ("4:cpu,memory:/a/b\n", {f"{TOP}/memory/a/memory.limit_in_bytes": "4096"}, 4096),
        ("4:memory:/a\n", {f"{TOP}/memory/memory.limit_in_bytes": f"{2**63 - 4096}"}, PHYSICAL),
        # both versions at once, in a container of which only a part is seen
        ("4:memory:/d/ab\n0::/c\n", {f"{TOP}/memory/memory.limit_in_bytes": "4096"}, 4096),
    ],
)
def test_every_cgroup_around_a_process_limits_it(
    tmp_path: Path, cgroup: str, limits: dict[str, str], expected: int
) -> None:
    write(tmp_path, {"proc/self/cgroup": cgroup} | limits)
    assert host_bytes(tmp_path) == expected


@pytest.mark.parametrize(
    ("kind", "limit", "expected"),
    [
        (resource.RLIMIT_DATA, 2**30, 2**30),
        (resource.RLIMIT_AS, 2**32, 3 * 2**30),  # a quarter of it is mapped by libraries
        (resource.RLIMIT_AS, 2**20, 0),
    ],
)
def test_ulimit_limits_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, limit: int, expected: int
) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    limits = {kind: (limit, resource.RLIM_INFINITY)}
    monkeypatch.setattr("resource.getrlimit", lambda asked: limits.get(asked, unlimited))
    assert host_bytes(tmp_path) == expected


def test_the_devices_of_a_cpu_share_what_the_process_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "host_bytes", lambda: 2**32 + 2**28)
    assert device_bytes() == 2**32
    monkeypatch.setattr("jax.local_device_count", lambda: 8)
    assert device_bytes() == 2**29
    monkeypatch.setattr(memory, "host_bytes", lambda: 1)
    assert device_bytes() == 0


def test_a_cpu_has_the_temporary_arrays_of_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    compiled = jax.jit(lambda x: (x @ x) @ x).lower(x).compile()
    one, two, three = (program_bytes(compiled, calls) for calls in (1, 2, 3))
    assert two - one == compiled.memory_analysis().temp_size_in_bytes >= 2**22
    assert three == two
    monkeypatch.setattr(memory, "is_host_memory", lambda *_: False)
    assert program_bytes(compiled, 2) == one


def test_an_argument_that_results_reuse_counts_once() -> None:
    x = jax.ShapeDtypeStruct((1024,), jnp.float32)
    copied = jax.jit(lambda x: x + 1).lower(x).compile()
    donated = jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile()
    assert program_bytes(copied) == 2 * 4096
    assert program_bytes(donated) == 4096


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "^lower it$"),
        (MemoryError("Unable to allocate 15.6 TiB for an array"), "^lower it$"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nand\nso"), "^lower it$"),
        (RuntimeError("std::bad_alloc"), "^lower it$"),
        (ValueError("a shape"), "a shape"),
        (UserError("disk: RESOURCE_EXHAUSTED"), "disk: RESOURCE_EXHAUSTED"),
    ],
)
def test_a_shortage_is_one_line_and_other_errors_pass(error: Exception, says: str) -> None:
    kind = UserError if "lower" in says else type(error)
    with pytest.raises(kind, match=says), shortage_as("lower it"):
        raise error


def test_an_allocation_that_fails_in_xla_is_a_shortage() -> None:
    with pytest.raises(UserError, match=r"^lower it$"), shortage_as("lower it"):
        jnp.ones((2**31 - 1, 2**20), jnp.float32).block_until_ready()


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.0"), (10 * 2**30, "10.0"), (2**20, "0.00098"), (2**42, "4,096.0")]
)
def test_sizes_are_shown_in_gib(size: int, text: str) -> None:
    assert in_gib(size) == text
