"""The job of a preparation as a value, which can be sent to the workers of a pipeline."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ptm_jax.data.corpora.shards import Shard
from ptm_jax.data.text import cleaning
from ptm_jax.data.text.bounded import DOCUMENT_BYTES
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

CHUNK_BYTES = 262_144
"""Bytes of text that a tokenizer encodes at a time."""
REPORT = "cleaning.done.json"
"""The file in a job's folder that holds the counts of the cleaning."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Inputs and outputs of a preparation.

    parts    (kind, name) of every part of the sources, in order (`text.sources.parts`)
    folder   where the result is put together
    place    where workers write: `folder`, or a URL, which all of them see
    steps    of the cleaning
    document_bytes   of a document of a file at most
    """

    parts: tuple[tuple[str, str], ...]
    folder: Path
    place: str
    spec: TokenizerSpec
    heldout: float
    seed: int
    block_tokens: int
    steps: tuple[cleaning.Rule | cleaning.Duplicates, ...]
    shard_bytes: int
    document_bytes: int = DOCUMENT_BYTES

    def shard(
        self, split: str, number: int, count: int, vocab: int, folder: Path | None = None
    ) -> Shard:
        """Returns shard `number` of the `count` shards of a split."""
        return Shard(
            folder or self.folder, self.shard_name(split, number, count), vocab, self.block_tokens
        )

    @staticmethod
    def shard_name(split: str, number: int, count: int) -> str:
        """Returns the name of a shard's file, without its suffix."""
        return f"{split}-{number:05d}-of-{count:05d}"
