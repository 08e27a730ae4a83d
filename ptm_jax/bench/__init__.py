"""Measurements of this package on this machine, beside other libraries where they are installed."""
