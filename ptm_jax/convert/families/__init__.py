"""One file for each family of published checkpoints."""
