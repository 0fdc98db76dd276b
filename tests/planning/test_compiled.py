"""What a plan says of compiled programs: the compilers' messages, and the least time."""

import numpy as np
import pytest

from rope_jax.devices.targets import parse_target
from rope_jax.errors import UserError
from rope_jax.planning.compiled import CompiledProgram, check_on_chip, needed_bytes, roofline
from rope_jax.planning.hlo import Exchange, Exchanges


@pytest.mark.parametrize(
    ("message", "gib"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (385.00G) exceeds available HBM (15.75G).",
            385,
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 18.13G of 15.75G hbm. Exceeded hbm capacity by 2.38G.",
            18.13,
        ),
        ("Used 512.5M of 15.75G hbm", 512.5 / 1024),
        ("RESOURCE_EXHAUSTED: out of memory", None),
    ],
)
def test_what_a_program_would_need_is_read_from_the_error(message, gib):
    found = needed_bytes(RuntimeError(message))
    assert found == (None if gib is None else pytest.approx(gib * 2**30))


def test_a_kernel_too_large_for_the_memory_on_the_chip_is_refused_by_name():
    hbm = "Ran out of memory in memory space hbm. Used 18.13G of 15.75G hbm."
    check_on_chip(RuntimeError(hbm), "splash")
    smem = "Ran out of memory in memory space smem. Used 1.50M of 1.00M smem. Exceeded by 513.1K."
    with pytest.raises(UserError, match=r"^model\.attention: .* splash .*smem\. Used 1\.50M of 1"):
        check_on_chip(RuntimeError(smem), "splash")


def test_the_least_time_is_each_part_over_its_speed():
    target = parse_target("h100:8")
    devices = [type("Gpu", (), {"process_index": 0})() for _ in range(8)]
    each = (Exchange("all-gather", 45e6, tuple(range(8)), 100),)
    program = CompiledProgram(
        arguments=1 * 10**9,
        results=1 * 10**9,
        temporary=10**9,
        flops=None,
        seconds=1.0,
        exchanges=Exchanges(each, at_least=False),
    )
    found = roofline(program, 989e12 / 4, target, devices)
    assert found.compute == pytest.approx(0.25)
    assert found.memory == pytest.approx(4e9 / 3350e9)
    assert found.network == pytest.approx(100 * 45e6 / 450e9)
    assert found.overlapping == found.compute
    assert found.in_turn == pytest.approx(np.sum([found.compute, found.memory, found.network]))
