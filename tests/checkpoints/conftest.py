"""The run that was trained in two stages, which these tests export."""

from tests.training.conftest import whole

__all__ = ["whole"]
