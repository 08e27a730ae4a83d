"""Encoders of many languages, and translation."""
