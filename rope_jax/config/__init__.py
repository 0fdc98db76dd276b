"""Configuration: one schema per command, and how YAML and overrides are read."""
