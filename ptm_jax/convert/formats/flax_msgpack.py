"""Reads Flax msgpack files of Transformers 4 under torch's names and layouts.
The file is `flax_model.msgpack`.

The file is parsed without loading it: the bytes of an array are skipped and only their offset is
kept. flax.serialization writes maps with text keys, numbers, and the extension types 1 (array:
shape, dtype, bytes) and 3 (numpy scalar, the same). An array above 1 GiB is a map
{"__msgpack_chunked_array__", "shape", "chunks"}.

Names follow Transformers' own conversion (modeling_flax_pytorch_utils.py of 4.57). `kernel` becomes
`weight` with reversed axes; this also holds for GPT-2, since Flax's Conv1D stores the transpose of
torch's. A convolution (H, W, in, out) becomes (out, in, H, W). `scale` and `embedding` become
`weight`. Batch normalization statistics become `running_mean` and `running_var`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.convert.formats.tensors import TYPES, Entry, Stored, bytes_of
from ptm_jax.core.reading import broken, reading, shown, size_of

_DEPTH = 64
_TEXT = 1 << 16  # bytes of the longest name
_CHUNKED = "__msgpack_chunked_array__"

# First byte -> struct format of the value or length that follows.
_NUMBERS = dict(
    zip(
        range(0xCA, 0xD4), (">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), strict=True
    )
)
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_BINS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_EXTS = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_FIXED_EXTS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class _Wrong(Exception):
    """A format error; the caller adds file and tensor."""


class _Blob(tuple):
    """(offset, length) of skipped bytes."""


def open_flax(path: Path) -> Stored:
    """Reads the table of a Flax msgpack file. Raises UserError if it is inconsistent."""
    size = size_of(path)
    if not size:
        raise broken(path, "is empty")
    with reading(path), path.open("rb") as file:
        walker = _Walker(file, size)
        try:
            tree = walker.value(0)
            if walker.at != size:
                raise _Wrong(f"has {size - walker.at:,} bytes after its end")
            if not isinstance(tree, dict):
                raise _Wrong("is no map of parameters")
            return Stored(
                path, size, torch_entries(path, dict(_leaves(tree, ()))), {"format": "flax"}
            )
        except _Wrong as error:
            raise broken(
                path, f"is no Flax checkpoint: {error}", ".".join(walker.keys) or None
            ) from None


def torch_entries(path: Path, entries: Mapping[tuple[str, ...], Entry]) -> dict[str, Entry]:
    """Converts Flax's {key path: entry} to torch's names and layouts."""
    entry_of: dict[str, Entry] = {}
    for keys, entry in entries.items():
        if keys[0] in ("params", "batch_stats") and all(
            other[0] in ("params", "batch_stats") for other in entries
        ):
            keys = keys[1:]
        *parents, last = keys or ("",)
        axes = None
        if last == "kernel":
            rank = len(entry.stored)
            axes = (3, 2, 0, 1) if rank == 4 else tuple(reversed(range(rank)))
            last = "weight"
        last = {
            "scale": "weight",
            "embedding": "weight",
            "mean": "running_mean",
            "var": "running_var",
        }.get(last, last)
        name = ".".join((*parents, last))
        if name in entry_of:
            raise broken(path, "is there twice under torch's names", name)
        entry_of[name] = Entry(
            dtype=entry.dtype, stored=entry.stored, extents=entry.extents, axes=axes
        )
    return entry_of


def _leaves(
    tree: Mapping[str, Any], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Entry]]:
    """Yields (key path, array) for every array of the tree."""
    for key, value in tree.items():
        if isinstance(value, Entry):
            yield (*above, key), value
        elif isinstance(value, dict) and _CHUNKED in value:
            yield (*above, key), _joined(value, ".".join((*above, key)))
        elif isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        else:
            raise _Wrong(f"{shown('.'.join((*above, key)))} is neither an array nor a map")


def _joined(value: Mapping[str, Any], name: str) -> Entry:
    """Returns the entry of a chunked array."""
    shape, chunks = value.get("shape"), value.get("chunks")
    if not isinstance(shape, dict) or not isinstance(chunks, dict) or not chunks:
        raise _Wrong(f"the pieces of {shown(name)} are incomplete")
    sizes = tuple(shape.get(str(i)) for i in range(len(shape)))
    parts = [chunks.get(str(i)) for i in range(len(chunks))]
    if not all(type(size) is int and size >= 0 for size in sizes) or not all(
        isinstance(part, Entry) for part in parts
    ):
        raise _Wrong(f"the pieces of {shown(name)} are incomplete")
    extents = tuple(extent for part in parts for extent in part.extents)
    if len({part.dtype for part in parts}) > 1 or bytes_of(parts[0].dtype, sizes) != sum(
        length for _, length in extents
    ):
        raise _Wrong(f"the pieces of {shown(name)} do not make the shape {list(sizes)}")
    return Entry(dtype=parts[0].dtype, stored=sizes, extents=extents)


class _Walker:
    """Reads msgpack values sequentially: arrays as `Entry`, other long bytes as `_Blob`."""

    def __init__(self, file: io.BufferedReader, size: int):
        self.file, self.size, self.at = file, size, 0
        self.keys: list[str] = []  # key path of the current value, for error messages

    def take(self, length: int) -> bytes:
        raw = self.file.read(length) if length <= self.size - self.at else b""
        if len(raw) < length:
            raise _Wrong(
                f"{length:,} bytes are claimed at byte {self.at:,} of {self.size:,}: "
                "truncated, or a wrong length"
            )
        self.at += length
        return raw

    def skip(self, length: int) -> _Blob:
        blob = _Blob((self.at, length))
        if length > self.size - self.at:
            self.take(length)
        self.at += length
        self.file.seek(self.at)
        return blob

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, length: int) -> str:
        if length > _TEXT:
            raise _Wrong(f"a text of {length:,} bytes at byte {self.at:,}")
        try:
            return self.take(length).decode("utf8")
        except UnicodeDecodeError:
            raise _Wrong(f"a text at byte {self.at:,} that is not UTF-8") from None

    def value(self, depth: int) -> Any:
        """Returns the value at the current position."""
        if depth > _DEPTH:
            raise _Wrong(f"it is nested deeper than {_DEPTH}")
        head = self.take(1)[0]
        if head <= 0x7F or head >= 0xE0:
            return head if head <= 0x7F else head - 256
        if head <= 0x8F or head in _MAPS:
            return self.map(head & 15 if head <= 0x8F else self.number(_MAPS[head]), depth)
        if head <= 0x9F or head in _LISTS:
            return self.list(head & 15 if head <= 0x9F else self.number(_LISTS[head]), depth)
        if head <= 0xBF or head in _TEXTS:
            return self.text(head & 31 if head <= 0xBF else self.number(_TEXTS[head]))
        if head in _NUMBERS:
            return self.number(_NUMBERS[head])
        if head in _BINS:
            return self.skip(self.number(_BINS[head]))
        if head in _FIXED_EXTS or head in _EXTS:
            return self.extension(
                _FIXED_EXTS[head] if head in _FIXED_EXTS else self.number(_EXTS[head]), depth
            )
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        raise _Wrong(f"byte {self.at - 1:,} begins no msgpack value")

    def map(self, length: int, depth: int) -> dict[str, Any]:
        if 2 * length > self.size - self.at:
            raise _Wrong(
                f"a map of {length:,} entries is claimed at byte {self.at:,}, but the file "
                f"has {self.size:,} bytes"
            )
        entries: dict[str, Any] = {}
        for _ in range(length):
            key = self.value(_DEPTH)
            if not isinstance(key, str):
                raise _Wrong(f"a key before byte {self.at:,} is no text")
            if key in entries:
                raise _Wrong(f"{shown(key)} is there twice")
            self.keys.append(key)
            entries[key] = self.value(depth + 1)
            self.keys.pop()
        return entries

    def list(self, length: int, depth: int) -> list[Any]:
        if length > self.size - self.at:
            raise _Wrong(
                f"a list of {length:,} entries is claimed at byte {self.at:,}, but the file "
                f"has {self.size:,} bytes"
            )
        return [self.value(depth + 1) for _ in range(length)]

    def extension(self, length: int, depth: int) -> Entry:
        """Returns an array, encoded as a msgpack list (shape, dtype name, bytes)."""
        code = self.number(">b")
        if code not in (1, 3):
            raise _Wrong(f"extension type {code} at byte {self.at:,}; arrays are 1 and 3")
        end = self.at + length
        fields = self.value(depth + 1)
        if self.at != end or not isinstance(fields, list) or len(fields) != 3:
            raise _Wrong(f"the array before byte {self.at:,} is not (shape, type, bytes)")
        shape, dtype, blob = fields
        if not isinstance(shape, list) or not all(
            type(size) is int and size >= 0 for size in shape
        ):
            raise _Wrong("its shape is not a list of sizes")
        if not isinstance(dtype, str) or dtype not in TYPES:
            raise _Wrong(f"its type is {shown(dtype)}; these are read: {', '.join(TYPES)}")
        name = TYPES[dtype]
        if not isinstance(blob, _Blob) or bytes_of(name, tuple(shape)) != blob[1]:
            raise _Wrong(
                f"its shape is {shown(shape)} of {dtype}, which is not the size of its bytes"
            )
        return Entry(dtype=name, stored=tuple(shape), extents=(tuple(blob),))
