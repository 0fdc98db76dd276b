"""Fixtures that load a config from text, and that return the error for bad input."""

import pytest

from rope_jax.config.load import load
from rope_jax.config.training import Config
from rope_jax.errors import UserError


@pytest.fixture
def read(tmp_path):
    """Return a function that loads text (or bytes) as a file, with overrides."""

    def read(text, *overrides, schema=Config):
        path = tmp_path / "C.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(schema, path, overrides)

    return read


@pytest.fixture
def complaint(read, tmp_path):
    """Return a function that gives the error for bad input, with the file as C.yaml."""

    def complaint(text, *overrides, schema=Config):
        with pytest.raises(UserError) as caught:
            read(text, *overrides, schema=schema)
        message = str(caught.value)
        assert "\n" not in message
        return message.replace(str(tmp_path / "C.yaml"), "C.yaml")

    return complaint
