"""Probes of the attention between words."""
