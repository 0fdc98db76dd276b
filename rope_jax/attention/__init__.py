"""Causal attention: one signature, several backends, chosen by name in `backends.py`."""
