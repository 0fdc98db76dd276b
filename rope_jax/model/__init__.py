"""The decoder language model: its layers, its loss, and its cost on paper."""
