"""Writes tokenized documents as the blocks of one shard."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.data.corpora import block_records
from ptm_jax.data.corpora.worker import Tokens


class Shard:
    """Writer of one array_record file, which gets its name when it is `finished`."""

    def __init__(self, folder: Path, name: str, vocab: int, block_tokens: int):
        self._path, self._done = folder / f"{name}.array_record", folder / f"{name}.done.json"
        self._partial = folder / f"{name}.partial"
        self._counts_path = folder / f"{name}.done.npy"
        self._counts = np.zeros(vocab, np.int64)
        self._limit, self._room = block_tokens, block_tokens
        self._sizes = dict.fromkeys(("documents", "sentences", "tokens", "blocks"), 0)
        self._pieces, self._writer = [], None

    @property
    def finished(self) -> bool:
        """Whether an earlier run finished this shard."""
        return self._done.exists()

    def facts(self) -> dict[str, Any]:
        """Returns the numbers of a finished shard.
        They are `file`, `bytes`, `documents`, `sentences`, `tokens` and `blocks`."""
        return json.loads(self._done.read_text())

    def counts(self) -> np.ndarray:
        """Returns [V] int64: the unigram counts of a finished shard."""
        return np.load(self._counts_path)

    @property
    def documents(self) -> int:
        """Documents added so far."""
        return self._sizes["documents"]

    def add(self, chunk: Tokens) -> None:
        """Adds documents; writes full blocks."""
        self._counts += np.bincount(chunk.tokens, minlength=len(self._counts))
        self._sizes["documents"] += len(chunk.documents)
        self._sizes["tokens"] += len(chunk.tokens)
        token = sentence = 0
        for count in chunk.documents.tolist():
            lengths = _cut(chunk.sentences[sentence : sentence + count], self._limit)
            size = int(lengths.sum())
            self._document(chunk.tokens[token : token + size], lengths)
            token, sentence = token + size, sentence + count

    def _document(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Adds a document, divided at sentence ends only where it is longer than a block."""
        continued = False
        while len(tokens) > self._room:
            if self._room < self._limit and (len(tokens) <= self._limit or lengths[0] > self._room):
                self._flush()
                continue
            ends = np.cumsum(lengths)
            count = int(np.searchsorted(ends, self._room, "right"))
            self._append(tokens[: ends[count - 1]], lengths[:count], continued)
            tokens, lengths, continued = tokens[ends[count - 1] :], lengths[count:], True
            self._flush()
        if len(tokens):
            self._append(tokens, lengths, continued)

    def _append(self, tokens: np.ndarray, lengths: np.ndarray, continued: bool) -> None:
        self._pieces.append((tokens, lengths, continued))
        self._room -= len(tokens)

    def _flush(self) -> None:
        if not self._pieces:
            return
        tokens, sentences, continued = zip(*self._pieces, strict=True)
        documents = np.array([len(lengths) for lengths in sentences], np.int32)
        block = block_records.Block(
            np.concatenate(tokens), np.concatenate(sentences), documents, np.array(continued, bool)
        )
        self._sizes["sentences"] += len(block.sentences)
        self._sizes["blocks"] += 1
        self._write(block_records.to_bytes(block))
        self._pieces, self._room = [], self._limit

    def _write(self, record: bytes) -> None:
        with _written(self._partial, len(record)):
            if self._writer is None:
                from array_record.python.array_record_module import ArrayRecordWriter

                # one record per chunk: blocks are read in random order
                self._writer = ArrayRecordWriter(str(self._partial), "group_size:1")
            self._writer.write(record)

    def finish(self) -> None:
        """Writes the last block, renames the file, then marks it as finished."""
        self._flush()
        with _written(self._partial, 0):
            self._writer.close()
        self._partial.rename(self._path)
        np.save(self._counts_path, self._counts)
        facts = {"file": self._path.name, "bytes": self._path.stat().st_size} | self._sizes
        mark = self._done.with_suffix(".partial")
        mark.write_text(json.dumps(facts))
        mark.rename(self._done)


@contextlib.contextmanager
def _written(path: Path, size: int) -> Iterator[None]:
    """Raises OSError for the record writer's own exceptions."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        text = str(error).lower()
        full = any(sign in text for sign in ("no space", "too large", "quota"))
        full = full or shutil.disk_usage(path.parent).free < size + (1 << 20)
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(
            code, str(error).split(";")[0].splitlines()[0] if text else "the record writer failed"
        ) from error


def _cut(lengths: np.ndarray, limit: int) -> np.ndarray:
    """Returns sentence lengths of at most `limit`; longer sentences are divided."""
    if lengths.max() <= limit:
        return lengths
    pieces = [[limit] * (n // limit) + [n % limit] * (n % limit > 0) for n in lengths.tolist()]
    return np.array([n for row in pieces for n in row], np.int32)
