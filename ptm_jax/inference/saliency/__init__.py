"""Which words of a text a prediction rests on."""
