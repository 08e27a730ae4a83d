"""`ptm evaluate --task lama --entities`: vectors of the subjects in the text (E-BERT, Poerner et
al. 2020).

A file of word vectors that also has entities, as Wikipedia2Vec's (`ENTITY/Jean_Marais`; else the
name, with `_` for blanks), is mapped to the model's word vectors by least squares over the words
that are a token there (Eq. 1). `replace` puts the mapped vector in the place of the subject,
`concat` the vector and a slash before it (section 3.2). A fact whose subject has no vector is read
as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.saliency import predicted
from ptm_jax.inference.text import filling
from ptm_jax.tasks.clozes.fact_data import MASK, Question, Settings, rank_of

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained
    from ptm_jax.inference.words.word_vectors import WordVectors


class Mapped(NamedTuple):
    """Word vectors, their map [W, D] to the vectors of a model, and the model's mask [D]."""

    vectors: WordVectors
    map: np.ndarray
    mask: np.ndarray

    def of(self, subject: str) -> np.ndarray | None:
        """Returns the mapped vector [D] of an entity; None for an unknown one."""
        name = subject.replace(" ", "_")
        for word in (f"ENTITY/{subject}", f"ENTITY/{name}", name, subject, name.lower()):
            if word in self.vectors:
                return self.vectors[word] @ self.map
        return None


def mapped(model: Pretrained, vectors: WordVectors) -> Mapped:
    """Returns the map of vectors to a model's word vectors. Raises UserError."""
    tokenizer = model._tokenizer()
    words = {i: tokenizer.decode([i]).strip() for i in np.flatnonzero(~tokenizer.continuations)}
    ids = np.array([i for i, word in words.items() if word and word in vectors], np.int32)
    if len(ids) < vectors.width:
        raise UserError(
            f"{len(ids):,} words of --entities are tokens of {model.system.name}; the map needs at "
            f"least {vectors.width:,}, the width of the vectors"
        )
    table = predicted.vectors_of(model, np.append(ids, model.vocab.mask))
    known = np.asarray(vectors[[words[i] for i in ids]], np.float64)
    return Mapped(vectors, np.linalg.lstsq(known, table[:-1], rcond=None)[0], table[-1])


def measured(
    model: Pretrained, entities: Mapped, questions: Sequence[Question], settings: Settings
) -> tuple[dict[str, float], int]:
    """Returns the precision at 1 of both forms, and the number of subjects without a vector."""
    vectors = [
        entities.of(fact.subject) if fact.subject in fact.sentence else None
        for fact, *_ in questions
    ]
    figures, zero = {}, np.zeros_like(entities.mask)
    for form, entity in (("replace", MASK), ("concat", f"{MASK} / {{}}")):
        texts = [
            fact.sentence
            if vector is None
            else fact.sentence.replace(fact.subject, entity.format(fact.subject), 1)
            for (fact, *_), vector in zip(questions, vectors, strict=True)
        ]
        _, rows = filling.masked_rows(model, texts)
        places, moves = [], []
        for (fact, *_), row, vector in zip(questions, rows, vectors, strict=True):
            answer, *other = cloze_scores.masks_of(model, row)
            if other and fact.sentence.index(fact.subject) < fact.sentence.index(MASK):
                answer, other = other[0], [answer]
            places.append(answer)
            moves.append((other[0], vector - entities.mask) if other else (0, zero))
        scores = cloze_scores.at_places(model, rows, places, settings.batch, moves)
        ranks = [
            rank_of(question, settings.bounded(row))
            for question, row in zip(questions, scores, strict=True)
        ]
        figures[f"E-BERT {form}"] = float(np.mean(np.array(ranks) == 1))
    return figures, sum(vector is None for vector in vectors)
