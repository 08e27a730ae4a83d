"""Rows of a corpus of several domains with given shares: new text, and some of the old."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.slots import Examples
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.languages.mix import Mixture, Part
from ptm_jax.data.rows.examples import Around, Fields, Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares(Around, Mixture):
    """The rows of `examples` from the domains of a corpus (`domain:NAME=SOURCE`), with shares.

    Further pre-training on a domain alone forgets the old text; a share of it in each epoch is the
    usual remedy (rehearsal: Robins 1995; survey section 5.3). An epoch reads the domains without a
    share once. The held-out text of each domain is also measured by itself, as `NAME_loss`.

    shares   (name, share of the tokens) of domains; 0: it is measured and never trained on. Domains
             that are not named share what is left, in proportion to their tokens
    """

    apart = True
    alphabet = property(operator.attrgetter("examples.alphabet"))
    readings = property(operator.attrgetter("examples.readings"))

    shares: tuple[tuple[str, float], ...] = ()

    def __post_init__(self):
        total = sum(share for _, share in self.shares)
        if any(not 0 <= share < 1 for _, share in self.shares) or not total < 1:
            raise UserError(
                f"the shares of the old text are {', '.join(f'{s:g}' for _, s in self.shares)}; "
                "expected numbers from 0 on, whose sum is below 1"
            )
        if self.examples.continuing or isinstance(self.examples, Mixture):
            raise UserError(
                "shares of text need rows that do not continue each other, of one language; set "
                "examples, or leave --mix out"
            )

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields of `examples`. Raises UserError as they do."""
        return self.examples.spec(length, vocab)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the rows of `examples`."""
        return self.examples.rows(block, length=length, vocab=vocab, rng=rng)

    def parts(self, corpus: Corpus, split: str) -> Sequence[Part]:
        """Returns the domains of a split that have text; of the training text, those with a share.
        Raises UserError for the name of a share that the corpus does not have."""
        fixed = dict(self.shares)
        if not corpus.languages:
            return [Part("", corpus, self.examples, 1.0)]
        if wrong := sorted(fixed.keys() - corpus.languages.keys()):
            raise unknown("domain of this text", wrong[0], corpus.languages)
        texts = {name: corpus.language(name) for name in corpus.languages}
        sizes = {name: text.size(split)["tokens"] for name, text in texts.items()}
        others = sum(size for name, size in sizes.items() if name not in fixed)
        left = 1 - sum(fixed.values())
        shares = {
            name: fixed.get(name, left * size / max(others, 1)) for name, size in sizes.items()
        }
        return [
            Part(name, texts[name], self.examples, share)
            for name, share in shares.items()
            if sizes[name] and (share or split != "train")
        ]

    def paced(self, parts: Sequence[Part]) -> tuple[Sequence[Part], float]:
        named = {name for name, _ in self.shares}
        new = [part for part in parts if part.name not in named]
        return (new, sum(part.share for part in new)) if new else (parts, 1.0)


def shared(examples: Examples, shares: Sequence[tuple[str, float]]) -> Shares:
    """Returns the rows of `examples` with these shares, in the place of earlier ones.
    Raises UserError."""
    inner = examples.examples if isinstance(examples, Shares) else examples
    return Shares(examples=inner, shares=tuple(shares))
