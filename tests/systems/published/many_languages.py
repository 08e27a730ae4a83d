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


# XmodForMaskedLM of 81 languages, and of the larger release.
SIZES = {"xmod_base": 852_723_858, "xmod_large_prenorm": 2_601_562_258}
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
