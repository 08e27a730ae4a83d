"""XLM's masking by counts as released, against its definition in numpy (mask_out)."""

import math

import jax
import numpy as np
import pytest

from ptm_jax.corruptions.batch_masking import BatchCountedMasking
from ptm_jax.statistics.counts import Counts
from support import corrupting
from support.corrupting import VOCAB


@pytest.mark.full
def test_a_number_of_the_batch_is_drawn_by_counts_without_replacement():
    counts = np.zeros(400, np.int64)
    counts[7:200], counts[200:390] = 100, 1  # words from 390 on are not in the training text
    value = BatchCountedMasking(vocab=VOCAB, power=0.5, counts=Counts().filled(counts))
    batch = corrupting.documents(rows=600)
    out = jax.tree.map(np.asarray, jax.jit(value)(jax.random.key(0), batch))
    before, labels, used = np.asarray(batch["input_ids"]), out["mlm_labels"], out["mlm_weights"] > 0
    places = np.flatnonzero((before >= 7) & (before < 390) & (np.asarray(batch["segment_ids"]) > 0))
    assert used.sum() == min(math.ceil(0.15 * before.size - 1e-9), len(places))
    rows, at = np.nonzero(used)
    positions = out["mlm_positions"][rows, at]
    assert np.array_equal(before[rows, positions], labels[used])
    assert {*np.flatnonzero(counts)} >= {*labels[used].tolist()}
    weights = counts[before.reshape(-1)[places]] ** -0.5
    rng, shares = np.random.default_rng(0), []
    for _ in range(20):
        drawn = rng.choice(places, int(used.sum()), replace=False, p=weights / weights.sum())
        shares.append((before.reshape(-1)[drawn] >= 200).mean())
    assert abs((labels[used] >= 200).mean() - np.mean(shares)) < 4 * np.std(shares)
    shown = out["input_ids"][rows, positions]
    random = shown[(shown != VOCAB.mask) & (shown != labels[used])]
    assert abs((shown == VOCAB.mask).mean() - 0.8) < 3 * (0.16 / len(shown)) ** 0.5
    assert abs(len(random) / len(shown) - 0.1) < 3 * (0.09 / len(shown)) ** 0.5
    assert (random < 7).any() and (random >= 390).any(), "from the whole vocabulary"
    same = out["input_ids"].copy()
    same[rows, positions] = before[rows, positions]
    assert np.array_equal(same, before)
