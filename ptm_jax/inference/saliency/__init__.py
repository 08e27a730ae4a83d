"""Which tokens of a text a prediction rests on, and pages that show how a model reads a text."""
