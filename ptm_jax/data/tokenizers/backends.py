"""Encoders and decoders of other libraries: `tokenizers` and sentencepiece."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import read_bytes, size_of
from ptm_jax.data.languages import segmenters
from ptm_jax.data.tokenizers import framing
from ptm_jax.data.tokenizers.framing import Added
from ptm_jax.data.tokenizers.published_pieces import piece_spans

GROWTH = 1000
"""How often longer a text may become by the rules of a tokenizer."""
GAPS = 100_000
"""Ids of a vocabulary that may have no piece, beside twice the pieces."""


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Converts a panic of the library's Rust code, which is no `Exception`, to a ValueError."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise ValueError(str(error).partition("\n")[0]) from None


def encoded(encode: Callable, texts: Sequence[str]) -> list[tokenizers.Encoding]:
    """Returns the encodings of texts by a method of the library. Raises UserError."""
    try:
        with guarded():
            return encode(list(texts), add_special_tokens=False)
    except Exception as error:  # bare ones, where the unknown token is missing
        raise UserError(
            f"the tokenizer cannot encode a text ({str(error)[:200]}); its vocabulary or one "
            "of its rules is damaged"
        ) from None


def check_growth(tokenizer: tokenizers.Tokenizer) -> None:
    """Raises ValueError for replacements that can lengthen a text too much.

    The limit is `GROWTH` times the length, for all of them one after another.
    """
    growth = 1.0
    for part in (tokenizer.normalizer, tokenizer.decoder):
        if part is not None:
            growth = max(growth, _growth(json.loads(part.__getstate__())))
    if growth > GROWTH:
        raise ValueError(f"its replacements can make a text {growth:.3g} times as long")


def _growth(step: Mapping) -> float:
    parts = step.get("normalizers") or step.get("decoders") or ()
    pattern = step.get("pattern") if step.get("type") == "Replace" else None
    if pattern is None:
        return math.prod(map(_growth, parts))
    if "Regex" in pattern:
        return max(1, len(step["content"]))
    return max(1, len(step["content"]) / max(1, len(pattern["String"])))


class HuggingFace:
    """Encoder and decoder on a `tokenizers.Tokenizer`, without special tokens."""

    file = "tokenizer.json"

    def __init__(self, tokenizer):
        check_growth(tokenizer)
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
        with guarded():
            if path.exists():
                size_of(path)  # refuses what is no regular file
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
        return encoded(backend.encode_batch if spans else backend.encode_batch_fast, texts)

    @functools.cached_property
    def _finding(self):
        """A copy that recognises special tokens; changing the first is not thread-safe."""
        return tokenizers.Tokenizer.from_str(self._tokenizer.to_str())

    @functools.cached_property
    def _plain(self):
        """The backend that reads special tokens as text.

        In a unigram model, special tokens are pieces that text could match. They are renamed with a
        noncharacter (U+FFFF) at both ends; ids and scores stay. A text that spells a special token
        is then divided into ordinary pieces, where Transformers gives the special one.
        """
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
            with guarded():
                if normal is not None:
                    parts.normalize(normal.normalize)
                before.pre_tokenize(parts)
            rows.append([(word, span) for word, span, _ in parts.get_splits()])
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids."""
        try:
            with guarded():
                return self._tokenizer.decode(list(ids), skip_special_tokens=False)
        except ValueError as error:
            raise UserError(
                f"the tokenizer cannot decode ids ({str(error)[:200]}); one of its rules is damaged"
            ) from None


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
        return cls(read_bytes(path) if path.exists() else path.read_bytes())

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns ids [T] int32 of every text."""
        return [np.array(row, np.int32) for row in self._processor.encode(list(texts))]

    def spans(self, texts: Sequence[str]) -> list[framing.Spans]:
        """Returns the ids of `encode` with the characters of each."""
        return [piece_spans(self._processor, text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids."""
        return self._processor.decode([int(i) for i in ids])


class Segmented:
    """A backend that reads text as the words of a segmenter, with one blank between two."""

    def __init__(self, inner: HuggingFace | SentencePiece, segmenter: str):
        self.inner, self.segmenter = inner, segmenters.check(segmenter)
        self.pieces, self.file, self.bytes = inner.pieces, inner.file, inner.bytes
        self.decode = inner.decode

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns ids [T] int32 of every text."""
        return self.inner.encode([segmenters.spaced(self.segmenter, text)[0] for text in texts])

    def spans(self, texts: Sequence[str]) -> list[framing.Spans]:
        """Returns the ids of `encode` with the characters of each in the text as it was."""
        rows = []
        for text in texts:
            words, places = segmenters.spaced(self.segmenter, text)
            (row,) = self.inner.spans([words])
            spans = [
                (places[start][0], places[stop - 1][1]) if start < stop else (0, 0)
                for start, stop in row.characters.tolist()
            ]
            rows.append(framing.spans(row.ids, spans))
        return rows

    def divided(self, texts: Sequence[str]) -> list[list[tuple[str, tuple[int, int]]]]:
        """Returns (word, its characters) of every text, as `HuggingFace.divided`."""
        rows = []
        for text in texts:
            words, places = segmenters.spaced(self.segmenter, text)
            (row,) = self.inner.divided([words])
            rows.append([(word, (places[a][0], places[b - 1][1])) for word, (a, b) in row])
        return rows
