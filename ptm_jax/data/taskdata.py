"""What the examples of downstream tasks share: where the files of a split are, a prepared directory, a stream of rows.

A kind of examples (`labelled`, `tagged`, `questions`, `choices`, `targets`) inherits `TaskExamples` and says how a file is
read, how an example becomes ids, and how ids become rows of a length. Nothing is dropped in silence: what was skipped,
mended or cut is counted, in the manifest and on stderr.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data import store, tables, tokenizers, vocabularies
from ptm_jax.data.tables import Source
from ptm_jax.data.tokenizers import TokenizerSpec

FORMAT = "labelled-2"
SHORTEST = 16  # of the widths that rows are padded to: powers of two from here to the length
POOL = 50  # batches that are sorted by length together
TENTH = 10  # one of so many examples is held out where a data set has one file alone
ALONG = ("input_ids", "segment_ids", "positions", "token_type_ids")

Record = Mapping[str, np.ndarray]
Remarks = collections.Counter


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskExamples:
    """The `examples` slot of a downstream task.

    train, heldout, test   names or patterns of the files in a directory of the data; the first that is there
    encoding               of the files
    """

    fill: ClassVar[Mapping[str, float]] = {}
    """What stands in the rows that fill the last batch, where it is not 0."""

    train: tuple[str, ...] = ("train.*", "train", "*train*")
    heldout: tuple[str, ...] = ("dev.*", "val.*", "valid.*", "devel.*", "validation.*", "dev", "*dev*", "*val*")
    test: tuple[str, ...] = ("test.*", "test", "*test*")
    encoding: str = "utf-8-sig"

    @property
    def readings(self) -> int:
        """Rows that an example takes."""
        return 1

    def read(self, path: str | Path, remarks: Remarks | None = None, labels: bool = True) -> Iterator[Any]:
        """The examples of a file; without `labels`, those of a test file that has none. Raises UserError with file and
        line; what is skipped or mended is counted in `remarks`."""
        raise NotImplementedError

    def encode(self, tokenizer: Any, examples: Sequence[Any]) -> list[Record]:
        """{field: array} of every example, as it is kept."""
        raise NotImplementedError

    def features(self, tokenizer: Any, records: Sequence[Record], length: int) -> tuple[list[list[Record]], Remarks]:
        """([the rows of an example], what was cut) of a length; a row has the fields of `spec`."""
        raise NotImplementedError

    def texts(self, example: Any) -> Iterator[str]:
        """Its texts, for a vocabulary that is made of them."""
        raise NotImplementedError

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        """How often every class occurs; nothing where there are none."""
        del records
        return []

    def settled(self, sources: Sequence[str]) -> TaskExamples:
        """Itself with everything that only the data tell, as the classes."""
        del sources
        return self

    def count(self, sources: Sequence[str], tokenizer: Any = None, length: int = 0) -> int:
        """How many examples there are to train on."""
        del tokenizer, length
        return len(self.examples(self.files(sources)["train"]))

    def files(self, sources: Sequence[str]) -> dict[str, Source]:
        """{split: source} of a directory, `tfds:name/config`, a file for training and one that is held out, or one file, of
        which a tenth is held out. Raises UserError."""
        if len(sources) == 1 and str(sources[0]).startswith("tfds:"):
            return _tfds_splits(str(sources[0]))
        paths = [Path(source) for source in sources]
        if len(paths) == 2 and all(path.exists() for path in paths):
            return dict(zip(store.SPLITS, (Source(str(path)) for path in paths), strict=True))
        if len(paths) == 1 and paths[0].is_file():
            return halves(str(paths[0]))
        if len(paths) != 1 or not paths[0].is_dir():
            missing = next((f"; there is no {path}" for path in paths if not path.exists()), "")
            raise UserError(
                "labelled data are a directory with files to train on and to hold out, or one file, or two; given "
                f"{', '.join(map(str, sources)) or 'nothing'}{missing}"
            )
        return self._within(paths[0])

    def _within(self, folder: Path) -> dict[str, Source]:
        """The files of a directory."""
        wanted = dict(zip(store.SPLITS, (self.train, self.heldout), strict=True))
        found = {split: first_of(folder, names) for split, names in wanted.items()}
        if found["train"] == found["heldout"]:
            found["heldout"] = None
        there = [path for path in found.values() if path is not None] or [first_of(folder, self.test)]
        if there[0] is None:
            names = " or ".join((self.train[0], self.heldout[0], self.test[0]))
            raise UserError(f"{folder} has no file {names}; give the directory of this task's data, or the files")
        if None in found.values():
            return halves(str(there[0]))
        return {split: Source(str(path)) for split, path in found.items()}

    def examples(self, source: Source, remarks: Remarks | None = None, labels: bool = True) -> list[Any]:
        """All examples of a source, or its part. Raises UserError where there are none."""
        found = list(self.read(source.path, remarks, labels))
        if not found:
            raise UserError(f"{source.path} has no examples below its first line")
        if source.held is None:
            return found
        kept = _tenth([self.unit(example, number) for number, example in enumerate(found)])
        return [example for example, held in zip(found, kept, strict=True) if held == source.held]

    @staticmethod
    def unit(example: Any, number: int) -> Any:
        """What is held out together."""
        del example
        return number

    def corpus(
        self, sources: Sequence[str], folder: Path, tokenizer: TokenizerSpec, progress: Callable | None = None
    ) -> TaskCorpus:
        """The prepared data: made in `folder` where it is not there yet. Raises UserError."""
        files = self.files(sources)
        request = {
            "examples": repr(self),
            "files": {split: tables.digest(source.path) for split, source in files.items()},
            "tokenizer": repr(tokenizer),
        }
        if (folder / "manifest.json").is_file():
            there = store.open_corpus(folder)
            if there.manifest.get("request") != request:
                raise UserError(f"{folder} was prepared from other data or for another task; choose another --workdir")
            return there
        draft = folder.with_name(folder.name + ".partial")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            _prepare(self, files, draft, tokenizer, request, progress)
        except UserError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        draft.rename(folder)
        return store.open_corpus(folder)


def first_of(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of `names`, which may be patterns, that a directory has."""
    for name in names:
        found = sorted(path for path in folder.glob(name) if not path.name.startswith("."))
        if found:
            return found[0]
    return None


