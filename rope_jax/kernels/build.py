"""Compile the kernels for CPUs while the package is installed, if there is a C++ compiler.

Hatchling calls this file, see pyproject.toml. It imports nothing of the package, whose dependencies
may not be there yet. Without a compiler, or without jaxlib's headers, the package is installed
without the kernels, and `model.attention` cannot be `cpu`.
"""

import importlib.metadata
import importlib.util
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent
_SOURCES = ("attention", "gated", "projection", "rms_norm", "weight_gradient")
COMMON = ["-O3", "-std=c++17", "-fPIC", "-fno-math-errno"]
# For every instruction set: its flags, floats in a vector, and rows in a tile of registers.
_GENERIC: dict[str, tuple[list[str], int, int]] = {"generic": ([], 4, 4)}
_X86 = {
    "avx2": (["-mavx2", "-mfma"], 8, 6),
    "avx512": (["-mavx512f", "-mfma", "-mprefer-vector-width=512"], 16, 8),
}


class KernelHook(BuildHookInterface):  # type: ignore[misc]
    """Adds the kernels to a wheel; an editable install has them beside their sources."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels, before the files are collected."""
        if problem := compile_kernels():
            print(f"installed without the kernels for CPUs: {problem}", file=sys.stderr)
            return
        build_data["artifacts"].append(str(_library().relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_kernels() -> str | None:
    """Write the library beside this file; returns what prevented it, or None."""
    try:
        for older in FOLDER.glob("kernels-*.so"):
            older.unlink()
        compiler = _compiler()
        if compiler is None:
            return "there is no C++ compiler (c++, g++ or clang++; or set CXX)"
        return _compile(compiler, _library())
    except importlib.metadata.PackageNotFoundError:
        return "jaxlib, whose headers they need, is not installed"
    except (OSError, ValueError) as error:  # no such compiler, an open quote in CXX
        return str(error)


def _library() -> Path:
    path: Path = runpy.run_path(str(FOLDER / "naming.py"))["library"]()
    return path


def _compile(compiler: list[str], path: Path) -> str | None:
    """Write the library to a path; returns the compiler's error, or None."""
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or jaxlib.origin is None:
        return "jaxlib, whose headers they need, cannot be imported"
    headers = Path(jaxlib.origin).parent / "include"
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    sets = _GENERIC | (_X86 if is_x86 else {})
    with tempfile.TemporaryDirectory() as folder:
        objects, commands = [], []
        for name, (flags, lanes, rows) in sets.items():
            definitions = [f"-DLANES={lanes}", f"-DROWS={rows}", f"-DNAME(x)={name}_##x"]
            for source in _SOURCES:
                objects.append(f"{folder}/{source}_{name}.o")
                files = ["-c", str(FOLDER / f"{source}.cc"), "-o", objects[-1]]
                commands.append([*compiler, *COMMON, *flags, *definitions, *files])
        objects.append(f"{folder}/calls.o")
        files = ["-c", str(FOLDER / "calls.cc"), "-o", objects[-1]]
        commands.append([*compiler, *COMMON, f"-isystem{headers}", *files])
        # elsewhere first: an interrupted compiler must not leave half of a library
        library = f"{folder}/{path.name}"
        commands.append([*compiler, "-shared", "-o", library, *objects])
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return f"{shlex.join(command[:1])} failed: {_first_error(done.stderr)}"
        staged = path.with_suffix(f".{os.getpid()}")
        shutil.copyfile(library, staged)
        staged.replace(path)
    return None


def _compiler() -> list[str] | None:
    """Return the C++ compiler's command."""
    if given := shlex.split(os.environ.get("CXX", "")):
        return given
    found = (shutil.which(name) for name in ("c++", "g++", "clang++"))
    return next(([path] for path in found if path), None)


def _first_error(output: str) -> str:
    """Return the line of a compiler's output that says what is wrong."""
    lines = output.splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no output")
