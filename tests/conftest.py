"""No network, the CPU, and JAX at its strictest: no implicit promotion of dtypes or ranks."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Read when jax and Hugging Face's libraries are imported, so set before any test does.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
# Programs that several tests, or the commands they start, compile are compiled once.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# A shell has its background jobs ignore Ctrl-C, and what they start inherits that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
from jax._src import compiler

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Older code generation, which compiles a small program in a quarter of the time.
OLDER_EMITTERS = "xla_cpu_use_fusion_emitters"


@pytest.fixture(scope="session")
def has_older_emitters() -> bool:
    """Whether this XLA still has them: JAX 0.10 does, JAX 0.12 does not."""
    try:
        jax.jit(lambda: 0, compiler_options={OLDER_EMITTERS: False})()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@pytest.fixture(scope="module")
def compiled_quickly(has_older_emitters: bool) -> Iterator[None]:
    """Compile with few optimizations, for a module of many small programs.

    For tests of what a program computes, not of how fast or how it is rounded.
    """
    compile_options = compiler.get_compile_options

    def with_older_emitters(*args: Any, **kwargs: Any) -> Any:
        options = compile_options(*args, **kwargs)
        options.env_option_overrides += [(OLDER_EMITTERS, "False")]
        return options

    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        if has_older_emitters:
            patch.setattr(compiler, "get_compile_options", with_older_emitters)
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def commands_compile_quickly(has_older_emitters: bool) -> Iterator[None]:
    """The same for the commands that a module starts, through their environment.

    This process read XLA_FLAGS when it compiled its first program, so they change nothing here.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("XLA_FLAGS", f"--{OLDER_EMITTERS}=false" if has_older_emitters else "")
        yield
