"""The features of a frozen encoder, computed once for every text and kept on disk (Peters et al. 2019, section 2).

    FOLDER/rows.bin     float32 states [layers, l, D] of one text after another
    FOLDER/index.jsonl  a line for each: the hash of its ids and types, where it begins, how many tokens it has

Both only grow. A text whose line is there but not its bytes, after a kill, is computed again. The folder is named after the
encoder's parameters, so that another encoder has another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert.adapterfile import digest
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.mesh import tables
from ptm_jax.train import logs


class FeatureStore:
    """States [S, l, D] of texts by the hash of their ids: S is 1, or all layers where a mixture of them is read."""

    def __init__(self, folder: Path, layers: int, width: int):
        self.folder, self._shape = folder, (layers, width)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._rows = (folder / "rows.bin").open("a+b")
            self._index = (folder / "index.jsonl").open("a+", encoding="utf8")
        except OSError as error:
            raise UserError(f"cannot write {folder}: {error.strerror}; free space there, or leave cache=true out") from error
        self._places = dict(self._read())

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> np.ndarray:
        """[S, l, D] float32."""
        start, length = self._places[key]
        self._rows.seek(start)
        size = self._shape[0] * length * self._shape[1]
        return np.frombuffer(self._rows.read(4 * size), np.float32).reshape(self._shape[0], length, self._shape[1])

    def put(self, key: str, states: np.ndarray) -> None:
        """Keep the states [S, l, D] of a text."""
        try:
            start = self._rows.seek(0, 2)
            self._rows.write(np.ascontiguousarray(states, np.float32).tobytes())
            self._rows.flush()
            self._index.write(json.dumps([key, start, states.shape[1]]) + "\n")
            self._index.flush()
        except OSError as error:
            raise UserError(
                f"cannot write {self.folder}: {error.strerror}; free space there, or leave cache=true out"
            ) from error
        self._places[key] = start, states.shape[1]

    def close(self) -> None:
        self._rows.close()
        self._index.close()

    def _read(self) -> Iterator[tuple[str, tuple[int, int]]]:
        size = self._rows.seek(0, 2)
        self._index.seek(0)
        for line in self._index:
            try:
                key, start, length = json.loads(line)
            except ValueError:  # the end of a line that a kill cut off
                continue
            if start + 4 * length * self._shape[0] * self._shape[1] <= size:
                yield key, (start, length)


def keys(batch: dict[str, np.ndarray]) -> list[str]:
    """The hash of every row's ids and types, padding left out."""
    lengths = (batch["segment_ids"] > 0).sum(1)
    fields = [np.asarray(batch[name]) for name in ("input_ids", "token_type_ids") if name in batch]
    return [
        hashlib.sha256(b"".join(np.ascontiguousarray(field[row, :n], "<i4").tobytes() for field in fields)).hexdigest()[:32]
        for row, n in enumerate(lengths.tolist())
    ]


class FeatureStream:
    """A stream whose batches also have `features` [B, S, L, D] float32. What the store lacks is computed, a batch at a time,
    by `encode(batch) -> [B, S, L, D]`; everything else is the stream's own."""

    def __init__(self, stream: Any, store: FeatureStore, encode: Callable[[dict[str, np.ndarray]], np.ndarray]):
        self._stream, self._store, self._encode = stream, store, encode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> FeatureStream:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        batch = next(self._stream)
        names, lengths = keys(batch), (batch["segment_ids"] > 0).sum(1).tolist()
        if not all(name in self._store for name in names):
            found = np.asarray(self._encode(batch), np.float32)
            for row, name in enumerate(names):
                if name not in self._store:
                    self._store.put(name, found[row, :, : lengths[row]])
        layers, width = self._store._shape
        features = np.zeros((len(names), layers, batch["input_ids"].shape[1], width), np.float32)
        for row, name in enumerate(names):
            features[row, :, : lengths[row]] = self._store.get(name)
        return {**batch, "features": features}


def kept(program: Any, params: Any, stream: Any, workdir: Path, mesh: Any) -> Any:
    """The stream of a run with the features of its frozen encoder, where an adaptation asks for them; else the stream."""
    if not any(getattr(adaptation, "cache", False) for adaptation in program.system.adapt):
        return stream
    if jax.process_count() > 1:
        logs.say("features are computed at every step: they are kept by runs of one process alone")
        return stream
    tower = program._bind(params, False)["main"]
    # The step gives the memory of its state away; this is the encoder's own.
    own = jax.tree.map(jnp.copy, {"encoder": tower.params["encoder"], **_of_readers(tower.params)})
    states = jax.jit(lambda params, batch: tower.module.apply({"params": params}, batch, method="states"))
    encode = lambda batch: states(own, tables.place_batch(batch, mesh))
    hashed = digest(flatten(own["encoder"]))
    example = jax.eval_shape(states, own, {name: value[:1] for name, value in _first(stream).items()})
    store = FeatureStore(Path(workdir) / "features" / hashed[:16], example.shape[1], example.shape[3])
    return FeatureStream(stream, store, encode)


def _of_readers(params: Any) -> dict[str, Any]:
    return {name: tree for name, tree in params.items() if name.startswith("readers_")}


def _first(stream: Any) -> dict[str, np.ndarray]:
    """A batch of a stream, which stays where it is."""
    position = stream.state()
    batch = next(stream)
    stream.restore(position)
    return batch
