"""Likelihoods of words and sentences under a language model."""
