"""The base class of the examples of downstream tasks, and their prepared data on disk.

Subclasses of `TaskExamples` define how to read a file, how to encode an example, and how to make
rows of a given length. Skipped, corrected and truncated examples are counted in the manifest and on
stderr.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import store
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.data.stores import fetched, working
from ptm_jax.data.text import dataset_folders, tfds_sources
from ptm_jax.data.tokenizers import saved, vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.words import opened
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.formats.task_corpus import FORMAT, TaskCorpus, save_records
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.convert.libraries.sentence_folder import Sentence
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer

TENTH = 10  # one of this number of examples is held out if a data set is one file

HELD = ("validation", "validation_matched", "dev", "test")
"""Names of the split that is held out, the first that a data set has."""

Remarks = collections.Counter


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskExamples(slots.Examples):
    """The `examples` slot of a downstream task.

    train, heldout, test   names or patterns of the files in a directory of the data; the first that
                           exists is read
    encoding               of the files
    spelling               the examples of the initial model, if it reads words by their characters
                           (`Spelled`)
    """

    fill: ClassVar[Mapping[str, float]] = {}
    """{field: value in padding rows of the last batch, if not 0}."""

    train: tuple[str, ...] = ("train.*", "train", "*train*")
    heldout: tuple[str, ...] = (
        "dev.*",
        "val.*",
        "valid.*",
        "devel.*",
        "validation.*",
        "dev",
        "*dev*",
        "*val*",
    )
    test: tuple[str, ...] = ("test.*", "test", "*test*")
    encoding: str = "utf-8-sig"
    spelling: Spelled | None = dataclasses.field(
        default=None, repr=False
    )  # prepared data do not depend on it

    labelled: ClassVar[bool] = True
    one_group: ClassVar[bool] = False
    """Whether each example makes one group of rows: they are counted without the tokenizer."""
    mentions: ClassVar[int] = 0
    """Entities that are marked in each text; their tokens are the field `mention_places`
    (`formats.marked.placed`)."""

    @property
    def alphabet(self) -> int | None:
        return None if self.spelling is None else self.spelling.alphabet

    def table(self, tokenizer: Tokenizer, ids: np.ndarray | None = None) -> np.ndarray:
        """Returns the spellings of the tokenizer's words, or of `ids` (`Spelled.table`)."""
        return self.spelling.table(tokenizer, ids)

    def batch_spec(self, length: int, vocab: Vocab) -> Mapping[str, Any]:
        fields = self.spec(length, vocab)
        return (
            fields
            if self.spelling is None
            else {**fields, "characters": ((length, self.spelling.length), np.int32)}
        )

    @property
    def outputs(self) -> int:
        """Number of scores of the head: one per class, 1 without classes."""
        return len(self.labels) or 1

    def refusal(self, system: System) -> str | None:
        if self.readings > 1 and system.recipe.accumulate > 1:
            return (
                "the rows of an example lie in one batch; set recipe.accumulate=1, or use fewer "
                "examples per batch"
            )
        return None

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Any]:
        """Yields the examples of a file. `labels` is False for a test file without labels. Counts
        skipped and corrected examples in `remarks`. Raises UserError with file and line."""
        raise NotImplementedError

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Any]) -> list[Record]:
        """Returns {field: array} of each example, to be stored."""
        raise NotImplementedError

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        """Returns (rows of each example, counts of truncations) for a row length.
        A row has the fields of `spec`."""
        raise NotImplementedError

    def drawing(
        self, tokenizer: Tokenizer, length: int
    ) -> Callable[[Sequence[Record], np.random.Generator], list[Record]] | None:
        """Returns a function of the rows of a training batch to the rows that are drawn from them,
        anew in each epoch; None where rows are always the same."""
        return None

    def texts(self, example: Any) -> Iterator[str]:
        """Yields the texts of an example, to train a vocabulary."""
        raise NotImplementedError

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        """Returns the number of examples of each class; [] without classes."""
        return []

    def settled(self, sources: Sequence[str]) -> TaskExamples:
        """Returns a copy with data-dependent fields, such as the classes, filled in."""
        return self

    def like(self, trained: slots.Examples) -> TaskExamples:
        """Returns a copy that reads the columns that a model was trained on, where they can be
        named and the examples are of the same kind."""
        return self

    def reads(self, path: str, labels: bool = True) -> str:
        """Returns the line on a file: its rows, the fields that are read, and those that are not.
        "" for a task whose files are published."""
        return ""

    def with_settings(self, sentence: Sentence | None) -> TaskExamples:
        """Returns a copy with the prompts of a model's sentence-transformers folder, where texts
        have prompts."""
        return self

    def with_models(self, models: Mapping[str, str]) -> TaskExamples:
        """Returns a copy for a run that begins with these models, {tower: path}."""
        return self

    def count(
        self, sources: Sequence[str], tokenizer: Tokenizer | None = None, length: int = 0
    ) -> int:
        """Returns the number of training examples; with a tokenizer, of their groups of rows."""
        examples = self.part(self.examples(self.files(sources)["train"]))
        if tokenizer is None or self.one_group:
            return len(examples)
        return len(self.features(tokenizer, self.encode(tokenizer, examples), length)[0])

    def files(self, sources: Sequence[str]) -> dict[str, Source]:
        """Returns {split: source} of a directory, `tfds:name/config`, a training and a held-out
        file, or one file with a tenth held out. Raises UserError."""
        if len(sources) == 1 and str(sources[0]).startswith(tfds_sources.START):
            return _tfds_splits(str(sources[0]))
        paths = [Path(source) for source in sources]
        if len(paths) == 2 and all(path.exists() for path in paths):
            return dict(zip(store.SPLITS, (Source(str(path)) for path in paths), strict=True))
        if len(paths) == 1 and paths[0].is_file():
            return halves(str(paths[0]))
        if len(paths) != 1 or not paths[0].is_dir():
            missing = next((f"; there is no {path}" for path in paths if not path.exists()), "")
            raise UserError(
                "labelled data are a directory with files to train on and to hold out, or "
                "one file, or two; given "
                f"{', '.join(map(str, sources)) or 'nothing'}{missing}"
            )
        if splits := dataset_folders.splits_of(paths[0]):
            return _of_splits(splits)
        return self._within(paths[0])

    def _within(self, folder: Path) -> dict[str, Source]:
        """The files of a directory."""
        wanted = dict(zip(store.SPLITS, (self.train, self.heldout), strict=True))
        files = {split: first_of(folder, names) for split, names in wanted.items()}
        if files["train"] == files["heldout"]:
            files["heldout"] = None
        paths = [path for path in files.values() if path is not None] or [
            first_of(folder, self.test)
        ]
        if paths[0] is None:
            names = " or ".join((self.train[0], self.heldout[0], self.test[0]))
            raise UserError(
                f"{folder} has no file {names}; give the directory of this task's data, or "
                "the files"
            )
        if None in files.values():
            return halves(str(paths[0]))
        return {split: Source(str(path)) for split, path in files.items()}

    def examples(
        self, source: Source, remarks: Remarks | None = None, labels: bool = True
    ) -> list[Any]:
        """Returns the examples of a source or its part. Raises UserError if there are none."""
        try:
            examples = list(self.read(source.path, remarks, labels))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{source.path} is not in the format of {type(self).__name__} ({reason}); "
                "correct it"
            ) from error
        if not examples:
            raise UserError(f"{source.path} has no examples below its first line")
        if source.held is None:
            return examples
        part = [
            example
            for example, held in zip(examples, self.divided(examples), strict=True)
            if held == source.held
        ]
        if not part:
            raise UserError(
                f"{source.path} cannot be divided: a tenth of it is held out; give more "
                "examples, or two files"
            )
        return part

    def part(self, examples: list[Any]) -> list[Any]:
        """Returns the examples to train on, of those of the training file."""
        return examples

    def is_file(self, source: str) -> bool:
        """Returns whether a source is one file, all of which an evaluation reads."""
        return Path(source).is_file() or "#" in source

    def divided(self, examples: Sequence[Any]) -> list[bool]:
        """Returns whether each example of a single file is held out: a tenth of the units, the same
        ones in every call."""
        return _tenth([self.unit(example, number) for number, example in enumerate(examples)])

    @staticmethod
    def unit(example: Any, number: int) -> Any:
        """Returns a key. Examples with the same key are held out together."""
        return number

    def corpus(
        self,
        sources: Sequence[str],
        folder: Path,
        tokenizer: TokenizerSpec,
        progress: Callable | None = None,
    ) -> TaskCorpus:
        """Returns the prepared data; prepares it in `folder` if necessary. Raises UserError."""
        files = self.files(sources)
        request = {
            "examples": repr(self),
            "files": {split: tabular.digest(source.path) for split, source in files.items()},
            # without fields that older data do not have
            "tokenizer": repr(tokenizer)
            .replace(", min_count=1,", ",")
            .replace(", sampling=1.0", "")
            .replace(", segmenter=None", "")
            .replace(", strip_accents=True", ""),
        }
        if fetched.is_corpus(fetched.corpus(folder)):
            prepared = store.open_corpus(folder)
            if prepared.manifest.get("request") != request:
                raise UserError(
                    f"{folder} was prepared from other data or for another task; choose "
                    "another --workdir"
                )
            return prepared
        draft = folder.with_name(folder.name + ".partial")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            _prepare(self, files, draft, tokenizer, request, progress=progress)
        except UserError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        draft.rename(folder)
        working.push(folder)
        return store.open_corpus(folder)


