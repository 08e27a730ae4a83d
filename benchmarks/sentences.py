"""Vectors of sentences on STS-B: correlations with human scores, of cosines and of a regression on
two vectors.

    python -m benchmarks.sentences runs/uni --stsb STSB
    python -m benchmarks.sentences runs/uni runs/bi --stsb STSB

Several models stand side by side (combine-skip). Cosines have no training. The regression is that
of Kiros et al. 2015, section 3.1, after Tai et al. 2015: the features |u - v| and u v of
sts-train.tsv, a softmax over the scores 0 to 5, a score between two of them as a share of each, and
the expected score as prediction.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import scipy.stats
import tyro
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import ptm_jax
from benchmarks.paragraphs import correlation, pairs
from ptm_jax.inference.text.vectors import SideBySide


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """`models`: runs or checkpoints; `stsb`: the folder of sts-train.tsv and sts-dev.tsv;
    `strength` of the regression."""

    models: tyro.conf.Positional[tuple[str, ...]]
    stsb: Path
    strength: float = 1e-3


def features(vectors: np.ndarray) -> np.ndarray:
    """Returns |u - v| and u v [n, 2 D] of vectors [2 n, D], the first halves of the pairs before
    the second."""
    first, second = np.split(vectors, 2)
    return np.concatenate([np.abs(first - second), first * second], -1)


def regressed(
    train: np.ndarray, scores: np.ndarray, new: np.ndarray, strength: float
) -> np.ndarray:
    """Returns the expected score of each row of `new`, by a softmax over whole scores that is
    fitted to `train`."""
    scaler, low = StandardScaler().fit(train), np.minimum(np.floor(scores), 4).astype(int)
    shares = np.concatenate([1 - (scores - low), scores - low])
    model = LogisticRegression(C=strength, max_iter=300)
    model.fit(
        np.tile(scaler.transform(train), (2, 1)),
        np.concatenate([low, low + 1]),
        sample_weight=shares,
    )
    return model.predict_proba(scaler.transform(new)) @ model.classes_


def main(sizes: Sizes) -> None:
    """Prints the correlations on sts-dev."""
    models = [ptm_jax.load(name) for name in sizes.models]
    model = models[0] if len(models) == 1 else SideBySide(models)
    vectors, scores = {}, {}
    for split in ("train", "dev"):
        left, right, scores[split] = pairs(sizes.stsb / f"sts-{split}.tsv")
        vectors[split] = model.encode([*left, *right])
    print(f"cosine: Spearman {correlation(vectors['dev'], scores['dev']):.3f}")
    train, dev = (features(vectors[split]) for split in ("train", "dev"))
    found = regressed(train, scores["train"], dev, sizes.strength)
    pearson, spearman = (
        measure(found, scores["dev"])[0]
        for measure in (scipy.stats.pearsonr, scipy.stats.spearmanr)
    )
    print(f"regression: Pearson {pearson:.3f}, Spearman {spearman:.3f}")


if __name__ == "__main__":
    main(tyro.cli(Sizes))
