"""The states of every layer for words, in a file that is made once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core import cache
from ptm_jax.inference import inputs
from ptm_jax.inference.streams import identity
from ptm_jax.inference.text import tags, token_states

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


class WordStates(NamedTuple):
    """States of the words of sentences.

    states   [words, N+1, D] float16: the embeddings and each layer, the mean over a word's pieces
    fitting  numbers of the sentences that fit into the model; the others have no states
    """

    states: np.ndarray
    fitting: tuple[int, ...]


def folder() -> Path | None:
    """Returns the folder of the states in the cache, or None where nothing is cached."""
    home = cache.home()
    return None if home is None else home / "probes"


def of_sentences(
    model: Pretrained, sentences: Sequence[Sequence[str]], cache: Path | None, batch: int = 32,
    *, first: bool = False,
) -> WordStates:  # fmt: skip
    """Returns the states of the words of sentences, from the folder `cache` if they are there.

    The name of a file is a hash of the model and the sentences. None: nothing is kept.

    first  whether a sentence has the state of its first token, as [CLS], in place of its words
    """
    key = hashlib.sha256(identity.of_model(model).encode())
    key.update(json.dumps([list(words) for words in sentences]).encode())
    key.update(b"first" * first)
    records = tags.records_of(model._tokenizer(), sentences)
    frame = len(inputs.framed(model, np.zeros(0, np.int32)))
    room = None if model.limit is None else model.limit - frame
    fitting = tuple(
        number
        for number, record in enumerate(records)
        if len(record["ids"]) and (room is None or len(record["ids"]) <= room)
    )
    if cache is None:
        return WordStates(_states(model, [records[i] for i in fitting], batch, first), fitting)
    file = cache / f"{key.hexdigest()[:24]}.npy"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(".draft")
        with draft.open("wb") as out:
            np.save(out, _states(model, [records[i] for i in fitting], batch, first))
        draft.replace(file)
    return WordStates(np.load(file, mmap_mode="r"), fitting)


def _states(model: Pretrained, records: Sequence[dict], batch: int, first: bool) -> np.ndarray:
    sizes = [record["sizes"] for record in records]
    if first:
        sizes = [np.array([1], np.int32)] * len(records)
    starts = np.cumsum([0, *map(len, sizes)])
    rows = [inputs.framed(model, record["ids"]) for record in records]
    result: np.ndarray | None = None
    for chosen in inputs.batches(rows, batch):
        several, _ = token_states._states(model, [rows[i] for i in chosen], None, specials=first)
        for number, states in zip(chosen, several, strict=True):
            # a word of no piece takes the state of the piece before it
            ends = np.cumsum(sizes[number])
            begins = np.minimum(ends - sizes[number], len(records[number]["ids"]) - 1)
            sums = np.add.reduceat(states[:, :1] if first else states, begins, axis=1)
            means = sums / np.maximum(sizes[number], 1)[:, None]
            if result is None:
                result = np.zeros((starts[-1], *means.shape[::2]), np.float16)
            result[starts[number] : starts[number + 1]] = means.transpose(1, 0, 2)
    return np.zeros((0, 1, 1), np.float16) if result is None else result
