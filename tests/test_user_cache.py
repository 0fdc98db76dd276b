"""Compiled programs are kept for later runs, and damaged ones are replaced without a word."""

import os
import subprocess
import sys
import warnings

import pytest

from rope_jax import user_cache

COMPILE_AGAIN_AFTER_DAMAGE = """
from rope_jax.user_cache import keep_compiled_programs, user_cache
keep_compiled_programs()
import jax

def entries():
    return {p.name: p.read_bytes() for p in (user_cache() / "compiled").glob("*/*f-*")}

def flip(data):
    return bytes([*data[:len(data) // 2], data[len(data) // 2] ^ 4, *data[len(data) // 2 + 1:]])

def f(x):
    return jax.numpy.sin(x) * 3

expected = float(jax.jit(f)(2.0))
(name, written), = entries().items()
path, = (user_cache() / "compiled").glob("*/*f-*")
for damage in (lambda data: data[:-5], lambda data: bytes(len(data)), lambda data: b"", flip):
    path.write_bytes(damage(written))
    damaged = path.read_bytes()
    jax.clear_caches()
    assert float(jax.jit(f)(2.0)) == expected
    assert entries().keys() == {name}
    assert entries()[name] != damaged
    # and the new one is read
    before = path.stat()
    jax.clear_caches()
    assert float(jax.jit(f)(2.0)) == expected
    assert path.stat().st_mtime_ns == before.st_mtime_ns
print("done")
"""


def test_damaged_programs_are_compiled_and_written_again(tmp_path):
    environment = os.environ | {
        "XDG_CACHE_HOME": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    del environment["JAX_COMPILATION_CACHE_DIR"]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_AGAIN_AFTER_DAMAGE],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    user_cache.keep_compiled_programs()
    folder = user_cache.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    for name in ("jit_step-1-cache", "jit_step-2-cache", "jit_step_2-1-cache", "other"):
        (folder / name).write_text("")
    return folder, shown


def test_only_the_programs_that_jax_names_are_deleted(folder):
    folder, shown = folder
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("something else", stacklevel=1)
        for what in ("reading", "writing"):
            warnings.warn(
                f"Error {what} persistent compilation cache entry for 'jit_step': error: -5",
                stacklevel=1,
            )
    assert shown == ["something else"]
    assert sorted(os.listdir(folder)) == ["jit_step_2-1-cache", "other"]


def test_no_home_directory_means_no_cache(monkeypatch):
    def no_home(*_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    user_cache.keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
