"""Sweeps to compare."""

from tests.comparison.conftest import lasting as lasting
from tests.comparison.conftest import sweep_of as sweep_of
