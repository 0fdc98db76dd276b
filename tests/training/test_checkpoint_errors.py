"""Which read errors are evidence of damage, and how they are named."""

import errno
import json
import sys
from collections.abc import Callable

import jax
import pytest

from rope_jax.training.checkpoints import brief_reason, shows_damage, silence_leftovers


def system_error(number: int) -> OSError:
    return OSError(number, errno.errorcode[number], "/somewhere/manifest")


def caused_by(cause: Exception) -> Exception:
    """Return an error like those of Orbax and decoders: of another type, with this cause."""
    error = ValueError("cannot read metadata")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        *map(system_error, (errno.EMFILE, errno.EIO, errno.EACCES)),
        caused_by(system_error(errno.EIO)),
        caused_by(MemoryError()),
        MemoryError(),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
        ValueError('RESOURCE_EXHAUSTED: Error opening "zarr" driver: Too many open files'),
        ValueError('UNKNOWN: Error reading "c/0": [OS error 5: EIO Input/output error]'),
        RuntimeError("something that nobody has seen yet"),
    ],
    ids=repr,
)
def test_an_error_of_the_system_is_not_damage(error: Exception) -> None:
    assert not shows_damage(error)


def raised(action: Callable[[], object]) -> Exception:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        IsADirectoryError(errno.EISDIR, "Is a directory"),
        raised(lambda: json.loads("{oops")),
        raised(lambda: b"\xff".decode()),
        raised(lambda: json.loads("{}")["params"]),
        raised(lambda: json.loads("null")["params"]),
        ValueError('DATA_LOSS: Error opening "zarr" driver: checksum mismatch'),
        ValueError("the params are not those that were saved"),
    ],
    ids=repr,
)
def test_absent_and_undecodable_files_are_damage(error: Exception) -> None:
    assert shows_damage(error)


def test_a_reason_is_short_and_ends_with_the_cause() -> None:
    spec = "[tensorstore_spec='{...}']"
    long = ValueError(f"OUT_OF_RANGE: Error opening {'/long/path' * 30}: file is empty {spec}")
    assert brief_reason(long).startswith("OUT_OF_RANGE: Error opening /long/path")
    assert brief_reason(long).endswith(": file is empty")
    assert len(brief_reason(long)) < 160
    assert brief_reason(MemoryError()) == "MemoryError"
    assert brief_reason(KeyError("no params")) == "no params"


def test_unraisable_exceptions_of_other_code_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(unraisable.object))
    silence_leftovers.__wrapped__()

    class Raises:
        def __del__(self) -> None:
            raise RuntimeError("Event loop is closed")

    Raises()
    assert len(shown) == 1
