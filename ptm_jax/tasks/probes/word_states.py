"""The states of every layer for words, in a file that is made once."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core import cache
from ptm_jax.core.errors import UserError
from ptm_jax.inference import inputs
from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.inference.streams import identity
from ptm_jax.inference.text import tags, token_states

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

MEMORY = 4.0
"""GB of memory that the arrays of a batch may take, and all states where nothing is kept."""


class WordStates(NamedTuple):
    """States of the words of sentences.

    states   [words, N+1, D] float16: the embeddings and each layer, the mean over a word's pieces.
             With a cache they stay on disk, and an index reads them
    fitting  numbers of the sentences that fit into the model; the others have no states
    """

    states: np.ndarray
    fitting: tuple[int, ...]


def folder() -> Path | None:
    """Returns the folder of the states in the cache, or None where nothing is cached."""
    home = cache.home()
    return None if home is None else home / "probes"


class Rows:
    """States [n, N+1, D] of words [n, 1], or [n, N+1, 3 D] of pairs [n, 2]: both words and their
    product (Liu et al. 2019, section 3). An index reads the rows that it names, and no others."""

    def __init__(self, states: np.ndarray, words: np.ndarray):
        self._states, self._words = states, words
        self.shape = len(words), states.shape[1], (1, 3)[words.shape[1] - 1] * states.shape[2]

    def __len__(self) -> int:
        return len(self._words)

    def of(self, rows: np.ndarray) -> Rows:
        """Returns some of the rows, without reading them."""
        return Rows(self._states, self._words[rows])

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        several = [self._states[side] for side in self._words[rows].T]
        several += [several[0] * several[1]] if len(several) == 2 else []
        return np.concatenate(several, -1)


def of_sentences(
    model: Pretrained, sentences: Sequence[Sequence[str]], cache: Path | None, batch: int = 32,
    *, first: bool = False, memory: float = MEMORY, say: Callable[[str], None] | None = None,
) -> WordStates:  # fmt: skip
    """Returns the states of the words of sentences, from the folder `cache` if they are there.

    The name of a file is a hash of the model and the sentences. None: nothing is kept.

    first   whether a sentence has the state of its first token, as [CLS], in place of its words
    memory  GB; batches have as many sentences, at most `batch`, as fit
    say     receives a line with the size of the states, before they are computed

    Raises UserError where the states fit neither memory nor disk.
    """
    key = hashlib.sha256(identity.of_model(model).encode())
    key.update(json.dumps([list(words) for words in sentences]).encode())
    key.update(b"first" * first)
    records, fitting = fitting_records(model, sentences, len(inputs.framed(model, ())))
    rows = [inputs.framed(model, record["ids"]) for record in records]
    sizes = [np.ones(1, np.int32) if first else record["sizes"] for record in records]
    if not rows:
        return WordStates(np.zeros((0, 1, 1), np.float16), ())
    layers, width = _shape(model, rows[0])
    shape = sum(map(len, sizes)), layers, width
    file = None if cache is None else cache / f"{key.hexdigest()[:24]}.npy"
    if file is None or not file.is_file():
        _check(shape, cache, memory, say)
        size = batch_of(batch, max(map(len, rows)), 4 * layers * width, memory)
        if file is None:
            states = np.zeros(shape, np.float16)
            _fill(states, model, rows, sizes, batch=size, first=first)
            return WordStates(states, fitting)
        cache.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(".draft")
        states = np.lib.format.open_memmap(draft, "w+", np.float16, shape)
        _fill(states, model, rows, sizes, batch=size, first=first)
        states.flush()
        draft.replace(file)
    return WordStates(np.load(file, mmap_mode="r"), fitting)


def fitting_records(
    model: Pretrained, sentences: Sequence[Sequence[str]], frame: int
) -> tuple[list[dict[str, np.ndarray]], tuple[int, ...]]:
    """Returns the records (`tags.records_of`) and the numbers of the sentences that fit into the
    model with `frame` special tokens."""
    records = tags.records_of(model._tokenizer(), sentences)
    room = np.inf if model.limit is None else model.limit - frame
    fitting = tuple(i for i, one in enumerate(records) if 0 < len(one["ids"]) <= room)
    return [records[i] for i in fitting], fitting


def batch_of(batch: int, length: int, of_token: int, memory: float, of_pair: int = 0) -> int:
    """Returns the sentences of a batch: at most `batch`, and as many as `memory` GB hold.

    of_token, of_pair  bytes of a token, and of a pair of tokens

    Raises UserError where one sentence of `length` tokens is too large.
    """
    length = bucket(length, inputs.SHORTEST)
    needed = length * (of_token + length * of_pair)
    size = int(memory * 1e9 // needed)
    if not size:
        raise UserError(
            f"the layers of a sentence of {length:,} tokens take {needed / 1e9:.2g} GB, and "
            f"--memory is {memory:g}; raise it, or leave long sentences out"
        )
    return min(batch, 1 << size.bit_length() - 1)


def _check(
    shape: tuple[int, int, int], cache: Path | None, memory: float,
    say: Callable[[str], None] | None,
) -> None:  # fmt: skip
    """Raises UserError where states of a shape do not fit."""
    gigabytes = 2 * np.prod(shape, dtype=np.int64) / 1e9
    words, layers, width = shape
    size = f"states of {words:,} words, {layers} layers of {width:,}, take {gigabytes:.2g} GB"
    place, room = "memory", memory
    if cache is not None:
        folder = next(one for one in (cache, *cache.parents) if one.is_dir())
        place, room = str(cache), shutil.disk_usage(folder).free / 1e9
    if gigabytes > room:
        advice = "raise --memory, or set PTM_CACHE to a folder" if cache is None else (
            "set PTM_CACHE to a folder with more room"
        )  # fmt: skip
        raise UserError(f"the {size}, and {place} has {room:.2g} GB; {advice}")
    if say is not None:
        say(f"{size} in {place}; a batch takes at most {memory:g} GB")


def _shape(model: Pretrained, row: np.ndarray) -> tuple[int, int]:
    """Returns (N+1, D) of the layers, without computing them. Raises UserError without layers."""
    batch = model._batch(row[None])
    layers = token_states._forward.eval_shape(model.module, model.weights, batch)[0]
    if layers is None:
        raise UserError(f"the layers of {model.system.name} differ in width; no probe reads them")
    return layers.shape[0], layers.shape[-1]


def _fill(
    result: np.ndarray, model: Pretrained, rows: Sequence[np.ndarray],
    sizes: Sequence[np.ndarray], *, batch: int, first: bool,
) -> None:  # fmt: skip
    """Writes the states of words [words, N+1, D] into `result`."""
    starts = np.cumsum([0, *map(len, sizes)])
    for chosen in inputs.batches(rows, batch):
        several, _ = token_states._states(model, [rows[i] for i in chosen], None, specials=first)
        for number, states in zip(chosen, several, strict=True):
            # a word of no piece takes the state of the piece before it
            ends = np.cumsum(sizes[number])
            begins = np.minimum(ends - sizes[number], ends[-1] - 1)
            sums = np.add.reduceat(states[:, :1] if first else states, begins, axis=1)
            means = sums / np.maximum(sizes[number], 1)[:, None]
            result[starts[number] : starts[number + 1]] = means.transpose(1, 0, 2)
