"""Which read errors are evidence of damage, and how they are named."""

import errno
import json
import sys

import jax
import pytest

from rope_jax.training.checkpoints import brief_reason, shows_damage, silence_leftovers


def caused_by(cause: Exception) -> Exception:
    """Return an error like those of Orbax and decoders: of another type, with this cause."""
    error = ValueError("cannot read metadata")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("is_damage", "error"),
    [
        (False, OSError(errno.EMFILE, "Too many open files")),
        (False, caused_by(OSError(errno.EIO, "Input/output error"))),
        (False, caused_by(MemoryError())),
        (False, MemoryError()),
        (False, jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")),
        (False, ValueError('UNKNOWN: Error reading "c/0": [OS error 5: EIO Input/output error]')),
        (False, RuntimeError("something that nobody has seen yet")),
        (True, FileNotFoundError(errno.ENOENT, "No such file or directory")),
        (True, IsADirectoryError(errno.EISDIR, "Is a directory")),
        (True, json.JSONDecodeError("Expecting value", "{oops", 1)),
        (True, KeyError("params")),
        (True, TypeError("'NoneType' object is not subscriptable")),
        (True, ValueError('DATA_LOSS: Error opening "zarr" driver: checksum mismatch')),
        (True, ValueError("the params are not those that were saved")),
    ],
    ids=repr,
)
def test_only_absent_and_undecodable_files_are_damage(is_damage: bool, error: Exception) -> None:
    assert shows_damage(error) == is_damage


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
