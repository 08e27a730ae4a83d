"""Families of published checkpoints, one file per family."""
