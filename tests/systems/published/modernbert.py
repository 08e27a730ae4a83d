"""ModernBERT's sizes: transformers' ModernBertForMaskedLM, and the norm of the first layer, which
it lacks and ours keeps."""

SIZES = {
    "modernbert_base": 149_655_232 + 768,
    "modernbert_large": 395_881_664 + 1_024,
}
