"""The languages of a corpus: their part of a manifest, and how batches mix them.

A language, "de", or a pair, "de-en", has shards of its own; all of them together are a corpus like
any other. Examples that inherit `Mixture` read the languages with given shares.

A group of rows (`data.corpora.groups`) has one language. An epoch has a fixed number of groups of
each language (`quotas`), in random order; a language goes on where the epoch before left it. So the
stream is a function of (corpus, seed), for any number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptm_jax.core import slots

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.corpora.store import Corpus

Facts = dict[str, Any]


def facts(sizes: dict[str, Facts], counts: np.ndarray, vocab: Vocab) -> Facts:
    """Returns the part of a language in a manifest.

    sizes    {split: documents, sentences, tokens, blocks, shards}
    counts   [2, V] of the ids in each split

    `unknown` is the share of unknown tokens, `pieces` the number of different ids.
    """
    both = counts.sum(0)
    unknown = 0 if vocab.unk is None else int(both[vocab.unk])
    return {
        "splits": sizes,
        "pieces": int(np.count_nonzero(both)),
        "unknown": unknown / max(1, int(both.sum())),
    }


class Part(NamedTuple):
    """A language of a mixture: its corpus, how rows are cut from it, and its share."""

    name: str
    corpus: Corpus
    examples: slots.Examples
    share: float


class Mixture(slots.Examples):
    """Trait: examples that cut each language of a corpus by itself.

    batches   whether all rows of a batch are of one language, which is drawn for each batch
    apart     whether the held-out text of each language is also measured by itself
    """

    batches: bool = False
    apart: bool = False

    def parts(self, corpus: Corpus, split: str) -> Sequence[Part]:
        """Returns the languages of a split that have text. Raises UserError for unknown ones."""
        raise NotImplementedError

    def paced(self, parts: Sequence[Part]) -> tuple[Sequence[Part], float]:
        """Returns the languages that an epoch reads once, and their share of its text."""
        return parts, 1.0


def apart(examples: slots.Examples, corpus: Corpus, split: str) -> Sequence[Part]:
    """Returns the parts of a split that are also measured by themselves; () without any."""
    if not (isinstance(examples, Mixture) and examples.apart and corpus.languages):
        return ()
    return examples.parts(corpus, split)


def each(examples: slots.Examples, corpus: Corpus, split: str) -> Sequence[Part]:
    """Returns the languages of a split, of several, where `apart` measures none by itself."""
    if not isinstance(examples, Mixture) or examples.apart or len(corpus.languages) < 2:
        return ()
    return examples.parts(corpus, split)


def shares_of(sizes: np.ndarray, power: float) -> np.ndarray:
    """Returns the shares sizes^power, divided by their sum; 0 of size 0."""
    weights = np.where(sizes > 0, np.maximum(sizes, 1.0) ** power, 0.0)
    return weights / max(weights.sum(), 1e-300)


FEWEST = 8
"""Groups of a language in an epoch at least, so that whole numbers are near the shares."""


def quotas(groups: np.ndarray, tokens: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns the groups of each language in an epoch, in which its share of the text is `shares`.

    groups, tokens   of each language in the corpus; its groups may be of fewer tokens than others
    """
    weights = shares * groups / np.maximum(tokens, 1)
    weights /= weights.sum()
    total = max(groups.sum(), math.ceil(FEWEST / weights.min()))
    return np.maximum(1, np.round(total * weights)).astype(int)


def order(quotas: tuple[int, ...], seed: int, epoch: int) -> np.ndarray:
    """Returns the groups of an epoch, [N, 2]: a language, and the number of its group there."""
    languages = np.repeat(np.arange(len(quotas)), quotas)
    numbers = np.concatenate([np.arange(quota) for quota in quotas])
    drawn = np.random.default_rng([seed, epoch, 2]).permutation(len(languages))
    return np.stack([languages, numbers], 1)[drawn]
