"""Sizes of Ettin's encoders and mmBERT: transformers' ModernBertForMaskedLM, and the norm of the
first layer, which it lacks and ours keeps."""

SIZES = {
    "ettin_17m": 16_913_600 + 256,
    "ettin_32m": 32_081_344 + 384,
    "ettin_68m": 68_457_664 + 512,
    "ettin_150m": 149_655_232 + 768,
    "ettin_400m": 395_881_664 + 1_024,
    "ettin_1b": 1_031_314_112 + 1_792,
    "mmbert_small": 140_897_536 + 384,
    "mmbert_base": 307_786_240 + 768,
}
