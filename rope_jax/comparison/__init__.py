"""Comparisons of the results of many runs, seeds and sweeps."""
