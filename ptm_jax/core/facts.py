"""Corpus statistics that a slot reads. They are empty in a system and filled in from the corpus,
like `Vocab`.

    @dataclass(frozen=True, kw_only=True)
    class UnigramNoise(slots.Corruption):
        vocab: Vocab
        counts: Counts = Counts()           during training, `counts.values` holds the corpus counts
                                            [V]

The record of a run holds a hash of the values, not the values.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ptm_jax.core import slots, spec
from ptm_jax.core.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFact(slots.Slot):
    """An array computed from a corpus. Subclasses override `stand_in`, and `read` or, where the
    tokenizer of the corpus suffices, `of_tokenizer`.

    corpus_sha256   hash of the values; None until the corpus is known
    """

    corpus_sha256: str | None = None
    _values: Any = dataclasses.field(default=None, repr=False, compare=False)

    def read(self, corpus: Any) -> np.ndarray:
        """Returns the array of a corpus (`data.corpora.store.Corpus`)."""
        return self.of_tokenizer(corpus.tokenizer())

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray | None:
        """Returns the array of a tokenizer; None: it needs a corpus."""
        return None

    def stand_in(self, vocab: Any) -> np.ndarray:
        """Returns an array of the right shape and type, to plan a system without a corpus."""
        raise NotImplementedError

    def filled(self, values: np.ndarray) -> CorpusFact:
        """Returns a copy of the fact that holds `values`. The array is not copied."""
        digest = hashlib.sha256(np.ascontiguousarray(values)).hexdigest()
        return dataclasses.replace(self, corpus_sha256=digest, _values=values)

    @property
    def values(self) -> np.ndarray:
        """The array. Raises UserError if it has not been filled in."""
        if self._values is None:
            raise UserError(
                f"{type(self).__name__} is empty: it is filled in from a corpus; train or "
                "evaluate with --data"
            )
        return self._values


def fill(value: Any, corpus: Callable[[], Any]) -> Any:
    """Returns the spec with every fact read from `corpus()`, which is called only if the spec has
    facts."""
    return spec.respell(value, CorpusFact, lambda fact: fact.filled(fact.read(corpus())))


def known(value: Any, tokenizer: Any) -> Any:
    """Returns the spec with the facts that a tokenizer suffices for; all others stay."""

    def filled(fact):
        return fact if (values := fact.of_tokenizer(tokenizer)) is None else fact.filled(values)

    return value if tokenizer is None else spec.respell(value, CorpusFact, filled)


def stand_ins(value: Any, vocab: Any) -> Any:
    """Returns the spec with a stand-in for every fact."""
    return spec.respell(value, CorpusFact, lambda fact: fact.filled(fact.stand_in(vocab)))


def without_hashes(record: Any) -> Any:
    """Removes the hashes and sizes of facts from a JSON record, to compare runs on different
    corpora."""
    own = "corpus_sha256", "corpus_documents"
    if isinstance(record, Mapping):
        return {k: None if k in own else without_hashes(part) for k, part in record.items()}
    return [without_hashes(part) for part in record] if isinstance(record, list) else record
