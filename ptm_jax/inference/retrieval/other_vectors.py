"""Vectors of texts that are no dense array: sparse ones over the vocabulary (SPLADE), and one for
each token (ColBERT).

`Pretrained.encode` returns the first as a SciPy matrix [n, V], the others as a list of arrays
[tokens, F]. In a file a text has one row of numbers: `packed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference import bars, inputs, steady
from ptm_jax.inference.forward_pass import forward
from ptm_jax.inference.retrieval import late_rows
from ptm_jax.inference.retrieval.text_rows import prompted_limit, rows_of
from ptm_jax.nn.heads.retrieval.late_vectors import COUNTED, token_head
from ptm_jax.nn.heads.retrieval.sparse_vector import sparse_head
from ptm_jax.objectives.sentences.base import HEAD

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix as Matrix

    from ptm_jax.inference.pretrained import Pretrained

Tokens = list[np.ndarray]
"""Vectors [tokens, F] of each text."""
Row = Mapping[str, np.ndarray]
"""The fields of a row of ids."""
PRODUCTS = 1 << 24
"""Products of tokens that `similarity` has in memory at once."""


def _matrix(*content: object, **options: object) -> Matrix:
    """Returns scipy's matrix, whose import takes longer than that of this package."""
    from scipy.sparse import csr_matrix

    return csr_matrix(*content, **options)


def form_of(model: Pretrained) -> Sparse | Late | None:
    """Returns the form of a model's vectors; None: a dense array."""
    heads = model.module.heads
    if sparse_head(heads) is not None:
        return Sparse(model)
    return None if token_head(heads) is None else Late(model)


class _Form:
    """The vectors of a model. A subclass makes rows, and reads the output of the head."""

    name: str

    def __init__(self, model: Pretrained):
        self.model = model

    def encode(
        self, texts: Sequence[str], *, query: bool, batch_size: int, specials: bool,
        truncate: bool, progress: bool | None, **refused: object,
    ) -> Any:  # fmt: skip
        """Returns the vectors of texts. Raises UserError for options of dense vectors."""
        if named := [name for name, value in refused.items() if value]:
            raise UserError(
                f"{named[0]} is for one dense vector a text; {self.model.system.name} gives "
                f"{self.name}: leave it out"
            )
        rows = self._rows(inputs.texts_of(texts), query, specials, truncate)
        vectors: list[Any] = [None] * len(rows)
        shown = False if steady.inside() else progress
        ids_of_rows = [row["input_ids"] for row in rows]
        with bars.bar(len(rows), "text", shown=shown) as bar:
            for chosen in inputs.batches(ids_of_rows, batch_size):
                for number, one in zip(chosen, self._read([rows[n] for n in chosen]), strict=False):
                    vectors[number] = one
                bar.update(len(chosen))
        return self.joined(vectors)

    def _rows(self, texts, query: bool, specials: bool, truncate: bool) -> list[Row]:
        raise NotImplementedError

    def _read(self, rows: Sequence[Row]) -> Iterator[Any]:
        raise NotImplementedError

    def joined(self, vectors: Sequence[Matrix] | Tokens) -> Matrix | Tokens:
        raise NotImplementedError

    def _output(self, rows: Sequence[Row]) -> Any:
        """Returns the output of the head for rows of ids, padded."""
        model, pad = self.model, self.model.vocab.pad
        ids, _ = inputs.rectangle([row["input_ids"] for row in rows], pad)
        names = [name for name in rows[0] if name not in ("input_ids", "positions")]
        fields = {name: inputs.rectangle([row[name] for row in rows], 0)[0] for name in names}
        mask = fields.get("segment_ids", np.ones_like(ids))
        batch = model._batch(ids, mask)
        if COUNTED in fields:
            more = [
                (0, full - part)
                for full, part in zip(batch["input_ids"].shape, ids.shape, strict=True)
            ]
            batch[COUNTED] = np.pad(fields[COUNTED], more)
        wanted = f"scores/{HEAD}"
        return forward(model.module, model.head, (wanted,), model.weights, batch)[wanted]


