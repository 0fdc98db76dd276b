"""The instruction sets that the kernels are compiled for, and the calls that reach them."""

import ctypes

import pytest

from rope_jax.kernels import loading, projections
from rope_jax.kernels.naming import library

SETS = ["generic", "avx2", "avx512"]


@pytest.fixture(params=SETS)
def instruction_set(request):
    """Run the kernels for one instruction set, if this processor has it."""
    yield from chosen(request.param)


@pytest.fixture(params=[*SETS, "avx512_bf16"])
def rounding_set(request, monkeypatch):
    """The same for products of rounded factors, of which one more set has its own."""
    monkeypatch.setattr(projections, "has_amx", lambda: False)  # else they would be XLA's
    yield from chosen(request.param)


def chosen(name):
    kernels = ctypes.CDLL(str(library()))
    kernels.choose_instruction_set.restype = ctypes.c_bool
    usual = loading.load_kernels()
    if not kernels.choose_instruction_set(name.encode()):
        pytest.skip(f"this processor has no {name}, or the compiler does not know it")
    yield name
    kernels.choose_instruction_set(usual.encode())


@pytest.fixture
def few_tokens(monkeypatch):
    """Have even a single token multiplied by the kernels."""
    monkeypatch.setattr(projections, "_FEWEST_TOKENS", 1)
