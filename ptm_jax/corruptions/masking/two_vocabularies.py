"""Rows in two vocabularies: the student's, and one that mixes both.

Zhao et al. 2019, arXiv 1909.11687.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, is_special
from ptm_jax.corruptions.compact import layout, moved, take
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.knowledge.second_vocabulary import SecondVocabulary

MIXED, SECOND = "mixed", "student"
"""Prefixes of the fields of the two rows."""
_GIVEN = "input_ids", "segment_ids", "positions"
_HIDDEN = "mlm_positions", "mlm_labels", "mlm_weights"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoVocabularies(slots.Corruption):
    """Adds two rows to the row of teacher tokens, each with masks (section 3.2, dual training).

        mixed      each word has the student's pieces with probability `share`
        student    all words have the student's pieces

    The fields of a row p are `p_input_ids`, `p_segment_ids`, `p_positions` [B, T], T = ceil(room *
    L), and `p_mlm_positions`, `p_mlm_labels`, `p_mlm_weights` [B, P]. Piece i of the student has
    the id V + i in the mixed row. There `mixed_mlm_*` predicts pieces of the teacher;
    `mixed_second_labels` (ids of the student) and `mixed_second_weights` predict pieces of the
    student. Tokens that do not fit are cut off. `word_starts` [B, L] divides words.

    Deviation: a word that the teacher's vocabulary divides is divided there before the student's
    divides its parts.
    """

    vocab: Vocab
    second: SecondVocabulary = SecondVocabulary()
    share: float = 0.5
    rate: float = 0.15
    room: float = 1.25

    def __post_init__(self):
        if not 0 <= self.share <= 1 or self.room < 1:
            raise ValueError(
                f"share is {self.share} and room {self.room}; a share in [0, 1], and at least 1"
            )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        if "word_starts" not in batch:
            raise UserError(
                "TwoVocabularies reads word_starts; wrap the examples in "
                "Annotated(fields=('word_starts',))"
            )
        ids, rows, first = batch["input_ids"], rows_of(batch), self.vocab.size
        drawn = draws(named(key, "vocabulary"), rows, ids.shape[1] + 1) < self.share
        chosen = take(drawn, jnp.cumsum(batch["word_starts"], 1)) & ~is_special(ids, self.vocab)
        always = jnp.ones_like(chosen)
        mixed = self._row(named(key, MIXED), batch, chosen, first, self.vocab)
        student = self._row(named(key, SECOND), batch, always, 0, self.second.vocab)
        labels, weights = mixed["mlm_labels"], mixed["mlm_weights"]
        foreign = labels >= first
        mixed |= {
            "mlm_labels": jnp.where(foreign, 0, labels),
            "mlm_weights": jnp.where(foreign, 0.0, weights),
            "second_labels": jnp.where(foreign, labels - first, 0),
            "second_weights": jnp.where(foreign, weights, 0.0),
        }
        fields = {f"{MIXED}_{name}": value for name, value in mixed.items()}
        return {**batch, **fields, **{f"{SECOND}_{name}": value for name, value in student.items()}}

    def _row(
        self, key: Array, batch: Batch, chosen: Array, first: int, vocab: Vocab
    ) -> dict[str, Array]:
        """Returns the masked row [B, T] in which the `chosen` tokens [B, L] have the student's
        pieces from id `first`."""
        ids, segments = batch["input_ids"], segments_of(batch)
        table = jnp.asarray(self.second.values)
        widths = jnp.where(chosen, (table >= 0).sum(1)[ids], 1) * (segments > 0)
        source, offset, real = layout(widths, math.ceil(self.room * ids.shape[1]))
        old = take(ids, source)
        new = jnp.where(take(chosen, source), first + table[old, offset], old)
        plain = {
            "input_ids": ids,
            "segment_ids": segments,
            "positions": jnp.zeros_like(ids),
            "rows": rows_of(batch),
        }
        row = moved(plain, new, source, real, vocab)
        row = TokenMasking(vocab=vocab, rate=self.rate)(key, row)
        return {name: row[name] for name in (*_GIVEN, *_HIDDEN)}
