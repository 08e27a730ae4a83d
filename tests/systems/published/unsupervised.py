"""Sizes and training baselines of multilingual MASS and of XLM's unsupervised translation.

The sizes follow from the published options (6 and 6 layers of 1,024, the English-French vocabulary,
two languages) with one token table for both sides.
"""

from support.baselines import unigram

# Attention, feed-forward and two norms; a decoder has an attention to the source and its norm too.
ENCODER = 4 * 1_024 * 1_025 + 2 * 4 * 1_024**2 + 5 * 1_024 + 2 * 2 * 1_024
DECODER = ENCODER + 4 * 1_024 * 1_025 + 2 * 1_024
# Words and the bias of the softmax; of each side positions, languages and a norm.
TABLES = 64_139 * (1_024 + 1) + 2 * (512 + 2 + 2) * 1_024
SIZES = dict.fromkeys(("mass_mt", "mass_unmt", "xlm_unmt"), TABLES + 6 * (ENCODER + DECODER))
TRAINS = {"mass_mt_mini": [(unigram("nll"), 0.3)], "xlm_unmt_mini": [(unigram("nll"), 0.3)]}
TEXT = dict.fromkeys(TRAINS, "language:de-en=mt/multi30k/train")
