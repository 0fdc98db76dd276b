"""Results of many runs, seeds and sweeps beside one another."""
