"""Blocks: several documents as arrays, and as a record of a shard."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from ptm_jax.core.errors import UserError

_HEADER = np.dtype("<u4")
_MAGIC = 0x314D5450  # 'PTM1'


@dataclasses.dataclass(frozen=True)
class Block:
    """Several documents, or a piece of a long one.

    tokens     [T] int32    ids of all documents, concatenated, without special tokens
    sentences  [S] int32    tokens of every sentence
    documents  [N] int32    sentences of every document
    continued  [N] bool     whether the document continues from the block written before this one
    words      [V] bool     ids that begin a word (`Corpus.word_starts`), if the examples need them;
                            not stored
    spellings  [V, C] int16 characters of every id (`data.tokenizers.words.spellings`), if the
                            examples need them; not stored
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    continued: np.ndarray
    words: np.ndarray | None = None
    spellings: np.ndarray | None = None

    @functools.cached_property
    def sentence_starts(self) -> np.ndarray:
        """[S + 1] int64: the starts of sentences in `tokens`, and the end."""
        return np.concatenate([[0], np.cumsum(self.sentences, dtype=np.int64)])

    @functools.cached_property
    def document_starts(self) -> np.ndarray:
        """[N + 1] int64: the starts of documents in `sentences`, and the end."""
        return np.concatenate([[0], np.cumsum(self.documents, dtype=np.int64)])

    @functools.cached_property
    def document_tokens(self) -> np.ndarray:
        """[N + 1] int64: the starts of documents in `tokens`, and the end."""
        return self.sentence_starts[self.document_starts]


def join(blocks: list[Block]) -> Block:
    """Returns one block with the documents of all."""
    columns = zip(*((b.tokens, b.sentences, b.documents, b.continued) for b in blocks), strict=True)
    return Block(*map(np.concatenate, columns), words=blocks[0].words)


def to_bytes(block: Block) -> bytes:
    """Returns the record of a block.
    It holds five sizes, sentences, documents, tokens (uint16 where they fit) and flags."""
    wide = bool(block.tokens.size and block.tokens.max() > 0xFFFF)
    head = np.array(
        [_MAGIC, wide, len(block.tokens), len(block.sentences), len(block.documents)], _HEADER
    )
    return b"".join([
        head.tobytes(),
        block.sentences.astype("<u4").tobytes(),
        block.documents.astype("<u4").tobytes(),
        block.tokens.astype("<u4" if wide else "<u2").tobytes(),
        block.continued.astype("u1").tobytes(),
    ])  # fmt: skip


def from_bytes(record: bytes) -> Block:
    """Returns the block of a record. Raises UserError for a damaged record."""
    head = np.frombuffer(record, _HEADER, 5) if len(record) >= 20 else np.zeros(5, _HEADER)
    wide, tokens, sentences, documents = (int(n) for n in head[1:])
    size = 20 + 4 * (sentences + documents) + tokens * (4 if wide else 2) + documents
    if head[0] != _MAGIC or size != len(record):
        raise UserError(
            "a record of the corpus is damaged; delete the prepared directory and prepare it again"
        )
    offset, parts = 20, []
    for count, kind in (
        (sentences, "<u4"),
        (documents, "<u4"),
        (tokens, "<u4" if wide else "<u2"),
        (documents, "u1"),
    ):
        parts.append(np.frombuffer(record, kind, count, offset))
        offset += parts[-1].nbytes
    lengths, counts, ids, continued = parts
    return Block(
        ids.astype(np.int32),
        lengths.astype(np.int32),
        counts.astype(np.int32),
        continued.astype(bool),
    )
