"""The contents of a run's folder: its paths, its logs, and how files are replaced safely."""
