"""How the kernels are compiled, and how it is reported where they cannot be."""

import ctypes
import importlib.metadata
import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

from rope_jax.kernels.naming import library
from tests.compiled import needs_kernels
from tests.kernels.arrays import EACH_ROUNDED

ROOT = Path(__file__).parents[2]

pytestmark = needs_kernels


@pytest.fixture
def sources(tmp_path):
    """A copy of the kernels' sources, which nothing else reads, and its build.py."""
    for file in (ROOT / "rope_jax" / "kernels").iterdir():
        if file.suffix in (".cc", ".h", ".py"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    spec = importlib.util.spec_from_file_location("build", tmp_path / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build, tmp_path


FAILING = f"{sys.executable} -c 'import sys; sys.exit(\"error: no luck\")'"


@pytest.mark.parametrize(
    ("compiler", "problem"),
    [
        (None, "there is no C++ compiler"),
        ("  ", "there is no C++ compiler"),
        ("/nonexistent/c++", "No such file"),
        ("c++ 'open", "quotation"),
        (FAILING, "failed: error: no luck"),
    ],
)
def test_without_a_working_compiler_the_reason_is_returned(sources, monkeypatch, compiler, problem):
    build, folder = sources
    (folder / "kernels-0123.so").write_bytes(b"of older sources")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    if compiler is not None:
        monkeypatch.setenv("CXX", compiler)
    assert problem in build.compile_kernels()
    assert not list(folder.glob("*.so*"))  # neither older ones nor anything half-written


def test_kernels_without_jaxlib_are_not_compiled(sources, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    problem = sources[0].compile_kernels()
    assert problem == "jaxlib, whose headers they need, is not installed"


@pytest.mark.parametrize("changed", ["attention.cc", "kernels.h", "build.py", "jaxlib"])
def test_kernels_of_other_sources_or_another_jaxlib_are_not_found(sources, monkeypatch, changed):
    _, folder = sources

    def name():
        return runpy.run_path(str(folder / "naming.py"))["library"]().name

    assert name() == library().name  # the sources are the same
    if changed == "jaxlib":
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    else:
        with (folder / changed).open("a") as file:
            file.write("\n")
    assert name() != library().name


@pytest.mark.slow
def test_the_sources_compile_without_warnings_also_without_bfloat16(sources, monkeypatch):
    build, folder = sources
    flags = ["-O0", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror"]
    flags.append("-Wno-stringop-overread")  # of branches that are only removed when optimizing
    monkeypatch.setattr(build, "_BFLOAT16", ("avx512_bf16", (["-mno-such-set"], 16, 8)))
    monkeypatch.setattr(build, "COMMON", [*build.COMMON[1:], *flags])
    assert build.compile_kernels() is None
    kernels = ctypes.CDLL(str(next(folder.glob("*.so"))))
    kernels.choose_instruction_set.restype = ctypes.c_bool
    assert kernels.choose_instruction_set(b"generic")
    assert not kernels.choose_instruction_set(b"avx512_bf16")


@pytest.mark.parametrize(
    ("flags", "newest"),
    [
        ("--xla_cpu_max_isa=SSE4_2 --xla_dump_to=x", "generic"),
        ("--xla_cpu_max_isa=SSE4_2 --xla_cpu_max_isa=avx2\t--xla_dump_to=x", "avx2"),
        ("--xla_cpu_max_isa=AVX512", "avx512"),
        ("--xla_cpu_max_isa=AMX", "avx512_bf16"),
    ],
)
def test_xlas_limit_of_instruction_sets_holds_for_the_kernels(tmp_path, monkeypatch, flags, newest):
    def chosen(flags):
        monkeypatch.setenv("XLA_FLAGS", flags)
        copy = tmp_path / f"{len(list(tmp_path.iterdir()))}.so"  # of which nothing is loaded yet
        copy.write_bytes(library().read_bytes())
        kernels = ctypes.CDLL(str(copy))
        kernels.instruction_set.restype = ctypes.c_char_p
        return EACH_ROUNDED.index(kernels.instruction_set().decode())  # the newest comes last

    assert chosen(flags) == min(EACH_ROUNDED.index(newest), chosen(""))
