"""Training a run: the loop over its stages, the step, the optimizer, checkpoints."""
