"""The examples of several tasks as one `examples` slot (MT-DNN, PALs).
Each batch is of one task, drawn at random.

Sources are `name=PATH`, one or two per task. All tasks share a tokenizer.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.data.corpora import store
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.tasks.formats.taskdata import TaskExamples

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


FORMAT = "mixed-1"


def parts_of(examples: slots.Examples) -> Mapping[str, TaskExamples]:
    """Returns {name: examples} of a mixture of tasks; {} of other examples."""
    return examples.parts if isinstance(examples, MixedTasks) else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedTasks(slots.Examples):
    """The examples of `parts` {name: examples}.
    A batch's task has probability p ~ N^alpha, N training examples:

    proportional  alpha = 1: as if the batches of all tasks were shuffled (Liu et al. 2019, arXiv
                  1901.11504, Algorithm 1)
    annealed      alpha = 1 - 0.8 (e - 1) / (E - 1) in epoch e of E = `epochs` (Stickland and Murray
                  2019, section 4.1)
    root          alpha = 0.5      equal  alpha = 0

    A batch also has `task` [B] int32, the index of its task in `parts`; `label` is a float where a
    task predicts numbers.
    """

    parts: Mapping[str, TaskExamples]
    kind: Literal["proportional", "annealed", "root", "equal"] = "proportional"
    epochs: int = 3

    labelled = True

    def __post_init__(self):
        if not self.parts or any(part.readings > 1 for part in self.parts.values()):
            raise ValueError(
                "parts must be tasks on rows of one text or pair each, and at least one"
            )
        if self.kind not in ("proportional", "annealed", "root", "equal") or self.epochs < 1:
            raise ValueError(
                f"kind is {self.kind!r} and epochs {self.epochs}; see the kinds of `MixedTasks`"
            )

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        """The fields of all parts."""
        fields: dict[str, tuple[tuple[int, ...], type]] = {"task": ((), np.int32)}
        for name, part in self.parts.items():
            for field, (shape, dtype) in part.spec(length, vocab).items():
                known = fields.setdefault(field, (shape, dtype))
                if known[0] != shape:
                    raise UserError(
                        f"{field} of {name} is {shape} a row, of another task {known[0]}; "
                        "mix tasks of one kind"
                    )
                fields[field] = (shape, np.float32 if np.float32 in (known[1], dtype) else dtype)
        return fields

    def power(self, epoch: int) -> float:
        """alpha in epoch 1, 2, ..."""
        done = min(epoch - 1, self.epochs - 1) / max(self.epochs - 1, 1)
        return {"proportional": 1.0, "annealed": 1.0 - 0.8 * done, "root": 0.5, "equal": 0.0}[
            self.kind
        ]

    def files(self, sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """{task: its sources} of 'name=PATH' words. Raises UserError."""
        files: dict[str, tuple[str, ...]] = {}
        for source in sources:
            name, equals, path = str(source).partition("=")
            if not equals:
                names = ", ".join(self.parts)
                raise UserError(
                    f"the data of several tasks are name=PATH for each of {names}; given {source!r}"
                )
            if name not in self.parts:
                raise unknown("task of this mixture", name, self.parts)
            files[name] = (*files.get(name, ()), path)
        if missing := [name for name in self.parts if name not in files]:
            raise UserError(f"there are no data for {missing[0]}; give {missing[0]}=PATH")
        return files

    def count(
        self, sources: Sequence[str], tokenizer: Tokenizer | None = None, length: int = 0
    ) -> int:
        """The number of training examples of all tasks."""
        return sum(
            self.parts[name].count(paths, tokenizer, length)
            for name, paths in self.files(sources).items()
        )

    def corpus(
        self,
        sources: Sequence[str],
        folder: Path,
        tokenizer: TokenizerSpec,
        progress: Callable | None = None,
    ) -> MixedCorpus:
        """The prepared data, a directory per task. Raises UserError."""
        files = self.files(sources)
        folder.mkdir(parents=True, exist_ok=True)
        corpora = {
            name: self.parts[name].corpus(files[name], folder / name, tokenizer, progress)
            for name in self.parts
        }
        manifests = {name: corpus.manifest for name, corpus in corpora.items()}
        hashes = {manifest["tokenizer"]["hash"] for manifest in manifests.values()}
        if len(hashes) > 1:
            raise UserError(
                "the tasks have different tokenizers; name one, as TokenizerSpec(path=...) "
                "of the model"
            )
        first = next(iter(manifests.values()))
        manifest = {"format": FORMAT, "vocab": first["vocab"], "tokenizer": first["tokenizer"]}
        manifest["splits"] = {
            split: {
                "examples": sum(m["splits"][split]["examples"] for m in manifests.values()),
                "shards": [],
            }
            for split in store.SPLITS
        }
        manifest["parts"] = {name: m["digest"] for name, m in manifests.items()}
        manifest["digest"] = store.digest(manifest)
        if not (folder / "tokenizer").exists():
            shutil.copytree(folder / next(iter(self.parts)) / "tokenizer", folder / "tokenizer")
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        return MixedCorpus(folder, manifest)


@dataclasses.dataclass(frozen=True)
class MixedCorpus(store.Corpus):
    """A directory of prepared tasks, without a baseline."""

    baseline = "no baseline"
    uncounted = (0,)

    @functools.cached_property
    def parts(self) -> dict[str, store.Corpus]:
        """{task: its corpus}."""
        return {name: store.open_corpus(self.dir / name) for name in self.manifest["parts"]}

    def counts(self, split: str = "train") -> np.ndarray:
        """[1] int64: the number of examples."""
        return np.array([self.manifest["splits"][self._split(split)]["examples"]], np.int64)

    def stream(self, split: str, examples: MixedTasks, **options: Any) -> MixedStream:
        """Batches of a split."""
        return MixedStream(self, split, examples, **options)


class MixedStream:
    """Batches of the tasks' streams.
    They are drawn at random if `epochs` is None, else all of one task after the other."""

    def __init__(
        self,
        corpus: MixedCorpus,
        split: str,
        examples: MixedTasks,
        *,
        seed: int,
        epochs: int | None = None,
        **more: Any,
    ):
        self._examples, self._seed, self._epochs = examples, seed, epochs
        streams = {
            name: corpus.parts[name].stream(split, part, seed=seed, epochs=epochs, **more)
            for name, part in examples.parts.items()
        }
        self._names, self._streams = list(streams), list(streams.values())
        self._sizes = np.array(
            [corpus.parts[name].size(split)["examples"] for name in self._names], np.float64
        )
        self._fields = functools.partial(examples.spec, vocab=corpus.vocab)
        self._done, self.cut = 0, sum(stream.cut for stream in self._streams)
        self.remarks = sum(
            (collections.Counter(stream.remarks) for stream in self._streams), collections.Counter()
        )

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch of all tasks."""
        return sum(stream.per_epoch for stream in self._streams)

    def rates(self, step: int) -> np.ndarray:
        """[T] the probability of each task at a step."""
        powers = (self._sizes / self._sizes.max()) ** self._examples.power(
            step // self.per_epoch + 1
        )
        return powers / powers.sum()

    def __iter__(self) -> MixedStream:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        if self._epochs is None:
            rng = np.random.default_rng((self._seed, self._done))
            task = int(rng.choice(len(self._streams), p=self.rates(self._done)))
            batch = next(self._streams[task])
        else:  # the next batch of the first task that is not exhausted
            batches = ((task, next(stream, None)) for task, stream in enumerate(self._streams))
            task, batch = next(both for both in batches if both[1] is not None)
        self._done += 1
        return self._whole(task, batch)

    def _whole(self, task: int, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch with the fields and dtypes of all tasks."""
        rows, width = batch["input_ids"].shape
        blank = {
            name: value
            for part in self._examples.parts.values()
            for name, value in part.fill.items()
        } | {"task": task}
        fields = {"rows": batch["rows"]}
        for name, (shape, dtype) in self._fields(width).items():
            field_value = batch.get(name, np.full((rows, *shape), blank.get(name, 0)))
            fields[name] = field_value.astype(dtype)
        return fields

    def state(self) -> dict[str, Any]:
        """The position: the number of batches, and the state of each task."""
        return {
            "batches": self._done,
            "tasks": {n: s.state() for n, s in zip(self._names, self._streams, strict=True)},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`. Raises UserError for a state of another stream."""
        if set(state.get("tasks", {})) != set(self._names):
            raise UserError(
                "the position was saved by a stream of other tasks; continue with those"
            )
        for name, stream in zip(self._names, self._streams, strict=True):
            stream.restore(state["tasks"][name])
        self._done = int(state["batches"])

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
