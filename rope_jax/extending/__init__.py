"""One command from a model to the same model for longer texts."""
