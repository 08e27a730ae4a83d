"""Sizes, training texts and baselines of models of one language, with the vocabularies of the
checkpoints. `benchmarks.published_sizes` has those that a class of Transformers gives."""

# BERT-base with its heads has 30,522 words and 110,106,428 parameters; a word is a row and a bias.
BERT = 110_106_428

SIZES = {
    "camembert_large": 355_412_057 + (32_005 - 50_265) * 1_025,  # 335 million
    "bert_japanese_wwm": BERT + (32_000 - 30_522) * 769,
    "bert_japanese_char_wwm": BERT + (4_000 - 30_522) * 769,
    "bert_japanese_pieces": BERT + (32_000 - 30_522) * 769,
}
TEXT = {
    **dict.fromkeys(("camembert_mini", "flaubert_mini", "flaubert_large_mini"), "debian:fr"),
    **dict.fromkeys(("bertje_mini", "robbert_mini"), "debian:nl"),
    "finbert_mini": "debian:fi",
    "rubert_mini": "debian:ru",
    "slavic_bert_mini": "debian:bg cs pl ru",
    "arabert_mini": "debian:ar",
    **dict.fromkeys(("bert_japanese_mini", "bert_japanese_char_mini"), "debian:ja"),
    "bert_japanese_pieces_mini": "debian:ja",
    **dict.fromkeys(("ulmfit_japanese_mini", "elmo_japanese_mini"), "debian:ja"),
}