def first_of(folder: Path, names: Sequence[str]) -> Path | None:
    """Returns the first existing file of `names`, which may be patterns, in a directory."""
    for name in names:
        matches = sorted(path for path in folder.glob(name) if not path.name.startswith("."))
        if matches:
            return matches[0]
    return None


def note(remarks: Remarks | None, what: str, place: str) -> None:
    """Counts a remark, where remarks are wanted, under the place of its first occurrence."""
    if remarks is not None:
        known = next(
            (key for key in remarks if key.startswith(f"{what} (")), f"{what} (first at {place})"
        )
        remarks[known] += 1


def print_remarks(remarks: Remarks, where: str) -> None:
    """Prints the remarks with their counts on stderr."""
    for what, count in remarks.items():
        print(f"{where}: {count} {what}", file=sys.stderr)


def halves(path: str) -> dict[str, Source]:
    """Splits a source, with a tenth held out."""
    return {"train": Source(path, False), "heldout": Source(path, True)}


def _tfds_splits(name: str) -> dict[str, Source]:
    splits = tfds_sources.builder_of(name).info.splits
    return _of_splits({"train": f"{name}#train"} | {split: f"{name}#{split}" for split in splits})


def _of_splits(splits: Mapping[str, str]) -> dict[str, Source]:
    """The splits to train on and to hold out, given the sources of all."""
    held = next((splits[name] for name in HELD if name in splits), None)
    train = splits.get("train", next(iter(splits.values())))
    return halves(train) if held in (None, train) else dict(
        zip(store.SPLITS, (Source(train), Source(held)), strict=True)
    )  # fmt: skip


