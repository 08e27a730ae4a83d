"""Sizes of models of one language: BertForPreTraining, CamembertForMaskedLM,
FlaubertWithLMHeadModel and RobertaForMaskedLM with the vocabularies of the checkpoints, and the
figures that the papers print."""

# BERT-base with its heads has 30,522 words and 110,106,428 parameters; a word is a row and a bias.
BERT, ROBERTA = 110_106_428, 124_697_433
FLAUBERT_LAYERS = {
    size: layers * (4 * size * (size + 1) + 2 * 4 * size**2 + 5 * size + 4 * size)
    for layers, size in ((6, 512), (12, 768), (24, 1_024))
}


def flaubert(size: int, words: int) -> int:
    """54, 137, 138 and 373 million (getalp/Flaubert, README)."""
    return (words + 512 + 2) * size + FLAUBERT_LAYERS[size] + words


SIZES = {
    "camembert_base": ROBERTA + (32_005 - 50_265) * 769,  # 110 million
    "camembert_large": 355_412_057 + (32_005 - 50_265) * 1_025,  # 335 million
    "flaubert_small_cased": flaubert(512, 68_729),
    "flaubert_base_uncased": flaubert(768, 67_542),
    "flaubert_base_cased": flaubert(768, 68_729),
    "flaubert_large_cased": flaubert(1_024, 68_729),
    "finbert_cased": BERT + (50_105 - 30_522) * 769,
    "finbert_uncased": BERT + (50_101 - 30_522) * 769,
    "bertje": BERT + (30_000 - 30_522) * 769,
    "bertje_2021": BERT + (30_073 - 30_522) * 769,
    "robbert_v1": ROBERTA,
    "robbert_v2": ROBERTA + (40_000 - 50_265) * 769,  # 117 million
    "rubert": 178_566_653,  # 180 million
    "slavic_bert": 178_566_653,
    "arabert_v01": BERT + (64_000 - 30_522) * 769,  # 136 million
    "arabert_v02_large": 336_226_108 + (64_000 - 30_522) * 1_025,  # 371 million
    "bert_japanese": BERT + (32_000 - 30_522) * 769,
    "bert_japanese_wwm": BERT + (32_000 - 30_522) * 769,
    "bert_japanese_char": BERT + (4_000 - 30_522) * 769,
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
