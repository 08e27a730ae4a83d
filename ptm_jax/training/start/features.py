"""The features of a frozen encoder, computed once for every text and kept on disk.
Peters et al. 2019, section 2.

    FOLDER/rows.bin     float32 states [layers, l, D] of all texts, concatenated
    FOLDER/index.jsonl  a line per text: the hash of its ids and types, its offset, its number of
                        tokens

Both files only grow. If a kill left a line without its bytes, the text is computed again. The name
of the folder is a hash of the encoder's parameters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ptm_jax.adapt.parameters.freezing import keeps_features
from ptm_jax.convert.adapterfile import digest
from ptm_jax.core.paths import flatten
from ptm_jax.mesh import rules
from ptm_jax.training import workdirs
from ptm_jax.training.logs import console

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


class FeatureStore:
    """States [S, l, D] of texts by the hash of their ids.
    S is 1, or the number of layers for a mixture of layers."""

    def __init__(self, folder: Path, layers: int, width: int):
        self.folder, self._shape = folder, (layers, width)
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            self._rows = (folder / "rows.bin").open("a+b")
            self._index = (folder / "index.jsonl").open("a+", encoding="utf8")
        self._places = dict(self._read())

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> np.ndarray:
        """Returns [S, l, D] float32."""
        start, length = self._places[key]
        self._rows.seek(start)
        size = self._shape[0] * length * self._shape[1]
        return np.frombuffer(self._rows.read(4 * size), np.float32).reshape(
            self._shape[0], length, self._shape[1]
        )

    def put(self, key: str, states: np.ndarray) -> None:
        """Stores the states [S, l, D] of a text."""
        with self._writing():
            start = self._rows.seek(0, 2)
            self._rows.write(np.ascontiguousarray(states, np.float32).tobytes())
            self._rows.flush()
            self._index.write(json.dumps([key, start, states.shape[1]]) + "\n")
            self._index.flush()
        self._places[key] = start, states.shape[1]

    def close(self) -> None:
        self._rows.close()
        self._index.close()

    def _writing(self):
        return workdirs.writing(self.folder, "free space there, or leave cache=true out")

    def _read(self) -> Iterator[tuple[str, tuple[int, int]]]:
        size = self._rows.seek(0, 2)
        self._index.seek(0)
        for line in self._index:
            try:
                key, start, length = json.loads(line)
            except ValueError:  # a line that a kill cut off
                continue
            if start + 4 * length * self._shape[0] * self._shape[1] <= size:
                yield key, (start, length)


def keys(batch: dict[str, np.ndarray]) -> list[str]:
    """Returns the hash of the ids and types of every row, without padding."""
    lengths = (batch["segment_ids"] > 0).sum(1)
    fields = [np.asarray(batch[name]) for name in ("input_ids", "token_type_ids") if name in batch]
    return [
        hashlib.sha256(
            b"".join(np.ascontiguousarray(field[row, :n], "<i4").tobytes() for field in fields)
        ).hexdigest()[:32]
        for row, n in enumerate(lengths.tolist())
    ]


class FeatureStream:
    """Adds `features` [B, S, L, D] float32 to the batches of a stream.
    `encode(batch) -> [B, S, L, D]` computes features that the store lacks. Other attributes are the
    stream's."""

    def __init__(
        self,
        stream: Any,
        store: FeatureStore,
        encode: Callable[[dict[str, np.ndarray]], np.ndarray],
    ):
        self._stream, self._store, self._encode = stream, store, encode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> FeatureStream:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        batch = next(self._stream)
        names, lengths = keys(batch), (batch["segment_ids"] > 0).sum(1).tolist()
        if not all(name in self._store for name in names):
            states = np.asarray(self._encode(batch), np.float32)
            for row, name in enumerate(names):
                if name not in self._store:
                    self._store.put(name, states[row, :, : lengths[row]])
        layers, width = self._store._shape
        features = np.zeros((len(names), layers, batch["input_ids"].shape[1], width), np.float32)
        for row, name in enumerate(names):
            features[row, :, : lengths[row]] = self._store.get(name)
        return {**batch, "features": features}


def kept(program: Any, params: Params, stream: Any, workdir: Path, mesh: Mesh) -> Any:
    """Returns the stream of a run, with features of the frozen encoder if they are needed."""
    if not keeps_features(program.system.wrappers):
        return stream
    if jax.process_count() > 1:
        console.say(
            "features are computed at every step: they are kept by runs of one process alone"
        )
        return stream
    tower = program._bind(params, False)["main"]
    # A copy: the step donates the memory of its state.
    params_copy = {
        name: tree
        for name, tree in tower.params.items()
        if name == "encoder" or name.startswith("readers_")
    }
    params_copy = jax.tree.map(jnp.copy, params_copy)
    states = jax.jit(
        lambda params, batch: tower.module.apply({"params": params}, batch, method="states")
    )

    def encode(batch):
        return states(params_copy, rules.place_batch(batch, mesh))

    hashed = digest(flatten(params_copy["encoder"]))
    example = jax.eval_shape(
        states, params_copy, {name: value[:1] for name, value in _first(stream).items()}
    )
    store = FeatureStore(
        Path(workdir) / "features" / hashed[:16], example.shape[1], example.shape[3]
    )
    return FeatureStream(stream, store, encode)


def _first(stream: Any) -> dict[str, np.ndarray]:
    """Returns a batch of a stream without advancing it."""
    position = stream.state()
    batch = next(stream)
    stream.restore(position)
    return batch
