"""Benchmarks of this package on this machine, compared with other libraries if they are
installed."""
