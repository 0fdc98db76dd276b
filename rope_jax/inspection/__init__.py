"""Scalings looked at without a model: tables and figures pair by pair, and of their decay."""
