"""How programs are compiled on each platform, and what a user's own settings change."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.devices.hardware import compiled, compiler_options

OPTION, SETTING = "xla_backend_optimization_level", "jax_disable_most_optimizations"


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing says how much to optimize, as the tests' own settings may."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = jax.config.values[SETTING]
    jax.config.update(SETTING, False)
    yield
    jax.config.update(SETTING, before)


class Recorded:
    """A jitted function that keeps the options it is compiled with."""

    def __init__(self) -> None:
        self.options: object = "none yet"

    def lower(self, *_: object) -> "Recorded":
        return self

    def compile(self, *, compiler_options: object) -> "Recorded":
        self.options = compiler_options
        return self


def test_the_level_is_for_cpus_alone(usual: None) -> None:
    assert compiler_options("cpu") == {OPTION: 2}
    assert compiler_options("gpu") is None
    assert compiler_options("tpu") is None


def test_a_level_that_a_user_chose_stays(usual: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--some_flag=1 --{OPTION}=3")
    assert compiler_options("cpu") is None
    monkeypatch.setenv("XLA_FLAGS", "--some_flag=1")
    assert compiler_options("cpu") is not None
    jax.config.update(SETTING, True)
    assert compiler_options("cpu") is None


def test_the_first_argument_says_where_a_program_runs(usual: None) -> None:
    class Elsewhere:
        class sharding:
            class tpu:
                platform = "tpu"

            device_set = {tpu}  # noqa: RUF012

    assert compiled(Recorded(), {"a": Elsewhere()}, jnp.ones(2)).options is None
    assert compiled(Recorded(), np.ones(2), Elsewhere()).options == {OPTION: 2}
    assert compiled(Recorded(), {}, 3).options == {OPTION: 2}


def test_a_compiled_program_computes(usual: None) -> None:
    double = compiled(jax.jit(lambda x, y: x * 2 + y), jnp.ones(3), np.ones(3, np.float32))
    np.testing.assert_array_equal(double(jnp.ones(3), np.ones(3, np.float32)), [3, 3, 3])
