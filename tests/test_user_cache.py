"""Compiled programs are kept for later runs."""

from pathlib import Path

import jax
import pytest

from rope_jax import user_cache


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
