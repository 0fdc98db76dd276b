"""What can be configured, one schema per command, and how it is read. Imports no jax."""
