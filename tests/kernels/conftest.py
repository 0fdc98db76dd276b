"""The instruction sets that the kernels are compiled for, and the calls that reach them."""

import ctypes

import pytest

from rope_jax.kernels import loading, projections
from rope_jax.kernels.naming import library


@pytest.fixture
def choose(monkeypatch):
    """Return a function that runs the kernels for one instruction set, or skips the test.

    Even a single token is multiplied by them, also on a CPU with AMX.
    """
    if (usual := loading.load_kernels()) is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(projections, "has_amx", lambda: False)
    monkeypatch.setattr(projections, "_FEWEST_TOKENS", 1)
    kernels = ctypes.CDLL(str(library()))
    kernels.choose_instruction_set.restype = ctypes.c_bool

    def choose(name):
        if name != "best" and not kernels.choose_instruction_set(name.encode()):
            pytest.skip(f"this processor has no {name}, or the compiler does not know it")

    yield choose
    kernels.choose_instruction_set(usual.encode())
