"""A missing package of an extra is named, with the line that installs it."""

import sys

import pytest

from rope_jax.checkpoints.open import open_checkpoint
from rope_jax.errors import UserError


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "rope_jax.checkpoints.gguf.files", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError) as error:
        open_checkpoint("m.gguf", None)
    install = "pip install 'rope-jax[gguf]'"
    assert str(error.value) == f"m.gguf: GGUF needs the package gguf; install it with {install}"
