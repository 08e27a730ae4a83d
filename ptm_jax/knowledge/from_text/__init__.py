"""Lexicons that are counted in a text."""
