"""Scores of texts whose vectors are kept: TwinBERT reads a query alone.
Lu et al. 2020, arXiv 2002.06275, section 3.3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.compress.students.twins import check_twins
from ptm_jax.core.towers import Tower

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


class StoredTexts:
    """Texts with their vectors, computed once.
    `model` is a `Pretrained` student of `twinbert`; `vectors` [n, D] may be read from a file in
    place of computing them. Raises UserError for another model."""

    def __init__(self, model: Pretrained, texts: Sequence[str], vectors: np.ndarray | None = None):
        check_twins(model.module)
        self.model, self.texts = model, tuple(texts)
        self.vectors = (
            model.encode(self.texts) if vectors is None else np.asarray(vectors, np.float32)
        )

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """Returns [q, n] float32: the probability of the second class for queries and stored texts.
        The query is the first text. Only the queries are read."""
        query_vectors, tower = (
            self.model.encode(queries),
            Tower(self.model.module, self.model.params[self.model.tower]),
        )
        pairs = (len(query_vectors), len(self.vectors), query_vectors.shape[1])
        query, stored = (
            np.broadcast_to(query_vectors[:, None], pairs),
            np.broadcast_to(self.vectors[None], pairs),
        )
        logits = tower.head("classify", query.reshape(-1, pairs[2]), stored.reshape(-1, pairs[2]))
        from scipy.special import softmax

        return softmax(np.asarray(logits), -1)[:, 1].reshape(pairs[:2])
