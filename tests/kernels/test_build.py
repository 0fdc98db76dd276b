"""How the kernels are compiled, and what is said where they cannot be."""

import ctypes
import importlib.metadata
import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from rope_jax.kernels import loading
from rope_jax.kernels.naming import library

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(loading.load_kernels() is None, reason="there is no C++ compiler")


def build_module(folder):
    spec = importlib.util.spec_from_file_location("build", folder / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sources(tmp_path):
    """A copy of the kernels' sources, which nothing else reads."""
    for file in (ROOT / "rope_jax" / "kernels").iterdir():
        if file.suffix in (".cc", ".h", ".py"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return build_module(tmp_path), tmp_path


def test_no_compiler_is_no_error(sources, monkeypatch):
    build, folder = sources
    (folder / "kernels-0123.so").write_bytes(b"of older sources")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert build.compile_kernels().startswith("there is no C++ compiler")
    assert not list(folder.glob("*.so"))  # it would not belong to these sources


def test_an_error_of_the_compiler_is_told_in_one_line(sources, monkeypatch):
    build, folder = sources
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import sys; sys.exit(\"error: no luck\")'")
    assert build.compile_kernels().endswith("failed: error: no luck")
    assert not list(folder.glob("*.so*"))  # nothing half-written


@pytest.mark.parametrize(
    ("compiler", "problem"),
    [("/nonexistent/c++", "No such file"), ("c++ 'open", "quotation"), ("  ", "there is no C++")],
)
def test_a_cxx_that_cannot_be_run_is_told_too(sources, monkeypatch, compiler, problem):
    build, folder = sources
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert problem in build.compile_kernels()
    assert not list(folder.glob("*.so*"))


def test_kernels_without_jaxlib_are_not_compiled(sources, monkeypatch):
    build, _ = sources

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert build.compile_kernels() == "jaxlib, whose headers they need, is not installed"


@pytest.mark.parametrize("changed", ["attention.cc", "kernels.h", "build.py", "jaxlib"])
def test_kernels_of_other_sources_or_another_jaxlib_are_not_found(sources, monkeypatch, changed):
    _, folder = sources
    name_of = runpy.run_path(str(folder / "naming.py"))["library"]
    before = name_of().name
    assert before == library().name  # the sources are the same
    if changed == "jaxlib":
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
        name_of = runpy.run_path(str(folder / "naming.py"))["library"]
    else:
        with (folder / changed).open("a") as file:
            file.write("\n")
    assert name_of().name != before


@pytest.mark.slow
def test_the_sources_compile_without_warnings(sources):
    build, folder = sources
    build.COMMON += ["-Wall", "-Wextra", "-Wno-unused-function", "-Werror"]
    assert build.compile_kernels() is None
    (compiled,) = folder.glob("*.so")
    code = f"import ctypes; print(ctypes.CDLL({str(compiled)!r}).attention_forward)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ)
    assert done.returncode == 0


def test_a_compiler_without_bfloat16_makes_the_other_kernels(sources, monkeypatch):
    build, folder = sources
    monkeypatch.setattr(build, "_BFLOAT16", ("avx512_bf16", (["-mno-such-set"], 16, 8)))
    monkeypatch.setattr(build, "COMMON", ["-O0", *build.COMMON[1:]])
    assert build.compile_kernels() is None
    kernels = ctypes.CDLL(str(next(folder.glob("*.so"))))
    kernels.choose_instruction_set.restype = ctypes.c_bool
    assert kernels.choose_instruction_set(b"generic")
    assert not kernels.choose_instruction_set(b"avx512_bf16")
