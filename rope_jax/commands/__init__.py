"""The commands, one module each, with `main(argv)`; `main.py` calls them by name."""
