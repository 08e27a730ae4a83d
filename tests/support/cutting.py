"""A block of documents whose tokens all differ, and rows that are cut from it."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np

from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.block_records import Block, from_bytes
from ptm_jax.data.rows import examples as ex
from ptm_jax.data.rows import text_pairs

VOCAB = Vocab(size=100_000, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=6)
FIRST = 10
"""The id of the first token."""
KINDS = [
    ex.Packed(),
    ex.Packed(begin=None, end="eos"),
    ex.FullSentences(),
    ex.Contiguous(),
    text_pairs.SentencePairs(),
]


def block(
    documents: int = 20, seed: int = 0, longest: int = 20, sentences: int = 12, characters: int = 8
) -> Block:
    """Tokens `FIRST`, `FIRST` + 1, ...; with the tables of words and characters."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, sentences + 1, documents).astype(np.int32)
    lengths = draw.integers(1, longest + 1, counts.sum()).astype(np.int32)
    tokens = np.arange(FIRST, FIRST + lengths.sum(), dtype=np.int32)
    words = draw.random(VOCAB.size) < 0.7
    spellings = draw.integers(0, 100, (VOCAB.size, characters)).astype(np.int16)
    return Block(tokens, lengths, counts, np.zeros(documents, bool), words, spellings)


def document(*tokens: int) -> Block:
    """A block of one document of one sentence."""
    return Block(
        np.array(tokens, np.int32),
        np.array([len(tokens)], np.int32),
        np.ones(1, np.int32),
        np.zeros(1, bool),
    )


def stored(paths: list[str]) -> list[Block]:
    """The blocks of record files."""
    source = grain.sources.ArrayRecordDataSource(paths)
    return [from_bytes(source[i]) for i in range(len(source))]


def owners(given: Block) -> np.ndarray:
    """[T]: the number of every token's document."""
    return np.repeat(np.arange(len(given.documents)), np.diff(given.document_tokens))


def cut(examples: Any, given: Block, length: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    """The rows of a block."""
    return examples.rows(given, length=length, vocab=VOCAB, rng=np.random.default_rng(seed))


def texts(rows: dict[str, np.ndarray]) -> list[list[int]]:
    """The ids of every row, without padding."""
    return [
        ids[real].tolist()
        for ids, real in zip(rows["input_ids"], rows["segment_ids"] > 0, strict=True)
    ]


def bounds(starts: np.ndarray) -> list[tuple[int, int]]:
    """Neighbours as (start, stop)."""
    return list(zip(starts.tolist(), starts.tolist()[1:], strict=False))


def sides(rows: dict[str, np.ndarray], r: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(A, B, label) of a row of a pair; its frame is checked, and that each side is one run of the
    text."""
    real = rows["segment_ids"][r] > 0
    ids, types = rows["input_ids"][r][real], rows["token_type_ids"][r][real]
    split = int(np.argmax(types))
    assert ids[0] == VOCAB.cls and ids[split - 1] == VOCAB.sep and ids[-1] == VOCAB.sep
    assert (
        not types[:split].any()
        and types[split:].all()
        and not rows["token_type_ids"][r][~real].any()
    )
    first, second = ids[1 : split - 1], ids[split:-1]
    assert (
        len(first) and len(second) and np.all(np.diff(first) == 1) and np.all(np.diff(second) == 1)
    )
    return first, second, int(rows["next_label"][r])
