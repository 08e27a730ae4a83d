"""Encoders and decoders of other libraries: `tokenizers` and sentencepiece."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import framing
from ptm_jax.data.tokenizers.framing import Added
from ptm_jax.data.tokenizers.published_pieces import piece_spans

GAPS = 100_000
"""Ids of a vocabulary that may have no piece, beside twice the pieces."""


class HuggingFace:
    """Encoder and decoder on a `tokenizers.Tokenizer`, without special tokens."""

    file = "tokenizer.json"

    def __init__(self, tokenizer):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        size = max(vocab.values(), default=-1) + 1  # ids may have gaps
        if size > 2 * len(vocab) + GAPS:
            raise ValueError(f"it holds {len(vocab)} pieces with ids up to {size - 1}")
        names = map(tokenizer.id_to_token, range(size))
        self.pieces = [f"<absent_{i}>" if name is None else name for i, name in enumerate(names)]
        self.bytes = tokenizer.to_str().encode()

    @classmethod
    def read(cls, path: Path) -> HuggingFace:
        """Reads a tokenizer.json."""
        return cls(tokenizers.Tokenizer.from_file(str(path)))

    def encode(
        self, texts: Sequence[str], added: Mapping[str, Added] | None = None
    ) -> list[np.ndarray]:
        """Returns ids [T] int32 of every text; special pieces are recognised if `added` has any."""
        rows = self._encoded(texts, added, spans=False)
        return [np.array(row.ids, np.int32) for row in rows]

    def spans(
        self, texts: Sequence[str], added: Mapping[str, Added] | None = None
    ) -> list[framing.Spans]:
        """Returns the ids of `encode` with the characters of each."""
        rows = self._encoded(texts, added, spans=True)
        return [framing.spans(row.ids, row.offsets) for row in rows]

    def _encoded(self, texts, added, spans: bool):
        special = any(one.special for one in (added or {}).values())
        backend = self._finding if special else self._plain
        try:
            encode = backend.encode_batch if spans else backend.encode_batch_fast
            return encode(list(texts), add_special_tokens=False)
        except (
            Exception
        ) as error:  # the library raises bare Exceptions, where the unknown token is missing
            raise UserError(
                f"the tokenizer cannot encode a text ({str(error)[:200]}); its vocabulary is "
                "not whole"
            ) from None

    @functools.cached_property
    def _finding(self):
        """A copy that recognises special tokens; changing the first is not thread-safe."""
        return tokenizers.Tokenizer.from_str(self._tokenizer.to_str())

    @functools.cached_property
    def _plain(self):
        """The backend that reads special tokens as text.
        In a unigram model, special tokens are pieces that text could match: they are renamed to
        what no text contains, which keeps ids and scores."""
        content = json.loads(self.bytes)
        special = {token["content"] for token in content["added_tokens"] if token["special"]}
        if not isinstance(content["model"].get("vocab"), list) or not special:
            return self._tokenizer
        content["added_tokens"] = [
            token for token in content["added_tokens"] if not token["special"]
        ]
        rows = content["model"]["vocab"]
        content["model"]["vocab"] = [
            [f"\uffff{p}\uffff" if p in special else p, score] for p, score in rows
        ]
        return tokenizers.Tokenizer.from_str(json.dumps(content | {"post_processor": None}))

    def divided(self, texts: Sequence[str]) -> list[list[tuple[str, tuple[int, int]]]]:
        """Returns (word, its characters) of every text from the normaliser and pre-tokeniser.
        Words are normalised; characters count in the original text."""
        normal, before = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        rows = []
        for text in texts:
            parts = tokenizers.PreTokenizedString(text)
            if normal is not None:
                parts.normalize(normal.normalize)
            before.pre_tokenize(parts)
            rows.append([(word, span) for word, span, _ in parts.get_splits()])
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


class SentencePiece:
    """Encoder and decoder on a sentencepiece model."""

    file = "sentencepiece.model"

    def __init__(self, model: bytes):
        import sentencepiece

        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.pieces = [self._processor.id_to_piece(i) for i in range(len(self._processor))]
        self.bytes = model

    @classmethod
    def read(cls, path: Path) -> SentencePiece:
        """Reads a sentencepiece model file."""
        return cls(path.read_bytes())

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns ids [T] int32 of every text."""
        return [np.array(row, np.int32) for row in self._processor.encode(list(texts))]

    def spans(self, texts: Sequence[str]) -> list[framing.Spans]:
        """Returns the ids of `encode` with the characters of each."""
        return [piece_spans(self._processor, text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids."""
        return self._processor.decode([int(i) for i in ids])
