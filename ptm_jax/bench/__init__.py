"""Benchmarks of this package on this machine, compared with other installed libraries."""
