"""Text in several languages: codes, translations, and how batches mix them."""