def note(remarks: Remarks, what: str, place: str) -> None:
    """Counts a remark, which keeps the place where it was made first."""
    known = next((key for key in remarks if key.startswith(f"{what} (")), f"{what} (first at {place})")
    remarks[known] += 1


def tell(remarks: Remarks, where: str) -> None:
    """Every remark with its count, on stderr."""
    for what, count in remarks.items():
        print(f"{where}: {count} {what}", file=sys.stderr)


def halves(path: str) -> dict[str, Source]:
    """A source of which a tenth is held out."""
    return {"train": Source(path, False), "heldout": Source(path, True)}


def _tfds_splits(name: str) -> dict[str, Source]:
    from ptm_jax.data import sources

    splits = sources._builder(name).info.splits
    held = next((split for split in ("validation", "validation_matched", "dev", "test") if split in splits), None)
    if held is None:
        return halves(f"{name}#train")
    return {"train": Source(f"{name}#train"), "heldout": Source(f"{name}#{held}")}


def _tenth(units: Sequence[Any]) -> list[bool]:
    """Whether every example is held out: a tenth of the units, the same whenever and wherever it is asked."""
    names = list(dict.fromkeys(units))
    order = np.random.default_rng(0).permutation(len(names))
    held = {names[i] for i in order[: max(1, len(names) // TENTH)]}
    return [unit in held for unit in units]


def _prepare(examples: TaskExamples, files, folder: Path, spec: TokenizerSpec, request, progress) -> None:
    """Writes tokenizer, arrays of both splits, and the manifest."""
    remarks = {split: Remarks() for split in files}
    found = {split: examples.examples(source, remarks[split]) for split, source in files.items()}
    texts = (text for example in found["train"] for text in examples.texts(example))
    vocabularies.make(spec, texts).save(folder / "tokenizer")
    tokenizer, splits = tokenizers.load(folder / "tokenizer"), {}
    for split, source in files.items():
        if progress is not None:
            progress(f"tokenizing {source.name}", 0, len(found[split]))
        records = examples.encode(tokenizer, found[split])
        if progress is not None:
            progress(f"tokenizing {source.name}", len(found[split]), len(found[split]))
        save_records(folder / f"{split}.npz", records)
        splits[split] = {
            "examples": len(records),
            "counts": examples.frequencies(records),
            "source": list(source),
            "remarks": dict(remarks[split]),
            "shards": [],
        }
        tell(remarks[split], source.path)
    manifest = {
        "format": FORMAT,
        "vocab": dataclasses.asdict(tokenizer.vocab),
        "tokenizer": {"hash": tokenizer.hash, "kind": tokenizer.kind},
        "splits": splits,
        "request": request,
    }
    manifest["digest"] = store.digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def save_records(path: Path, records: Sequence[Record]) -> None:
    """One array of all values of a field and one of their lengths, -1 where a record lacks it."""
    arrays = {}
    for name in dict.fromkeys(name for record in records for name in record):
        parts = [np.atleast_1d(record[name]) for record in records if name in record]
        arrays[name] = np.concatenate(parts)
        arrays[f"{name}.lengths"] = np.array([len(np.atleast_1d(r[name])) if name in r else -1 for r in records], np.int32)
    np.savez(path, **arrays)


def load_records(path: Path) -> list[Record]:
    """What `save_records` wrote. Raises UserError."""
    try:
        with np.load(path) as file:
            arrays = dict(file)
    except (OSError, ValueError, KeyError, EOFError):
        raise UserError(f"{path} is missing or damaged; delete {path.parent} and run again") from None
    names = [name for name in arrays if not name.endswith(".lengths")]
    records: list[dict[str, np.ndarray]] = [{} for _ in range(len(arrays[f"{names[0]}.lengths"]))]
    for name in names:
        lengths = arrays[f"{name}.lengths"]
        parts = np.split(arrays[name], np.cumsum(np.maximum(lengths, 0))[:-1])
        for record, part, length in zip(records, parts, lengths, strict=True):
            if length >= 0:
                record[name] = part
    return records


@dataclasses.dataclass(frozen=True)
class TaskCorpus(store.Corpus):
    """A prepared directory of a task's examples. Its baseline knows how often each class occurs, and nothing of the text."""

    baseline = "class frequencies"

    @functools.cached_property
    def _records(self) -> dict[str, list[Record]]:
        return {split: load_records(self.dir / f"{split}.npz") for split in store.SPLITS}

    def records(self, split: str = "train") -> list[Record]:
        """What `encode` made of the examples of a split."""
        return self._records[self._split(split)]

    def source(self, split: str = "heldout") -> Source:
        """Where the examples of a split came from."""
        return Source(*self.size(split)["source"])

    @property
    def uncounted(self) -> tuple[int, ...]:
        """Nothing is left out of `counts`, or all where there are no classes to know the frequency of."""
        return () if self.size("train")["counts"] else (0,)

    def counts(self, split: str = "train") -> np.ndarray:
        """[C] int64: how often every class occurs; [1] the number of examples where there are no classes."""
        facts = self.size(split)
        return np.array(facts["counts"] or [facts["examples"]], np.int64)

    def stream(self, split: str, examples: TaskExamples, **options: Any) -> TaskStream:
        """Batches of a split."""
        return TaskStream(self, split, examples, **options)


class TaskStream:
    """Iterator of batches {field: [B_local, ...]} of rows of similar length, padded to a power of two of at most `length`.

    Every example comes once an epoch; the last batch of an epoch is filled with rows of no weight. `cut` counts the texts
    that were too long and lost their end, `remarks` everything that a length does to the examples. The position is the
    number of batches.
    """

    def __init__(
        self, corpus: TaskCorpus, split: str, examples: TaskExamples, *, length: int, batch: int, seed: int,
        epochs: int | None = None, process_index: int = 0, process_count: int = 1,
    ):  # fmt: skip
        each = examples.readings
        if batch < 1 or batch % (process_count * each):
            asked = f"questions of {each} readings" if each > 1 else "rows"
            raise UserError(
                f"a batch of {batch} rows cannot be shared by {process_count} processes in {asked}; choose a multiple of "
                f"{process_count * each}"
            )
        self._vocab, self._examples, self._batch, self._seed, self._epochs = corpus.vocab, examples, batch, seed, epochs
        self._groups, self.remarks = examples.features(corpus.tokenizer(), corpus.records(split), length)
        self.cut = self.remarks.pop("cut", 0)
        self._sizes = np.array([max(len(row["input_ids"]) for row in group) for group in self._groups])
        share = batch // process_count
        self._length, self._part = length, (process_index * share, (process_index + 1) * share)
        self._identity = {
            "corpus": corpus.manifest["digest"], "split": split, "length": length, "batch": batch, "seed": seed,
        }  # fmt: skip
        self._done, self._order = 0, (-1, [])

    @property
    def _each(self) -> int:
        """Examples of a batch."""
        return self._batch // self._examples.readings

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self._groups) // self._each)

    def __iter__(self) -> TaskStream:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        epoch, number = divmod(self._done, self.per_epoch)
        if self._epochs is not None and epoch >= self._epochs:
            raise StopIteration
        if self._order[0] != epoch:
            self._order = epoch, self._shuffled(epoch)
        self._done += 1
        return self._made(self._order[1][number])

    def state(self) -> dict[str, Any]:
        """The position after the batches that were handed out; the same on every process."""
        return self._identity | {"batches": self._done}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`, on any number of processes. Raises UserError for a state of another stream."""
        if changed := [k for k, v in self._identity.items() if state.get(k) != v]:
            facts = "; ".join(f"{k} was {state.get(k)}, is {self._identity[k]}" for k in changed)
            raise UserError(f"the position was saved by another stream ({facts}); go on with what it had")
        self._done = int(state["batches"])

    def close(self) -> None:
        """Nothing runs beside the iterator."""

    def _shuffled(self, epoch: int) -> list[np.ndarray]:
        """Numbers of the examples of every batch: shuffled, in pools sorted by length, batches shuffled again."""
        rng = np.random.default_rng((self._seed, epoch))
        rows, size = rng.permutation(len(self._groups)), self._each * POOL
        batches = []
        for start in range(0, len(rows), size):
            pool = rows[start : start + size]
            pool = pool[np.argsort(self._sizes[pool], kind="stable")]
            made = [pool[i : i + self._each] for i in range(0, len(pool), self._each)]
            batches += [made[i] for i in rng.permutation(len(made))]
        return batches

    def _made(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        rows = [row for number in numbers for row in self._groups[number]]
        longest = max(SHORTEST, max(np.size(value) for row in rows for value in row.values()))
        width = min(1 << (longest - 1).bit_length(), self._length)
        batch = padded(rows, self._examples, self._vocab, width, self._batch)
        batch["rows"] = np.arange(self._batch, dtype=np.int32)
        return {name: value[slice(*self._part)] for name, value in batch.items()}


def padded(rows: Sequence[Record], examples: TaskExamples, vocab: Any, width: int, count: int) -> dict[str, np.ndarray]:
    """`count` rows of `width` tokens {field: [count, ...]}, the last ones empty."""
    batch = {}
    for name, (shape, dtype) in examples.spec(width, vocab).items():
        blank = (vocab.pad or 0) if name.endswith("input_ids") else examples.fill.get(name, 0)
        batch[name] = made = np.full((count, *shape), blank, dtype)
        for number, row in enumerate(rows):
            value = row[name]
            if shape:
                made[number, : len(value)] = value
            else:
                made[number] = value
    if "positions" in batch:
        batch["positions"][:] = np.arange(width)
    return batch


def row_of(ids: np.ndarray, types: np.ndarray, **fields: Any) -> dict[str, Any]:
    """The fields that every row of a text has, and more."""
    real, places = np.ones(len(ids), np.int32), np.arange(len(ids), dtype=np.int32)
    return {"input_ids": ids, "token_type_ids": types, "segment_ids": real, "positions": places, **fields}


def around(tokenizer: Any, pair: bool) -> int:
    """How many special tokens stand around a text, or a pair."""
    return len(tokenizer.frame((), () if pair else None)[0])


def room(tokenizer: Any, pair: bool, length: int) -> int:
    """Tokens of text in a row of `length`. Raises UserError where there are none."""
    specials = around(tokenizer, pair)
    if length <= specials:
        raise UserError(f"rows of length {length} have no room beside {specials} special tokens; choose a greater length")
    return length - specials


def shortened(first: np.ndarray, second: np.ndarray | None, size: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The longest beginnings that fit `size` tokens: the longer of a pair gives way first."""
    if second is None:
        return first[:size], None
    a, b = len(first), len(second)
    if a + b > size:
        half = size // 2
        a, b = (size - b, b) if b <= half else (a, size - a) if a <= half else (size - half, half)
    return first[:a], second[:b]
