"""Counts of adjacent tokens, for phrase detection (Mikolov et al. 2013b, section 4)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ptm_jax.data.corpora.cooccurrence import Sums

BIGRAM = np.dtype([("first", "<i4"), ("second", "<i4"), ("count", "<i8")])


def count(blocks: Iterable, vocab: int) -> np.ndarray:
    """Returns [N] of BIGRAM, sorted by first and second: pairs of adjacent ids in the sentences of
    `store.Block`s."""
    pairs = Sums()
    for block in blocks:
        inside = np.ones(len(block.tokens), bool)
        inside[block.sentence_starts[:-1][block.sentences > 0]] = False
        second = np.flatnonzero(inside)
        keys = block.tokens[second - 1].astype(np.int64) * vocab + block.tokens[second]
        pairs.add(np.stack(np.unique(keys, return_counts=True)))
    keys, counts = pairs.sums()
    table = np.zeros(len(keys), BIGRAM)
    table["first"], table["second"] = np.divmod(keys, vocab)
    table["count"] = counts
    return table
