"""Cloze tests: what a language model knows without training."""
