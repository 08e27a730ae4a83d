"""Sizes, training texts and baselines of the Chinese models."""

from support.baselines import classes, share

CLUE = "lm/clue-corpus-small/CLUECorpusSmall_bert_sampled_first5000.txt"
# BertForPreTraining of 21,128 pieces without its 512 positions; ERNIE has 18,000 and 513.
BERT, WIDTH = 102_882_442, 768
ERNIE = BERT - (21_128 - 18_000) * (WIDTH + 1) + WIDTH
LAYER = 7_087_872
ZEN = BERT + 6 * LAYER + (104_089 + 2 + 2) * WIDTH


def ernie_2(bert, width):
    """BERT with seven tasks: vectors of the tasks, two detectors, four classes' heads for NSP's."""
    detector = width * (width + 1) + width + 1
    return bert + 7 * width + 2 * detector + (9 + 3 + 25 + 3 - 2) * (width + 1)


SIZES = {
    "ernie_2_base": ernie_2(108_932_934, 768),
    "ernie_2_large": ernie_2(334_661_958, 1_024),
    "bert_base_chinese_wwm_ext": BERT,
    "ernie_base_published": ERNIE,
    "ernie_base_dialogue": ERNIE,
    "zen_base": ZEN,
    "zen_base_published": ZEN,
    "nezha_base": BERT - 512 * WIDTH,
    "nezha_large": 325_545_608 - 512 * 1_024 + 1_024 * 1_025 + 2 * 1_025,
}
# 350 steps of seven tasks predict too few masked words to leave their frequencies.
TRAINS = {"ernie_2_mini": [(classes("reorder_nll", 9), 0.5), (share("elsewhere"), 0.02)]}
TEXT = {
    **dict.fromkeys(("roberta_chinese_wwm_mini", "nezha_mini", "zen_mini"), "debian:zh"),
    **dict.fromkeys(("ernie_mini", "ernie_2_mini"), CLUE),
}
