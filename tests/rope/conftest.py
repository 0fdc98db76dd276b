"""Fixtures of the tests in this folder."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def wrong_types() -> Iterator[None]:
    """Switch the type checker off for a test that passes values of wrong types on purpose.

    The checker is on with `--jaxtyping-packages`, and would refuse the values first.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
