"""A prepared corpus on disk: blocks of whole documents in array_record shards, and a manifest.

manifest.json                        format, vocabulary, hashes, sizes; its own digest last, without
                                     the hashes of `arrays`
counts.npy                           [2, V] int64: unigram counts of train and of heldout
tokenizer/                           read by `tokenizers.saved.load`
train-00000-of-0000N.array_record    records are blocks
heldout-00000-of-0000N.array_record
cooccurrence-W.npy                   optional, [N] of `cooccurrences.PAIR`: co-occurrences in train
                                     in a window of W words
triples-HASH/NAME.npy                optional: the triples and texts of a graph in these tokens
                                     (`knowledge.triples.Triples`); older corpora have one array,
                                     triples-HASH.npy
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.cache import alone
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.reading import check_fields, inside, read_bytes, read_json, shown
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.data.corpora.block_records import Block, from_bytes, join
from ptm_jax.data.stores import fetched
from ptm_jax.data.tokenizers import saved, subword_tables, tokenizing
from ptm_jax.statistics import bigrams, cooccurrences, trees

FORMAT = 1
SPLITS = ("train", "heldout")
COUNTS = "counts.npy"
LARGEST = 1 << 32
"""Bytes of an array of counts at most."""
FIELDS = {"format": (int, str), "vocab": {"size": int}, "tokenizer": {"hash": str, "kind": str}}
FIELDS |= {"splits": dict, "digest": str, "arrays?": dict}
SPLIT = {"documents": int, "tokens": int, "blocks": int, "shards": list}
"""Fields of a manifest, and of a split in it."""

formats: dict[str, str | type] = {"mixed-1": "MixedCorpus", "labelled-2": "TaskCorpus"}
"""{format in a manifest: its class, a `Corpus`, or the kind of one of the package's classes
(`core.spec.classes`)}; add your own class here."""


class Blocks:
    """The blocks of a split by number, with `tokens` in all.
    Opening it and reading a block raise UserError for a damaged shard."""

    join = staticmethod(join)

    def __init__(self, corpus: Corpus, split: str):
        from grain.sources import ArrayRecordDataSource  # costs half a second

        self._folder, self.tokens = corpus.dir, corpus.size(split)["tokens"]
        with self._whole():
            self._source = ArrayRecordDataSource(corpus.paths(split))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> Block:
        with self._whole():
            return from_bytes(self._source[number])

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError, IndexError) as error:
            reason = str(error).split(";")[0][:120]
            raise UserError(
                f"a shard of {self._folder} is damaged ({reason}); delete it and prepare it again"
            ) from None


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A prepared directory and its parsed manifest."""

    dir: Path
    manifest: dict[str, Any]
    baseline = "unigram baseline"
    stream = (
        None  # how batches of another kind of corpus are made: stream(split, examples, **options)
    )

    @functools.cached_property
    def vocab(self):
        """The vocabulary, from the manifest; the tokenizer need not be loaded."""
        from ptm_jax.core.types import Vocab

        return Vocab(
            **{k: tuple(v) if k == "extra" else v for k, v in self.manifest["vocab"].items()}
        )

    @functools.cached_property
    def _tokenizer(self) -> tokenizing.Tokenizer:
        tokenizer = saved.load(self.dir / "tokenizer")
        if tokenizer.hash != self.manifest["tokenizer"]["hash"]:
            raise UserError(
                f"the tokenizer in {self.dir} is not the one of its manifest; prepare the "
                "corpus again"
            )
        return tokenizer

    def tokenizer(self) -> tokenizing.Tokenizer:
        """Returns the tokenizer, loaded once.
        Raises UserError where it is damaged or not the one of the manifest."""
        return self._tokenizer

    def word_starts(self) -> np.ndarray:
        """Returns [V] bool: the ids that begin a word.
        Loads the tokenizer; raises UserError as `tokenizer` does."""
        return self._tokenizer.word_starts()

    @property
    def uncounted(self) -> tuple[int, ...]:
        """Special ids and marks of trees, which a baseline leaves out of `counts`.
        No model predicts them."""
        specials = self.vocab.specials
        if self.manifest["tokenizer"]["kind"] != "word":
            return specials
        return tuple(
            sorted(
                {*specials, *np.flatnonzero(trees.digits(self.tokenizer().pieces) != -1).tolist()}
            )
        )

    def counts(self, split: str = "train") -> np.ndarray:
        """Returns [V] int64: the number of occurrences of every id in a split."""
        return self._array(COUNTS)[SPLITS.index(self._split(split))]

    def cooccurrence(self, window: int) -> np.ndarray:
        """Returns [N] of `cooccurrences.PAIR`, memory-mapped.
        They are the cells row <= column of the train split in random order.

        They are counted when they are first asked for, and stay in the corpus. Raises UserError for
        a window that cannot be counted, and where the corpus cannot be written."""

        def make(draft: Path) -> None:
            blocks = Blocks(self, "train")
            cooccurrences.count((blocks[i] for i in range(len(blocks))), self.vocab, window, draft)

        return self.kept(f"cooccurrence-{window}.npy", make)

    def kept(self, name: str, make: Callable[[Path], Any]) -> np.ndarray:
        """Returns an array of the folder, memory-mapped.
        Where it is missing, one process calls `make(path)`, which writes it. Raises UserError where
        it cannot be written or read."""
        path = self.dir / name
        try:
            with alone(path.with_suffix(".lock"), path.exists()):
                if not path.exists():
                    draft = path.with_suffix(".draft.npy")
                    make(draft)
                    draft.rename(path)
            return np.load(path, mmap_mode="r")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None
        except ValueError:
            raise UserError(
                f"{path} is damaged; delete it: it is made again when it is needed"
            ) from None

    def written(self, name: str) -> np.ndarray | None:
        """Returns an array of the folder, memory-mapped; None where it is missing."""
        return self.kept(name, _no_writer) if (self.dir / name).exists() else None

    def kept_arrays(
        self, name: str, make: Callable[[], Mapping[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Returns the named arrays in a folder of the corpus, memory-mapped.
        Where the folder is missing, one process writes the arrays of `make()` into it. Raises
        UserError where they cannot be written or read."""
        folder = self.dir / name
        draft = folder.with_name(f"{name}.draft")
        try:
            with alone(folder.with_name(f"{name}.lock"), folder.is_dir()):
                if not folder.is_dir():
                    shutil.rmtree(draft, ignore_errors=True)
                    draft.mkdir()
                    for part, array in make().items():
                        np.save(draft / f"{part}.npy", array)
                    draft.rename(folder)
            return {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
        except OSError as error:
            raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
        except ValueError:
            raise UserError(
                f"{folder} is damaged; delete it: it is made again when it is needed"
            ) from None

    def language(self, name: str) -> Corpus:
        """Returns the text of one of `languages`, with the counts of the whole corpus."""
        splits = self.languages[name]["splits"]
        return dataclasses.replace(self, manifest={**self.manifest, "splits": splits})

    @property
    def languages(self) -> Mapping[str, Any]:
        """{language, or a pair as "de-en": its part of the manifest (`mix.facts`)}; {} without."""
        return self.manifest.get("languages", {})

    def blocks(self, split: str = "train") -> Blocks:
        """Returns the blocks of a split, in the order of the corpus."""
        return Blocks(self, self._split(split))

    def bigrams(self) -> np.ndarray:
        """Returns [N] of `bigrams.BIGRAM`: counts of adjacent ids in the train split.
        Reads the whole split."""
        blocks = Blocks(self, "train")
        return bigrams.count((blocks[i] for i in range(len(blocks))), self.vocab.size)

    def second_vocabulary(self, size: int, longest: int) -> np.ndarray:
        """Returns [V, `longest`] int32: the pieces of every id in a vocabulary of `size` pieces,
        which is trained on the train split (`subword_tables.table`). Raises UserError for a size
        that the text does not support."""
        blocks = Blocks(self, "train")
        other = subword_tables.second(
            self.tokenizer(), (blocks[i] for i in range(len(blocks))), size
        )
        return subword_tables.table(self.tokenizer(), other, longest)

    def _array(self, name: str) -> np.ndarray:
        try:
            data = read_bytes(self.dir / name, LARGEST)
            array = np.load(self.dir / name, mmap_mode="r")  # compares its shape with its size
        except (UserError, OSError, ValueError, EOFError):
            raise UserError(
                f"{self.dir}/{name} is missing or damaged; prepare the corpus again"
            ) from None
        known = self.manifest.get("arrays", {}).get(name)
        if known not in (None, hashlib.sha256(data).hexdigest()) or (
            name == COUNTS and not self._sums_fit(array)
        ):
            raise UserError(
                f"{self.dir}/{name} was changed after it was written; prepare the corpus again"
            )
        return array

    def _sums_fit(self, counts: np.ndarray) -> bool:
        """Whether counts have the shape and the sums of the manifest, which has no hash of them in
        older corpora."""
        sums = [self.size(split)["tokens"] for split in SPLITS]
        return (
            counts.shape == (len(SPLITS), self.vocab.size)
            and counts.sum(1).tolist() == sums
            and counts.min() >= 0
        )

    def size(self, split: str = "train") -> dict[str, Any]:
        """Returns `documents`, `sentences`, `tokens`, `blocks` and `shards` of a split."""
        return self.manifest["splits"][self._split(split)]

    def paths(self, split: str = "train") -> list[str]:
        """Returns the shards of a split in order."""
        return [str(self.dir / shard["file"]) for shard in self.size(split)["shards"]]

    def _split(self, split: str) -> str:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        return split


def _no_writer(path: Path) -> None:
    """Makes no array."""
    raise UserError(f"{path} is missing; prepare the corpus again")


def digest(manifest: dict[str, Any]) -> str:
    """Returns the sha256 of a manifest without its own digest, `arrays` and `words`, which older
    manifests lack."""
    body = {k: v for k, v in manifest.items() if k not in ("digest", "arrays", "words")}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def open_corpus(folder: str | Path) -> Corpus:
    """Returns the corpus in a folder, or in an object store (`stores.fetched`).
    Raises UserError where it is absent, of another format, or damaged."""
    folder = fetched.corpus(folder)
    path = folder / "manifest.json"
    if not path.exists():
        raise UserError(
            f"{folder} is not a prepared corpus (it has no manifest.json); run ptm prepare "
            f"--out {folder}"
        )
    try:
        manifest = read_json(path, "the manifest")
        intact = manifest["digest"] == digest(manifest)
    except (UserError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{path} is damaged; delete {folder} and prepare the corpus again"
        ) from None
    form = manifest.get("format")
    if intact and isinstance(form, str) and (kind := formats.get(form)):
        cls = kinds_of()[kind] if isinstance(kind, str) else kind
        return cls(folder, manifest)
    if form != FORMAT:
        raise UserError(
            f"{folder} has format {shown(form)}; this version reads {FORMAT}: prepare it again"
        )
    if not intact:
        raise UserError(
            f"{path} was changed after it was written; delete {folder} and prepare the corpus again"
        )
    check_fields(path, manifest, FIELDS)
    for split in SPLITS:
        check_fields(path, manifest["splits"], {split: SPLIT})
        for shard in manifest["splits"][split]["shards"]:
            check_fields(path, shard, {"file": str, "bytes": int})
            file = inside(folder, shard["file"], path)
            size = file.stat().st_size if file.exists() else None
            if size != shard["bytes"]:
                state = (
                    "missing" if size is None else f"{size} bytes long instead of {shard['bytes']}"
                )
                raise UserError(f"{file} is {state}; delete {folder} and prepare the corpus again")
    return Corpus(folder, manifest)
