"""Texts with labels: tables in the published formats, prepared once, and a stream of rows of similar length.

`Labelled` is the `examples` slot of a downstream task. It makes its own corpus: every text tokenized and framed by its
tokenizer's template (`Tokenizer.frame`), with its label, in one file; nothing is dropped in silence.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError, closest
from ptm_jax.data import store, tokenizers, vocabularies
from ptm_jax.data.tokenizers import TokenizerSpec

FORMAT = "labelled-1"
SHORTEST = 16  # of the widths that rows are padded to: powers of two from here to the length
POOL = 50  # batches that are sorted by length together
_PART = 4096  # texts tokenized at a time


class Example(NamedTuple):
    """A text or a pair, its label as it is written, and where it stands."""

    first: str
    second: str | None
    label: str
    place: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled:
    """Rows of one text, or a pair, with one label.

    first, second, label   columns of the tables: names in their first line; the first of several that is there
    labels                 the classes in the order of their numbers; empty: `label` is a number to be told (STS-B)
    train, heldout         files of a data directory, the first that is there

    Fields: input_ids, segment_ids (1 where a token stands), positions, token_type_ids [L] int32, `label` [] int32 (float32
    for a number), `label_weights` [] float32, 0 in rows that fill the last batch.
    """

    first: tuple[str, ...] = ("sentence", "text")
    second: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ("0", "1")
    train: tuple[str, ...] = ("train.tsv",)
    heldout: tuple[str, ...] = ("dev.tsv",)

    def spec(self, length: int, vocab: Any) -> dict[str, tuple[tuple[int, ...], type]]:
        """{field: (shape of one row, dtype)}."""
        del vocab
        along = {name: ((length,), np.int32) for name in ("input_ids", "segment_ids", "positions", "token_type_ids")}
        return along | {"label": ((), np.int32 if self.labels else np.float32), "label_weights": ((), np.float32)}

    def files(self, sources: Sequence[str]) -> dict[str, Path]:
        """{split: file} of a directory, or of a file for training and one that is held out. Raises UserError."""
        paths = [Path(source) for source in sources]
        if len(paths) == 2 and all(path.is_file() for path in paths):
            return dict(zip(store.SPLITS, paths, strict=True))
        if len(paths) != 1 or not paths[0].is_dir():
            raise UserError(
                f"labelled data are a directory with {self.train[0]} and {self.heldout[0]}, or a file to train on and one "
                f"that is held out; given {', '.join(map(str, sources)) or 'nothing'}"
            )
        found = {}
        for split, names in zip(store.SPLITS, (self.train, self.heldout), strict=True):
            there = [paths[0] / name for name in names if (paths[0] / name).is_file()]
            if not there:
                raise UserError(f"{paths[0]} has no {' or '.join(names)}; give the directory of this task's data")
            found[split] = there[0]
        return found

    def read(self, path: Path) -> Iterator[Example]:
        """The examples of a table (.tsv or .csv with a first line of names). Raises UserError with file and line."""
        rows = _table(path)
        header = next(rows, (0, []))[1]
        columns = [self._column(path, header, names) for names in (self.first, self.second, self.label)]
        for line, row in rows:
            if len(row) != len(header):
                raise UserError(f"{path}:{line}: {len(row)} columns; the first line has {len(header)}")
            first, second, label = (None if i is None else row[i].strip() for i in columns)
            if not first:
                raise UserError(f"{path}:{line}: the text is empty; correct the line, or remove it")
            yield Example(first, second, label, f"{path}:{line}")

    def number(self, example: Example) -> float:
        """The number of an example's class, or the number that it is. Raises UserError with file and line."""
        if self.labels:
            if example.label not in self.labels:
                near = closest(example.label, self.labels)
                known = ", ".join(self.labels)
                raise UserError(f"{example.place}: the label is {example.label!r}; there are {known}.{near}")
            return self.labels.index(example.label)
        try:
            return float(example.label)
        except ValueError:
            raise UserError(f"{example.place}: the label is {example.label!r}; expected a number") from None

    def count(self, sources: Sequence[str]) -> int:
        """How many examples there are to train on."""
        return sum(1 for _ in self.read(self.files(sources)["train"]))

    def corpus(
        self, sources: Sequence[str], folder: Path, tokenizer: TokenizerSpec, progress: Callable | None = None
    ) -> LabelledCorpus:
        """The prepared data: made in `folder` where it is not there yet. Raises UserError."""
        files = self.files(sources)
        request = {
            "examples": repr(self),
            "files": {split: hashlib.sha256(path.read_bytes()).hexdigest() for split, path in files.items()},
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
        _prepare(self, files, draft, tokenizer, request, progress)
        draft.rename(folder)
        return store.open_corpus(folder)

    @staticmethod
    def _column(path: Path, header: list[str], names: tuple[str, ...]) -> int | None:
        if not names:
            return None
        for name in names:
            if name in header:
                return header.index(name)
        raise UserError(f"{path} has no column {' or '.join(names)}; its first line has: {', '.join(header) or 'nothing'}")


def _table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of a table. Tabs part the fields of a .tsv and quotes are ordinary characters there."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it, as iconv -t utf-8 does") from None
    if path.suffix == ".csv":
        reader = csv.reader(text.splitlines(keepends=True))
        yield from ((reader.line_num, row) for row in reader if row)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip("\r"):
            yield number, line.rstrip("\r").split("\t")


