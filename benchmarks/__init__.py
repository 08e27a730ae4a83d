"""Benchmark results and comparisons with other libraries. Not part of the installed package."""
