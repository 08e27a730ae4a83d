"""ESM-2's sizes: transformers' EsmForMaskedLM without its contact head."""

SIZES = {
    "esm2_t6_8m": 7_512_353,
    "esm2_t12_35m": 33_501_153,
    "esm2_t30_150m": 148_139_553,
    "esm2_t33_650m": 651_042_593,
}
