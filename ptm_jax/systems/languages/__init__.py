"""Models of one language, or of a few."""