def _prepare(examples: Labelled, files, folder: Path, spec: TokenizerSpec, request, progress) -> None:
    """Writes tokenizer, arrays of both splits, and the manifest."""
    found = {split: list(examples.read(path)) for split, path in files.items()}
    numbers = {split: [examples.number(e) for e in read] for split, read in found.items()}
    for split, read in found.items():
        if not read:
            raise UserError(f"{files[split]} has no examples below its first line")
    texts = (text for e in found["train"] for text in (e.first, e.second) if text)
    vocabularies.make(spec, texts).save(folder / "tokenizer")
    tokenizer, splits = tokenizers.load(folder / "tokenizer"), {}
    for split, path in files.items():
        rows, read = [], found[split]
        for start in range(0, len(read), _PART):
            part = read[start : start + _PART]
            first = tokenizer.encode_batch([e.first for e in part])
            second = tokenizer.encode_batch([e.second or "" for e in part]) if examples.second else [None] * len(part)
            rows += zip(first, second, strict=True)
            if progress is not None:
                progress(f"tokenizing {path.name}", start + len(part), len(read))
        _save(folder / f"{split}.npz", rows, numbers[split])
        sizes = [len(a) + (0 if b is None else len(b)) for a, b in rows]
        splits[split] = {"examples": len(rows), "tokens": int(sum(sizes)), "longest": int(max(sizes)), "shards": []}
    manifest = {
        "format": FORMAT,
        "vocab": dataclasses.asdict(tokenizer.vocab),
        "tokenizer": {"hash": tokenizer.hash, "kind": tokenizer.kind},
        "labels": list(examples.labels),
        "splits": splits,
        "request": request,
    }
    manifest["digest"] = store.digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _save(path: Path, rows, labels) -> None:
    lengths = np.array([[len(a), -1 if b is None else len(b)] for a, b in rows], np.int32)
    tokens = np.concatenate([np.asarray(part, np.int32) for row in rows for part in row if part is not None])
    np.savez(path, tokens=tokens, lengths=lengths, labels=np.array(labels, np.float32))


@dataclasses.dataclass(frozen=True)
class LabelledCorpus(store.Corpus):
    """A prepared directory of labelled texts. Its baseline knows how often each class occurs, and nothing of the text."""

    baseline = "class frequencies"
    uncounted = ()

    @functools.cached_property
    def _splits(self) -> dict[str, tuple[list[tuple[np.ndarray, np.ndarray | None]], np.ndarray]]:
        found = {}
        for split in store.SPLITS:
            try:
                with np.load(self.dir / f"{split}.npz") as file:
                    tokens, lengths, labels = file["tokens"], file["lengths"], file["labels"]
            except (OSError, ValueError, KeyError, EOFError):
                raise UserError(f"{self.dir}/{split}.npz is missing or damaged; delete {self.dir} and run again") from None
            ends = np.cumsum(np.maximum(lengths, 0).reshape(-1))
            parts = np.split(tokens, ends[:-1])
            rows = [(parts[2 * i], parts[2 * i + 1] if pair else None) for i, pair in enumerate(lengths[:, 1] >= 0)]
            found[split] = rows, labels
        return found

    def rows(self, split: str) -> tuple[list[tuple[np.ndarray, np.ndarray | None]], np.ndarray]:
        """([(ids of the first text, of the second or None)], labels [n] float32) of a split."""
        return self._splits[self._split(split)]

    def counts(self, split: str = "train") -> np.ndarray:
        """[C] int64: how often every class occurs; nothing where the label is a number."""
        classes = len(self.manifest["labels"])
        return np.bincount(self.rows(split)[1].astype(np.int64), minlength=classes) if classes else np.zeros(0, np.int64)

    def stream(self, split: str, examples: Labelled, **options: Any) -> LabelledStream:
        """Batches of a split."""
        return LabelledStream(self, split, examples, **options)


