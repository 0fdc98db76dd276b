"""The commands, one function each with `argv`; `main.py` calls them by name."""
