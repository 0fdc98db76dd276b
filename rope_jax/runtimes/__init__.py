"""What to set in transformers, vLLM and llama.cpp, after a sweep or a fit."""
