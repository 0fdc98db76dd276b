"""GGUF files, llama.cpp's format: one file with a model's weights, config and tokenizer."""
