"""The job of a preparation as a value, which can be sent to the workers of a pipeline."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.shards import Shard
from ptm_jax.data.stores import working
from ptm_jax.data.text import cleaning
from ptm_jax.data.text import sources as text_sources
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


def request_of(
    sources: Sequence[str], spec: TokenizerSpec, heldout: float, seed: int, block_tokens: int
) -> dict[str, Any]:
    """Returns the inputs that determine a corpus. Raises UserError for numbers out of range."""
    if not 0 <= heldout < 1 or block_tokens < 16:
        raise UserError(
            f"heldout={heldout}, block_tokens={block_tokens}; expected a share in [0, 1) and "
            "at least 16"
        )
    described = {f"tokenizer.{k}": v for k, v in dataclasses.asdict(spec).items()}
    if spec.path is not None:
        path = working.opened(spec.path)
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        content = hashlib.sha256(b"".join(p.read_bytes() for p in files if p.exists()))
        described["tokenizer.path"] = content.hexdigest()
    inputs = {"heldout": heldout, "seed": seed, "block_tokens": block_tokens}
    return {"sources": text_sources.fingerprints(sources)} | described | inputs
