"""A fixture that loads a config from text."""

import pytest

from rope_jax.config.load import load
from rope_jax.config.training import TrainingConfig


@pytest.fixture
def read(tmp_path):
    """Return a function that loads text (or bytes) as a file, with overrides."""

    def read(text, *overrides, schema=TrainingConfig):
        path = tmp_path / "C.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(schema, path, overrides)

    return read
