"""Training a run: its stages, the loop and step, the optimizer, checkpoints."""
