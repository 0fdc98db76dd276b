"""Figures: styles, panels of perplexity over context length, curves, saving."""
