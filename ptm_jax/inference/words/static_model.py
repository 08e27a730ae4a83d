"""Static vectors of tokens (model2vec's models).
A text's vector is the mean of its tokens' vectors, without a network."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import tokenizers

from ptm_jax.convert.words import static_folder
from ptm_jax.convert.words.static_folder import StaticTable
from ptm_jax.convert.words.wordtable import WordTable
from ptm_jax.data.tokenizers.backends import encoded
from ptm_jax.inference import inputs
from ptm_jax.inference.text.vectors import unit
from ptm_jax.inference.words.word_vectors import WordVectors

LONGEST = 512
"""Tokens of a text that count, where the folder does not say."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class StaticModel(WordVectors):
    """Vectors [V, D] of the tokens of a tokenizer."""

    static: StaticTable | None = None
    encodes: ClassVar[bool] = True

    @classmethod
    def read(cls, folder: str | os.PathLike) -> StaticModel:
        """Reads a folder in model2vec's layout. Raises UserError."""
        content = static_folder.read(Path(folder))
        return cls.made(content)

    @classmethod
    def made(cls, static: StaticTable) -> StaticModel:
        """Returns the model of a table."""
        words = list(static_folder.pieces_of(static.tokenizer, Path("tokenizer.json")))
        return cls(WordTable(words=words, rows=static.vectors, format=static_folder.KIND), static)

    def __repr__(self) -> str:
        return f"StaticModel: {len(self):,} tokens of width {self.width}; texts are means of them"

    def encode(self, texts: Sequence[str], normalize: bool | None = None) -> np.ndarray:
        """Returns the vectors [n, D] float32 of texts: means over their tokens without the unknown
        one; zeros where none is left. `normalize`: to length 1 (default: the folder's setting).
        Only the first 512 tokens count (or the folder's `max_length`)."""
        fields, longest = self.static.fields, self.static.fields.get("max_length", LONGEST)
        rows = [
            row.ids for row in encoded(self._tokenizer.encode_batch_fast, inputs.texts_of(texts))
        ]
        vectors = np.zeros((len(rows), self.width), np.float32)
        for i, row in enumerate(rows):
            if tokens := [token for token in row[:longest] if token != self._unknown]:
                vectors[i] = self.vectors[tokens].mean(0)
        return (
            unit(vectors)
            if (fields.get("normalize", False) if normalize is None else normalize)
            else vectors
        )

    def save(self, path: str | os.PathLike, format: str | None = None) -> list[Path]:
        """Writes a folder in model2vec's layout ("static", the default without an ending), or the
        vectors of the tokens in a format of `WordVectors.save`."""
        if format == "static" or (format is None and not Path(path).suffix):
            return static_folder.write(Path(path), self.static)
        return super().save(path, format)

    @functools.cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer.from_str(self.static.tokenizer.decode())
        backend.no_padding()
        backend.no_truncation()
        return backend

    @functools.cached_property
    def _unknown(self) -> int | None:
        """The id of the unknown token, if any."""
        model = self._tokenizer.model
        if isinstance(model, tokenizers.models.Unigram):
            return None
        return None if model.unk_token is None else self._tokenizer.token_to_id(model.unk_token)
