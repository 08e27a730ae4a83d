"""NomicBERT's size: transformers' NomicBertForMaskedLM."""

SIZES = {"nomicbert_base": 137_354_304}