def _tenth(units: Sequence[Any]) -> list[bool]:
    """Whether each example is held out: a tenth of the units, the same ones in every call."""
    names = list(dict.fromkeys(units))
    order = np.random.default_rng(0).permutation(len(names))
    held = {names[i] for i in order[: max(1, len(names) // TENTH)]}
    return [unit in held for unit in units]


def _prepare(
    examples: TaskExamples, files, folder: Path, spec: TokenizerSpec, request, *, progress
) -> None:
    """Writes the tokenizer, the arrays of both splits, and the manifest."""
    remarks = {split: Remarks() for split in files}
    examples_of = {
        split: examples.examples(source, remarks[split]) for split, source in files.items()
    }
    examples_of["train"] = examples.part(examples_of["train"])
    texts = (text for example in examples_of["train"] for text in examples.texts(example))
    vocabularies.make(spec, texts).save(folder / "tokenizer")
    tokenizer, splits = saved.load(folder / "tokenizer"), {}
    if examples.alphabet is not None:
        tokenizer = opened(tokenizer)
    progress = progress or (lambda what, done, total: None)
    for split, source in files.items():
        count = len(examples_of[split])
        progress(f"tokenizing {source.name}", 0, count)
        records = examples.encode(tokenizer, examples_of[split])
        progress(f"tokenizing {source.name}", count, count)
        save_records(folder / f"{split}.npz", records)
        tokenizer.save(folder / "tokenizer")  # an open vocabulary has more words now
        counts = examples.frequencies(records)
        if split == "train" and len(counts) > 1 and sum(map(bool, counts)) == 1:
            remarks[split]["examples are all of one class; nothing can be learnt from them"] = count
        splits[split] = {
            "examples": len(records),
            "counts": counts,
            "source": list(source),
            "remarks": dict(remarks[split]),
            "shards": [],
        }
        print_remarks(remarks[split], source.path)
    manifest = {
        "format": FORMAT,
        "vocab": dataclasses.asdict(tokenizer.vocab),
        "tokenizer": {"hash": tokenizer.hash, "kind": tokenizer.kind},
        "splits": splits,
        "request": request,
    }
    manifest["digest"] = store.digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