class Sparse(_Form):
    """A weight for each word of the vocabulary, mostly 0."""

    name = "a sparse vector"

    def _rows(self, texts, query, specials, truncate):
        return [
            {"input_ids": ids, "segment_ids": np.ones(len(ids), np.int32)}
            for ids in rows_of(self.model, texts, specials, truncate)
        ]

    def _read(self, rows):
        weights = np.asarray(self._output(rows))[: len(rows)]
        return (_matrix(row) for row in weights)

    def joined(self, vectors):
        if not vectors:
            return _matrix((0, self.model.vocab.size), dtype=np.float32)
        from scipy.sparse import vstack

        return vstack(vectors, "csr")

    def similarity(self, a: Matrix, b: Matrix) -> np.ndarray:
        """Returns the dot products [n, m] float32."""
        return (_matrix(a) @ _matrix(b).T).toarray()

    def packed(self, vectors: Matrix) -> list[np.ndarray]:
        """Returns a row for each text: the numbers of its words, then their weights, float32."""
        rows = (vectors[number] for number in range(vectors.shape[0]))
        return [np.concatenate([row.indices, row.data]).astype(np.float32) for row in rows]

    def unpacked(self, rows: Sequence[np.ndarray]) -> Matrix:
        """Inverts `packed`."""
        sizes = np.array([len(row) // 2 for row in rows], np.int64)
        parts = [np.split(row, 2) for row in rows]
        empty = [np.zeros(0, np.float32)]
        words, weights = (np.concatenate([part[n] for part in parts] or empty) for n in (0, 1))
        ends = np.concatenate([[0], np.cumsum(sizes)])
        shape = (len(rows), self.model.vocab.size)
        return _matrix((weights, words.astype(np.int32), ends), shape)

    def shown(self, vector: Matrix) -> dict[str, float]:
        """Returns {piece: weight} of a text, the largest weight first."""
        order = np.argsort(-vector.data, kind="stable")
        piece = self.model._tokenizer().piece
        return {piece(int(vector.indices[n])): float(vector.data[n]) for n in order}


class Late(_Form):
    """A vector of length 1 for each token that counts."""

    name = "a vector for each token"

    def _rows(self, texts, query, specials, truncate):
        model, rows = self.model, token_head(self.model.module.heads).rows
        tokenizer, limit = model._tokenizer(), prompted_limit(model)
        length = limit or max(rows.query_length, rows.document_length or 512)
        size = late_rows.room(rows, tokenizer, length, query)
        encoded = tokenizer.encode_batch(texts, specials)
        long = next((n for n, ids in enumerate(encoded, 1) if len(ids) > size), None)
        if long is not None and not (truncate or query):
            raise UserError(
                f"text {long} has {len(encoded[long - 1])} tokens; a document of this model holds "
                f"{size}: shorten or split it, or cut it with truncate=True (--truncate)"
            )
        return [late_rows.row_of(rows, tokenizer, ids, length, query) for ids in encoded]

    def _read(self, rows):
        output = self._output(rows)
        tokens, real = (np.asarray(output[name]) for name in ("tokens", "real"))
        return (tokens[n][real[n] > 0] for n in range(len(rows)))

    def joined(self, vectors):
        return list(vectors)

    def similarity(self, a: Tokens, b: Tokens) -> np.ndarray:
        """Returns MaxSim [n, m] float32 of queries and documents."""
        scores = np.zeros((len(a), len(b)), np.float32)
        if not (len(a) and len(b)):
            return scores
        queries = np.concatenate(a).astype(np.float32)
        starts = np.cumsum([0, *map(len, a)])[:-1]
        longest = max(1, max(map(len, b)))
        size = max(1, PRODUCTS // max(1, len(queries) * longest))
        for first in range(0, len(b), size):
            part = b[first : first + size]
            stops = np.cumsum([0, *map(len, part)])
            filled = np.flatnonzero(np.diff(stops))
            if not len(filled):
                continue
            products = queries @ np.concatenate(part).astype(np.float32).T
            best = np.maximum.reduceat(products, stops[:-1][filled], axis=1)
            scores[:, first + filled] = np.add.reduceat(best, starts, axis=0)
        return scores

    def packed(self, vectors: Tokens) -> list[np.ndarray]:
        """Returns a row for each text: the vectors of its tokens, one after the other."""
        return [tokens.reshape(-1) for tokens in vectors]

    def unpacked(self, rows: Sequence[np.ndarray]) -> Tokens:
        """Inverts `packed`."""
        features = token_head(self.model.module.heads).features
        return [np.asarray(row).reshape(-1, features) for row in rows]

    def shown(self, vector: np.ndarray) -> list[list[float]]:
        """Returns the vectors of the tokens of a text."""
        return vector.tolist()
