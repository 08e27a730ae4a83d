"""Heads that answer questions about a text."""
