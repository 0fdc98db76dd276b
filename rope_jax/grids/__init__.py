"""Grids: many runs, fits and sweeps, each a command in a process of its own, and a comparison."""
