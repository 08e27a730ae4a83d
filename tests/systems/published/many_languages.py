"""Sizes and training baselines of multilingual BERT, XLM, XLM-R and mBART."""

import json

import numpy as np

from ptm_jax.data.corpora.store import open_corpus
from support.baselines import unigram


def frequencies_of_masks(power=0.5):
    """Against the best guess of the masked words without context: a word of count c is masked with
    the weight c^-power."""

    def loss(result):
        record = json.loads((result.workdir / "config.json").read_text())
        corpus = open_corpus(record["corpus"]["path"])
        train, text = (corpus.counts(split).astype(float) for split in ("train", "heldout"))
        for counts in (train, text):
            counts[[*corpus.vocab.specials]] = 0
        masked = np.where(train > 0, text * np.maximum(train, 1) ** -power, 0)
        guess = train ** (1 - power) / (train ** (1 - power)).sum()
        return float(-masked @ np.log(np.maximum(guess, 1e-12)) / masked.sum())

    return "mlm_nll", loss


# BertForPreTraining, XLMWithLMHeadModel (249 and 570 million in the paper),
# XLMRobertaForMaskedLM, XLMRobertaXLForMaskedLM, XmodForMaskedLM and MBartForConditionalGeneration.
XLM_LAYER = 4 * 1_024 * 1_025 + 2 * 4 * 1_024**2 + 5 * 1_024 + 4 * 1_024
XLM_WIDE = 4 * 1_280 * 1_281 + 2 * 4 * 1_280**2 + 5 * 1_280 + 4 * 1_280
SIZES = {
    "bert_base_multilingual_cased": 178_566_653,
    "xlm_15": (95_000 + 512 + 15 + 2) * 1_024 + 12 * XLM_LAYER + 95_000,
    "xlm_tlm_15": (95_000 + 512 + 15 + 2) * 1_024 + 12 * XLM_LAYER + 95_000,
    "xlm_17": (200_000 + 512 + 2) * 1_280 + 16 * XLM_WIDE + 200_000,
    "xlm_100": (200_000 + 512 + 2) * 1_280 + 16 * XLM_WIDE + 200_000,
    "xlm_clm_enfr": (64_139 + 512 + 2 + 2) * 1_024 + 6 * XLM_LAYER + 64_139,
    "xlm_r_base": 278_295_186,
    "xlm_r_large": 560_142_482,
    "xlm_r_xl": 3_482_741_760,
    "xlm_r_xxl": 10_712_994_816,
    "mbart25": 610_851_840,
    "xmod_base": 852_723_858,
    "xmod_large_prenorm": 2_601_562_258,
}
TRAINS = {
    "xlm_mini": [(frequencies_of_masks(), 0.3)],
    "bert_multilingual_mini": [(unigram("mlm_nll"), 0.1)],
    "xlm_clm_mini": [(unigram("nll"), 0.3)],
    "xlm_r_mini": [(unigram("mlm_nll"), 0.1)],
    "mbart_mini": [(unigram("nll"), 0.3)],
    "xmod_mini": [(unigram("mlm_nll"), 0.1)],
    "xnlg_mini": [(unigram("xae_nll"), 0.3)],  # its text is pairs alone: no row is denoised
}
TEXT = dict.fromkeys(("xlm_mini", "unicoder_mini", "xnlg_mini"), "language:de-en=mt/multi30k/train")
