"""Fixtures of the tests in this folder."""

import pytest


@pytest.fixture
def wrong_types(request: pytest.FixtureRequest) -> None:
    """Skip a test that passes values of wrong types while a type checker would refuse them first.

    The checker is on with `--jaxtyping-packages`.
    """
    if request.config.getoption("--jaxtyping-packages", default=None):
        pytest.skip("the type checker refuses the values first")
