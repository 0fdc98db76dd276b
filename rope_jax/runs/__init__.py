"""A run's folder: its paths, its logs, and atomic replacement of files."""
