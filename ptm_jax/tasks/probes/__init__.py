"""Probes: what the states of a frozen encoder hold, layer by layer."""
