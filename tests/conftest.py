"""No network, the CPU, quick compilation, and JAX at its strictest: no implicit promotion."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
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
# Few optimizations, also in the commands that tests start. Tests of rounding, memory or speed use
# the fixture `compiled_fully`.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# Older code generation, which compiles a small program in a quarter of the time. JAX 0.10 has it.
if version("jax").startswith("0.10."):
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false"

# A shell has its background jobs ignore Ctrl-C, and what they start inherits that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
import jaxtyping
from jax._src import compiler

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-kernels", action="store_true", help="as if no C++ compiler had compiled any"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--without-kernels"):
        from rope_jax.kernels import loading  # only now: jaxtyping's hook must come before

        loading.kernels_file = lambda: Path("not compiled")


@pytest.fixture(scope="session", autouse=True)
def quick_peak() -> Iterator[None]:
    """Measure the CPU's speed with small matrices: every run and sweep does, for a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rope_jax.devices.hardware._MEASURED_SIZE", 64)
        yield


@pytest.fixture(scope="module")
def compiled_fully() -> Iterator[None]:
    """Compile as users do, here and in the commands that a module starts."""
    compile_options = compiler.get_compile_options

    def with_newer_emitters(*args: Any, **kwargs: Any) -> Any:
        options = compile_options(*args, **kwargs)
        options.env_option_overrides += [("xla_cpu_use_fusion_emitters", "True")]
        return options

    jax.config.update("jax_disable_most_optimizations", False)
    flags, _, older = os.environ.get("XLA_FLAGS", "").partition(" --xla_cpu_use_fusion_emitters")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")
        patch.setenv("XLA_FLAGS", flags)
        if older:
            patch.setattr(compiler, "get_compile_options", with_newer_emitters)
        yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command in this process: its main, and its name and words."""
    from rope_jax import cli

    def call(main: Callable[[list[str]], None], *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [*words])
        with pytest.raises(SystemExit) as ended:
            cli.run(main)
        return ended.value.code or 0, *capfd.readouterr()

    return call


@pytest.fixture
def wrong_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the type checker off for a test that passes values of wrong types on purpose."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
