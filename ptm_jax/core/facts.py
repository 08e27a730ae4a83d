"""Corpus statistics that a slot reads: named arrays.

They are empty in a system and filled in from the corpus, like `Vocab`.

    @dataclass(frozen=True, kw_only=True)
    class UnigramNoise(slots.Corruption):
        vocab: Vocab
        counts: Counts = Counts()

During training `counts.values` holds the corpus counts [V].
The record of a run holds a hash of the arrays, not the arrays.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ptm_jax.core import slots, spec
from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


Arrays = np.ndarray | Mapping[str, np.ndarray]
"""One array, or several by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFact(slots.Slot):
    """Arrays computed from a corpus.

    Subclasses override `stand_in`, and one of `read` and `of_tokenizer` (if the corpus's tokenizer
    suffices). A fact of several arrays names them.

    array_names     names of the arrays; a fact of one array returns it without a name
    corpus_sha256   hash of the arrays; None until the corpus is known
    """

    array_names: ClassVar[tuple[str, ...]] = ("values",)

    corpus_sha256: str | None = None
    _arrays: Any = dataclasses.field(default=None, repr=False, compare=False)

    def read(self, corpus: Any) -> Arrays:
        """Returns the arrays of a corpus (`data.corpora.store.Corpus`)."""
        return self.of_tokenizer(corpus.tokenizer())

    def of_tokenizer(self, tokenizer: Any) -> Arrays | None:
        """Returns the arrays of a tokenizer; None: the fact needs a corpus."""
        return None

    def stand_in(self, vocab: Vocab) -> Arrays:
        """Returns arrays of the right shapes and types, to plan a system without a corpus."""
        raise NotImplementedError

    def filled(self, arrays: Arrays) -> CorpusFact:
        """Returns a copy of the fact that holds the arrays, which are not copied.

        Raises ValueError for other names than `array_names`.
        """
        named = arrays if isinstance(arrays, Mapping) else {"values": arrays}
        if {*named} != {*self.array_names}:
            raise ValueError(
                f"{type(self).__name__} holds the arrays {', '.join(self.array_names)}; "
                f"it was given {', '.join(named)}"
            )
        digest = hashlib.sha256()
        for name in self.array_names:
            digest.update(np.ascontiguousarray(named[name]))
        return dataclasses.replace(self, corpus_sha256=digest.hexdigest(), _arrays=dict(named))

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """{name: array}. Raises UserError if the fact has not been filled in."""
        if self._arrays is None:
            raise UserError(
                f"{type(self).__name__} is empty: it is filled in from a corpus; train or "
                "evaluate with --data"
            )
        return self._arrays

    @property
    def values(self) -> np.ndarray:
        """The array named "values", the only one of most facts."""
        return self.arrays["values"]


def fill(value: Any, corpus: Callable[[], Any]) -> Any:
    """Returns the spec with every fact read from `corpus()`.

    `corpus` is called only if the spec has facts.
    """
    return spec.respell(value, CorpusFact, lambda fact: fact.filled(fact.read(corpus())))


def known(value: Any, tokenizer: Any) -> Any:
    """Returns the spec with the facts that a tokenizer suffices for; all others stay."""

    def filled(fact):
        return fact if (arrays := fact.of_tokenizer(tokenizer)) is None else fact.filled(arrays)

    return value if tokenizer is None else spec.respell(value, CorpusFact, filled)


def lacks(value) -> bool:
    """Returns whether the spec has a fact that has not been filled in."""
    parts = (part for _, part in spec.walk(value))
    return any(isinstance(part, CorpusFact) and part._arrays is None for part in parts)


def stand_ins(value: Any, vocab: Vocab) -> Any:
    """Returns the spec with a stand-in for every fact."""
    return spec.respell(value, CorpusFact, lambda fact: fact.filled(fact.stand_in(vocab)))


def without_hashes(record: Any) -> Any:
    """Removes the hashes and sizes of facts from a JSON record.

    Records of runs on different corpora can then be compared.
    """
    measured = "corpus_sha256", "corpus_documents"
    if isinstance(record, Mapping):
        return {k: None if k in measured else without_hashes(part) for k, part in record.items()}
    return [without_hashes(part) for part in record] if isinstance(record, list) else record
