"""Encoders of 2024 and later: rotary positions, gated layers."""
