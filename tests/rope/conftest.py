"""Fixtures of the tests in this folder."""

import jaxtyping
import pytest


@pytest.fixture
def wrong_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the type checker off for a test that passes values of wrong types on purpose."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
