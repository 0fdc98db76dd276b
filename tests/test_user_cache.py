"""Compiled programs are kept for later runs, and damaged ones are replaced without a word."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from rope_jax import user_cache

COMPILE_AGAIN_AFTER_DAMAGE = """
from rope_jax.user_cache import keep_compiled_programs, user_cache
import jax
keep_compiled_programs()

def f(x):
    return jax.numpy.sin(x) * 3

expected = float(jax.jit(f)(2.0))
path, = (user_cache() / "compiled").glob("*/*f-*")
written = path.read_bytes()
middle = len(written) // 2
flipped = bytes([*written[:middle], written[middle] ^ 4, *written[middle + 1:]])
for damaged in (written[:-5], b"", flipped):
    path.write_bytes(damaged)
    jax.clear_caches()
    assert float(jax.jit(f)(2.0)) == expected
    assert path.read_bytes() != damaged
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
    command = [sys.executable, "-c", COMPILE_AGAIN_AFTER_DAMAGE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.fixture
def no_cache(monkeypatch):
    """JAX as it is without a setting of the environment."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("no_cache")
def test_no_home_directory_means_no_cache(monkeypatch):
    def no_home(*_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    user_cache.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir is None
