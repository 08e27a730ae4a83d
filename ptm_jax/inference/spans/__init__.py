"""Spans of texts with types that are given as text."""
