"""A sweep of one run, from its checkpoints to files, the terminal and TensorBoard."""
