"""A cache for each test, and the standard library read once per session."""

import pytest

from rope_jax.config.data import StdlibData
from rope_jax.data.storage import Corpus, open_corpus
from rope_jax.data.tokenizers import ByteTokenizer


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def stdlib_data(tmp_path_factory) -> StdlibData:
    return StdlibData(cache_dir=str(tmp_path_factory.mktemp("stdlib")))


@pytest.fixture(scope="session")
def stdlib_corpus(stdlib_data) -> Corpus:
    return open_corpus(stdlib_data, ByteTokenizer())
