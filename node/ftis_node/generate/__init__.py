"""Sampling groups of completions: the same interface over two engines, vLLM and plain transformers."""
