"""Compile the kernels for CPUs while the package is installed, if there is a C++ compiler.

Hatchling calls this file, see pyproject.toml. It imports nothing of the package, whose dependencies
may not be there yet. Without a compiler, or without jaxlib's headers, the package is installed
without the kernels, and `model.attention` cannot be `cpu`.
"""

import concurrent.futures
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
# Those that multiply matrices are compiled for rounded factors, too.
_PRODUCTS = ("attention", "gated", "projection", "weight_gradient")
_OTHERS = ("rms_norm",)
COMMON = ["-O3", "-std=c++17", "-fPIC", "-fno-math-errno"]
# For every instruction set: its flags, floats in a vector, and rows in a tile of registers.
_GENERIC: dict[str, tuple[list[str], int, int]] = {"generic": ([], 4, 4)}
_X86 = {
    "avx2": (["-mavx2", "-mfma"], 8, 6),
    "avx512": (["-mavx512f", "-mfma", "-mprefer-vector-width=512"], 16, 8),
}
# It has an instruction for products of bfloat16, and nothing else of its own.
_BFLOAT16 = ("avx512_bf16", ([*_X86["avx512"][0], "-mavx512bf16"], 16, 8))


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
        variants = [(name, flags, [*_PRODUCTS, *_OTHERS]) for name, flags in sets.items()]
        variants += [(f"{name}_rounded", flags, [*_PRODUCTS]) for name, flags in sets.items()]
        calls = [f"-isystem{headers}"]
        if is_x86 and _knows_bfloat16(compiler):
            variants.append((f"{_BFLOAT16[0]}_rounded", _BFLOAT16[1], [*_PRODUCTS]))
            calls.append("-DHAS_AVX512_BF16")
        objects, commands = [f"{folder}/calls.o"], [[*compiler, *COMMON, *calls]]
        commands[0] += ["-c", str(FOLDER / "calls.cc"), "-o", objects[0]]
        for name, (flags, lanes, rows), sources in variants:
            definitions = [f"-DLANES={lanes}", f"-DROWS={rows}", f"-DNAME(x)={name}_##x"]
            if name.endswith("_rounded"):
                definitions.append("-DROUNDED")
            for source in sources:
                objects.append(f"{folder}/{source}_{name}.o")
                files = ["-c", str(FOLDER / f"{source}.cc"), "-o", objects[-1]]
                commands.append([*compiler, *COMMON, *flags, *definitions, *files])
        # elsewhere first: an interrupted compiler must not leave half of a library
        library = f"{folder}/{path.name}"
        link = [*compiler, "-shared", "-o", library, *objects]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            problems = [found for found in pool.map(_run, commands) if found]
        if problem := problems[0] if problems else _run(link):
            return problem
        staged = path.with_suffix(f".{os.getpid()}")
        shutil.copyfile(library, staged)
        staged.replace(path)
    return None


def _run(command: list[str]) -> str | None:
    """Run the compiler; returns its error in one line, or None."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return f"{shlex.join(command[:1])} failed: {_first_error(done.stderr)}"


def _knows_bfloat16(compiler: list[str]) -> bool:
    """Whether the compiler has the flags of `_BFLOAT16`, as GCC has since 10 and Clang since 9."""
    check = [*compiler, *_BFLOAT16[1][0], "-fsyntax-only", "-xc++", os.devnull]
    return _run(check) is None


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
