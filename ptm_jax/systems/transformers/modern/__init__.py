"""Encoders of 2024 and later."""