class LabelledStream:
    """Iterator of batches {field: [B_local, ...]} of rows of similar length, padded to a power of two of at most `length`.

    A text that is longer is cut at its end, of a pair the longer one first; `cut` counts those. Every example comes once
    an epoch; the last batch of an epoch is filled with rows of no weight. The position is the number of batches.
    """

    def __init__(
        self, corpus: LabelledCorpus, split: str, examples: Labelled, *, length: int, batch: int, seed: int,
        epochs: int | None = None, process_index: int = 0, process_count: int = 1,
    ):  # fmt: skip
        if batch < 1 or batch % process_count:
            raise UserError(f"a batch of {batch} rows cannot be shared by {process_count} processes; choose a multiple")
        self._vocab, self._examples, self._batch, self._seed, self._epochs = corpus.vocab, examples, batch, seed, epochs
        texts, self._labels = corpus.rows(split)
        tokenizer = corpus.tokenizer()
        around = len(tokenizer.frame((), None if texts[0][1] is None else ())[0])
        if length <= around:
            raise UserError(f"rows of length {length} have no room beside {around} special tokens; choose a greater length")
        short = [_cut(*pair, length - around) for pair in texts]
        size = lambda pair: sum(len(part) for part in pair if part is not None)
        self.cut = sum(size(less) < size(pair) for less, pair in zip(short, texts, strict=True))
        self._rows = [tokenizer.frame(*pair) for pair in short]
        self._sizes = np.array([len(ids) for ids, _ in self._rows])
        share = batch // process_count
        self._length, self._part = length, (process_index * share, (process_index + 1) * share)
        self._identity = {
            "corpus": corpus.manifest["digest"], "split": split, "length": length, "batch": batch, "seed": seed,
        }  # fmt: skip
        self._done, self._order = 0, (-1, [])

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self._rows) // self._batch)

    def __iter__(self) -> LabelledStream:
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
        """Numbers of the rows of every batch of an epoch: shuffled, in pools sorted by length, batches shuffled again."""
        rng = np.random.default_rng((self._seed, epoch))
        rows, size = rng.permutation(len(self._rows)), self._batch * POOL
        batches = []
        for start in range(0, len(rows), size):
            pool = rows[start : start + size]
            pool = pool[np.argsort(self._sizes[pool], kind="stable")]
            made = [pool[i : i + self._batch] for i in range(0, len(pool), self._batch)]
            batches += [made[i] for i in rng.permutation(len(made))]
        return batches

    def _made(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        longest = max(SHORTEST, int(self._sizes[numbers].max()))
        width = min(1 << (longest - 1).bit_length(), self._length)
        batch = {
            name: np.zeros((self._batch, *((width,) if shape else ())), dtype)
            for name, (shape, dtype) in self._examples.spec(width, self._vocab).items()
        }
        batch["input_ids"][:] = self._vocab.pad or 0
        for row, number in enumerate(numbers):
            ids, types = self._rows[number]
            batch["input_ids"][row, : len(ids)], batch["token_type_ids"][row, : len(ids)] = ids, types
            batch["segment_ids"][row, : len(ids)] = 1
            batch["label"][row], batch["label_weights"][row] = self._labels[number], 1.0
        batch["positions"][:] = np.arange(width)
        batch["rows"] = np.arange(self._batch, dtype=np.int32)
        return {name: value[slice(*self._part)] for name, value in batch.items()}


def _cut(first: np.ndarray, second: np.ndarray | None, room: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The longest beginnings that fit `room` tokens: the longer of a pair gives way first."""
    if second is None:
        return first[:room], None
    a, b = len(first), len(second)
    if a + b > room:
        half = room // 2
        a, b = (room - b, b) if b <= half else (a, room - a) if a <= half else (room - half, half)
    return first[:a], second[:b]
