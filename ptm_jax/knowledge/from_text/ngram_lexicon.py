"""The n-grams of a text whose tokens occur together more often than by chance (ZEN's lexicon)."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import decoded
from ptm_jax.knowledge.mentions import Lexicon, trie

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class NGramLexicon(Lexicon):
    """n-grams of 2 to `longest` tokens of the train split, numbered from 1 by falling count.

        PMI(a, b) = log(p(a b) / (p(a) p(b))),   p(a b) among adjacent pairs inside sentences

    An n-gram counts where each of its pairs has a PMI of at least `pmi` (Diao et al. 2019, arXiv
    1911.00720, section 2.1: a text is divided where the PMI is low), and is in the lexicon with at
    least `least` occurrences. The released file has 104,088 of 2 to 7 characters; its thresholds
    were not checked. With `file` it is read instead: lines of n-gram and count with a comma.

    size   rows of a table of their vectors: at most size - 1 n-grams; row 0 is none
    """

    size: int = 104_089
    longest: int = 7
    least: int = 15
    pmi: float = 1.0

    def __post_init__(self):
        if self.size < 2 or self.longest < 2 or self.least < 1:
            raise ValueError(
                f"size is {self.size}, longest {self.longest}, least {self.least}; expected at "
                "least 2, 2 and 1"
            )

    def read(self, corpus) -> np.ndarray:
        return self.of_tokenizer(corpus.tokenizer()) if self.file else self._counted(corpus)

    def of_tokenizer(self, tokenizer) -> np.ndarray | None:
        if self.file is None:
            return None
        path = Path(self.file).expanduser()
        if not path.is_file():
            raise UserError(f"no such lexicon of n-grams: {path}; expected lines of n-gram,count")
        grams = []
        for number, line in enumerate(decoded(path, path.read_bytes(), "utf-8").splitlines(), 1):
            gram, comma, count = line.rpartition(",")
            if not comma or not count.strip().isdigit():
                raise UserError(f"{path}:{number} is {line[:40]!r}; expected n-gram,count")
            grams.append(gram)
        rows = [tuple(row.tolist()) for row in tokenizer.encode_batch(grams[: self.size - 1])]
        return self._table(rows, len(tokenizer.pieces), str(path))

    def _table(self, grams: Sequence[tuple[int, ...]], vocab: int, source: str) -> np.ndarray:
        names: dict[tuple[int, ...], tuple[int]] = {}
        for number, gram in enumerate(grams, 1):
            if 2 <= len(gram) <= self.longest:
                names.setdefault(gram, (number,))
        if not names:
            raise UserError(
                f"{source} has no n-gram for the lexicon; lower its `least` ({self.least}) or "
                f"`pmi` ({self.pmi:g}), or give more text"
            )
        return trie(names, np.ones(vocab, bool))

    def _counted(self, corpus) -> np.ndarray:
        pairs, counts, size = corpus.bigrams(), corpus.counts("train"), corpus.vocab.size
        plain = np.ones(size, bool)
        unk = corpus.vocab.unk
        plain[[*corpus.vocab.specials, *([] if unk is None else [unk])]] = False
        together = pairs["count"] / max(pairs["count"].sum(), 1)
        shares = counts / max(counts.sum(), 1)
        chance = shares[pairs["first"]] * shares[pairs["second"]]
        close = together >= np.exp(self.pmi) * chance
        close &= plain[pairs["first"]] & plain[pairs["second"]]
        keys = (pairs["first"].astype(np.int64) * size + pairs["second"])[close]
        times: collections.Counter[tuple[int, ...]] = collections.Counter()
        blocks = corpus.blocks("train")
        for block in (blocks[number] for number in range(len(blocks))):
            times.update(_grams(block, keys, size, self.longest))
        ranked = sorted(
            ((gram, n) for gram, n in times.items() if n >= self.least),
            key=lambda item: (-item[1], item[0]),
        )
        return self._table([gram for gram, _ in ranked[: self.size - 1]], size, "the text")

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        return [1 + number % (self.size - 1)]


def _grams(block, keys: np.ndarray, size: int, longest: int) -> dict[tuple[int, ...], int]:
    """Returns {n-gram: occurrences} in a block; `keys` are the pairs that stand together."""
    tokens = block.tokens.astype(np.int64)
    if len(tokens) < 2 or not len(keys):
        return {}
    wanted = tokens[:-1] * size + tokens[1:]
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    joined = keys[place] == wanted
    inner = block.sentence_starts[1:-1]
    joined[inner[(inner > 0) & (inner < len(tokens))] - 1] = False
    counted, runs = {}, joined
    for n in range(2, longest + 1):
        if not runs.any():
            break
        windows = np.lib.stride_tricks.sliding_window_view(tokens, n)[runs]
        grams, times = np.unique(windows, axis=0, return_counts=True)
        counted |= dict(zip(map(tuple, grams.tolist()), times.tolist(), strict=True))
        runs = runs[:-1] & joined[n - 1 :]
    return counted
