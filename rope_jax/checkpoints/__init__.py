"""Hugging Face checkpoints, in and out, without torch."""
