"""The job of a preparation as a value, which can be sent to the workers of a pipeline, and its
stages on this machine: text, tokenizer, shards.

A corpus of several languages is several jobs with one tokenizer. Each stage renames its result when
it is complete; another run continues with the first unfinished one.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import splits, spool, store, worker
from ptm_jax.data.corpora.shards import Shard
from ptm_jax.data.languages.mix import shares_of
from ptm_jax.data.stores import working
from ptm_jax.data.text import cleaning
from ptm_jax.data.text import sources as text_sources
from ptm_jax.data.text.bounded import DOCUMENT_BYTES
from ptm_jax.data.text.documents import Document
from ptm_jax.data.tokenizers import saved, tokenizing, vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

Progress = Callable[[str, int, int], None]
PARALLEL_BYTES = 4_000_000
"""Text below which one process is faster than several."""
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
    language   in a corpus of several, "de" or "de-en": the first word of the names of its files
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
    language: str = ""

    @property
    def report(self) -> Path:
        """The file of the counts of the cleaning."""
        return self.folder / f"{self._prefix}{REPORT}"

    @property
    def spool(self) -> Path:
        """The folder of the text."""
        return self.folder / f"{self._prefix}spool"

    @property
    def _prefix(self) -> str:
        return f"{self.language}." if self.language else ""

    def shard(
        self, split: str, number: int, count: int, vocab: int, folder: Path | None = None
    ) -> Shard:
        """Returns shard `number` of the `count` shards of a split."""
        name = f"{self._prefix}{self.shard_name(split, number, count)}"
        return Shard(folder or self.folder, name, vocab, self.block_tokens)

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


@dataclasses.dataclass(frozen=True)
class Text:
    """A job on this machine: its text, and the documents of each split in order."""

    job: Job
    text: spool.Spool
    documents: dict[str, np.ndarray]
    progress: Progress | None

    def report(self, stage: str, done: int = 0, total: int = 0) -> None:
        if self.progress:
            self.progress(stage, done, total)

    @property
    def train_bytes(self) -> int:
        """The bytes of the train split."""
        return int(self.text.sizes(self.documents["train"]).sum())

    def sentences(self, size: int) -> Iterator[str]:
        """Yields the sentences of the first `size` bytes of the train split.
        They come again from the start where it has fewer."""
        train = self.documents["train"]
        while size > 0 and len(train):
            sizes = self.text.sizes(train)
            documents = train[: splits.training(sizes, size)]
            for chunk in self.text.chunks(documents, CHUNK_BYTES):
                yield from (line for raw in chunk for line in spool.from_bytes(raw))
            size -= int(sizes.sum())


def write(
    jobs: Sequence[Job], workers: int | None, progress: Progress | None
) -> list[dict[str, list[Shard]]]:
    """Writes the shards of each split of each job that an earlier run did not finish."""
    texts = [_read(job, progress) for job in jobs]
    tokenizer = _tokenizer(texts)
    written, done = [], 0
    total = sum(len(text.text.order) for text in texts)
    for text in texts:
        written.append({split: [] for split in store.SPLITS})
        for split in store.SPLITS:
            for shard, documents in _shards(text, split, len(tokenizer.pieces)):
                if not shard.finished:
                    _fill(text, shard, documents, done=(done, total), workers=workers)
                done += len(documents)
                written[-1][split].append(shard)
    return written


def _read(job: Job, progress: Progress | None) -> Text:
    """Returns the text of a job, cleaned."""
    documents = (
        item
        for kind, name in job.parts
        for item in text_sources.read(kind, name, job.document_bytes)
    )
    if job.steps:
        documents = _cleaned(documents, job.steps, job.report)
    text = spool.write(documents, job.spool, job.seed, progress)
    refuse_nothing(job.report)
    return Text(job, text, text.split(job.heldout), progress)


def _cleaned(documents: Iterator[Document], steps: Sequence[Any], path: Path) -> Iterator[Document]:
    """Yields the documents after the cleaning, then writes its report into `path`."""
    counts = collections.Counter()
    yield from cleaning.clean(documents, steps, counts)
    path.write_text(json.dumps(cleaning.report(counts)))


def refuse_nothing(path: Path) -> None:
    """Raises UserError where the cleaning dropped every document; `path` is its report."""
    report = json.loads(path.read_text()) if path.exists() else {"kept": 1}
    if not report["kept"]:
        main_cause = max(report["dropped"], key=report["dropped"].get, default="nothing")
        raise UserError(
            f"the cleaning left none of {report['read']} documents (mostly {main_cause}); "
            "clean less"
        )


def _tokenizer(texts: Sequence[Text]) -> tokenizing.Tokenizer:
    """Returns the tokenizer of an earlier run, else trains it on the train splits.

    Of `train_bytes` in all, text i of n_i bytes has the share n_i^s / sum_j n_j^s, s =
    `spec.sampling` (Lample and Conneau 2019, section 3.1)."""
    job = texts[0].job
    folder, spec = job.folder / "tokenizer", job.spec
    if not folder.exists():
        texts[0].report("training the tokenizer" if spec.path is None else "reading the tokenizer")
        sizes = np.array([text.train_bytes for text in texts])
        budgets = min(spec.train_bytes, sizes.sum()) * shares_of(sizes, spec.sampling)
        lines = itertools.chain.from_iterable(
            text.sentences(round(budget)) for text, budget in zip(texts, budgets, strict=True)
        )
        tokenizer_made = vocabularies.make(spec, lines)
        temporary = job.folder / "tokenizer.partial"
        tokenizer_made.save(temporary)
        temporary.rename(folder)
    return saved.load(folder)


def _shards(text: Text, split: str, vocab: int) -> list[tuple[Shard, np.ndarray]]:
    """Returns the shards of a split with their documents, of about equal bytes."""
    documents = text.documents[split]
    if not len(documents):
        return []
    parts = np.split(documents, splits.cuts(text.text.sizes(documents), text.job.shard_bytes))
    return [
        (text.job.shard(split, number, len(parts), vocab), part)
        for number, part in enumerate(parts)
    ]


def _fill(
    text: Text,
    shard: Shard,
    documents: np.ndarray,
    *,
    done: tuple[int, int],
    workers: int | None,
) -> None:
    """Tokenizes the documents into the shard, after the first of `done` in all."""
    if workers is None:
        workers = os.cpu_count() or 1 if text.text.offsets[-1] > PARALLEL_BYTES else 1
    chunks = text.text.chunks(documents, CHUNK_BYTES)
    for chunk in worker.tokenize(chunks, text.job.folder / "tokenizer", workers):
        shard.add(chunk)
        text.report("tokenizing", done[0] + shard.documents, done[1])
    shard.finish()
