"""Texts that a run's model continues."""
