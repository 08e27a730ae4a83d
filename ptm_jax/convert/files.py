"""Reads checkpoint files: one table {torch name: tensor} over all files of a directory.

If a directory holds several formats, the first of these is read (`prefer` selects another):

    safetensors   model.safetensors, or the shards of model.safetensors.index.json
    flax          flax_model.msgpack, or the shards of flax_model.msgpack.index.json
    pickle        pytorch_model.bin, or the shards of pytorch_model.bin.index.json; only with
                  `allow_pickle`

Within a format a single file takes precedence over an index, as in Transformers. All tables are
read and checked before the first tensor. Tensors are read on demand, one at a time, and are not
cached.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Literal

import numpy as np

from ptm_jax.convert.formats.flax_msgpack import open_flax, torch_entries
from ptm_jax.convert.formats.safetensors_files import open_safetensors
from ptm_jax.convert.formats.tensors import Entry, Room, Stored
from ptm_jax.convert.formats.torch_pickle import Pickled
from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.reading import broken, read_json, shown, size_of

_INDEX = ".index.json"


class Tensors:
    """A read-only table of the named tensors of a checkpoint.

    folder  the directory of the checkpoint
    files   names of the files, in the order of opening
    """

    def __init__(self, folder: Path, tables: Mapping[str, Stored | Pickled]):
        self.folder, self.files = (
            folder,
            tuple(dict.fromkeys(table.path.name for table in tables.values())),
        )
        room = Room()
        shared = {
            id(t): dataclasses.replace(t, room=room)
            for t in tables.values()
            if isinstance(t, Stored)
        }
        self._tables = {name: shared.get(id(table), table) for name, table in tables.items()}

    def names(self) -> tuple[str, ...]:
        return tuple(self._tables)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __contains__(self, name: object) -> bool:
        return name in self._tables

    def within(self, prefix: str) -> Tensors:
        """Returns the tensors whose names begin with `prefix`."""
        return Tensors(
            self.folder,
            {name: one for name, one in self._tables.items() if name.startswith(prefix)},
        )

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> str:
        """Returns the element type in the file: "F32", "F16", "BF16", "I64", ..."""
        return self._entry(name).dtype

    def rows(self, name: str) -> int:
        """Returns the axis that changes slowest in the file.
        A slice along it is read without reading other data."""
        axes = self._entry(name).axes
        return axes.index(0) if axes else 0

    def file(self, name: str) -> Path:
        """Returns the file that holds the tensor, for error messages."""
        return self._table(name).path

    def read(self, name: str, keep: bool = False) -> np.ndarray:
        """Returns a tensor, floating point as float32 unless `keep`.
        It may be a transposed view."""
        return self.read_slice(name, (), keep)

    def read_slice(self, name: str, index: tuple[slice, ...], keep: bool = False) -> np.ndarray:
        """Returns a part of a tensor, given slices without steps along its first axes.

        Reads only the rows of the file (its first sliced axis) that hold the part. Needs a few
        megabytes besides the result.
        """
        return self._table(name).read(name, index, keep)

    def _table(self, name: str) -> Stored | Pickled:
        if name not in self._tables:
            raise UserError(
                f"{self.folder}: there is no tensor {shown(name)}.{closest(name, self._tables)}"
            )
        return self._tables[name]

    def _entry(self, name: str) -> Entry:
        return self._table(name).entries[name]


def open_tensors(
    folder: str | os.PathLike, allow_pickle: bool = False, prefer: Format | None = None
) -> Tensors:
    """Opens the tensors of a checkpoint.

    folder        its directory, or one of its files: weights, or an index of shards
    allow_pickle  whether a torch pickle may be read (`formats.torch_pickle`)
    prefer        the format to read if the directory holds several
    """
    path = Path(folder)
    if path.is_dir():
        path, kind = _choose(path, allow_pickle, prefer)
    elif path.exists():
        kind = _kind(path)
    else:
        raise broken(path, "there is no such directory or file")
    if FORMATS[kind].is_code and not allow_pickle:
        raise broken(
            path,
            "is a torch pickle, which can hold code; convert it to safetensors, or pass "
            "--allow-pickle if you trust it",
        )
    if path.name.endswith(_INDEX):
        return _open_sharded(path, kind, allow_pickle)
    table = FORMATS[kind].open(path)
    return Tensors(path.parent, dict.fromkeys(table.entries, table))


Format = Literal["safetensors", "flax", "pickle"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorFormat:
    """A format of files of tensors.

    file        the name of a single file in a checkpoint; with `_INDEX` the index of its shards
    suffixes    of its files
    open        path -> its table. Raises UserError
    torch_name  (name in an index, table of its shard) -> name of the tensor
    is_code     whether a file may hold code
    """

    file: str
    suffixes: tuple[str, ...]
    open: Callable[[Path], Stored | Pickled]
    torch_name: Callable[[str, Stored | Pickled], str] = lambda name, shard: name
    is_code: bool = False

    @property
    def files(self) -> tuple[str, str]:
        """The names of a single file and of an index."""
        return self.file, self.file + _INDEX


def _kind(path: Path) -> Format:
    """Returns the format of a file from its name."""
    name = path.name.removesuffix(_INDEX)
    known = {suffix: kind for kind, form in FORMATS.items() for suffix in form.suffixes}
    suffix = Path(name).suffix
    if suffix not in known:
        raise broken(
            path,
            f"is not a checkpoint; its name must end in {', '.join(known)} or one of "
            f"these with {_INDEX}",
        )
    return known[suffix]


def _choose(folder: Path, allow_pickle: bool, prefer: Format | None) -> tuple[Path, Format]:
    """Returns the file of a directory to open first, and its format."""
    if prefer is not None and prefer not in FORMATS:
        raise ValueError(f"prefer is {prefer!r}; it must be one of {', '.join(FORMATS)}")
    kinds = (prefer,) if prefer else tuple(FORMATS)
    for kind in kinds:
        for name in FORMATS[kind].files:
            if os.path.lexists(folder / name):
                return folder / name, kind
    wanted = ", ".join(
        name
        for kind in kinds
        for name in FORMATS[kind].files
        if not FORMATS[kind].is_code or allow_pickle or prefer
    )
    names = sorted(os.listdir(folder))
    listed = ", ".join(map(shown, names[:8])) + (
        f" and {len(names) - 8} more" if len(names) > 8 else ""
    )
    hint = (
        " A tf_model.h5 or a TensorFlow checkpoint is not read."
        if any(n.endswith((".h5", ".index")) for n in names)
        else ""
    )
    raise broken(
        folder, f"holds no checkpoint; looked for {wanted}; there is {listed or 'nothing'}.{hint}"
    )


def _open_safetensors(path: Path) -> Stored:
    table = open_safetensors(path)
    written = table.metadata.get("format")
    if written == "tf":
        raise broken(
            path,
            "was written by TensorFlow, whose names and layouts are not read; save it from torch",
        )
    if written == "flax":  # Flax models in Transformers 4 joined key paths by dots
        entries = torch_entries(
            path, {tuple(name.split(".")): entry for name, entry in table.entries.items()}
        )
        return dataclasses.replace(table, entries=entries)
    return table


def _open_sharded(index: Path, kind: Format, allow_pickle: bool) -> Tensors:
    """Opens all shards of an index. Raises UserError if the index and the shards disagree."""
    table = read_json(index, "the index")
    places = table.get("weight_map") if isinstance(table, dict) else None
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(shard, str) for shard in places.values())
    ):
        raise broken(index, "has no weight_map from tensors to files")
    shards: dict[str, Stored | Pickled] = {}
    for name, shard in places.items():
        if shard not in shards:
            path = _shard_path(index, shard, name)
            if _kind(path) != kind:
                raise broken(
                    index,
                    f"sends it to {shown(shard)}, which is not of the index's own format",
                    name,
                )
            shards[shard] = FORMATS[kind].open(path)
    tables: dict[str, Stored | Pickled] = {}
    for name, shard in places.items():
        published = FORMATS[kind].torch_name(name, shards[shard])
        if published not in shards[shard].entries:
            raise broken(shards[shard].path, f"is not there, but {index.name} lists it", name)
        tables[published] = shards[shard]
    settled = frozenset(tables)
    for shard in shards.values():
        for name in shard.entries:
            if tables.setdefault(name, shard) is not shard and name not in settled:
                raise broken(
                    shard.path,
                    f"is also in {tables[name].path.name}, and {index.name} does not say "
                    "which counts",
                    name,
                )
    return Tensors(index.parent, tables)


def _torch_name(name: str, shard: Stored | Pickled) -> str:
    """Returns the torch name for a name in an index of Flax shards, which joins key paths by
    slashes."""
    stand_in = Entry(dtype="F32", stored=(), extents=())
    renamed = next(iter(torch_entries(shard.path, {tuple(name.split("/")): stand_in})))
    return renamed


def _shard_path(index: Path, shard: str, name: str) -> Path:
    """Returns the file of a shard, which must be in the directory of its index."""
    plain = (
        PurePosixPath(shard).name == shard == PureWindowsPath(shard).name
        and shard not in ("", ".", "..")
        and "\0" not in shard
    )
    if not plain:
        raise broken(index, f"lies in {shown(shard)}, which is not a file beside the index", name)
    path = index.parent / shard
    if not os.path.lexists(path):
        raise broken(index, f"lies in {shown(shard)}, which is missing", name)
    size_of(path)
    folder, target = index.parent.resolve(), path.resolve()
    # A snapshot in the Hub's cache consists of links into the `blobs` of its own repository.
    homes = (
        (folder, folder.parent.parent / "blobs") if folder.parent.name == "snapshots" else (folder,)
    )
    if target.parent not in homes:
        raise broken(path, f"links to {target}, outside its directory")
    return path


FORMATS: dict[Format, TensorFormat] = {
    "safetensors": TensorFormat(
        file="model.safetensors", suffixes=(".safetensors",), open=_open_safetensors
    ),
    "flax": TensorFormat(
        file="flax_model.msgpack",
        suffixes=(".msgpack",),
        open=open_flax,
        torch_name=_torch_name,
    ),
    "pickle": TensorFormat(
        file="pytorch_model.bin",
        suffixes=(".bin", ".pt", ".pth", ".ckpt"),
        open=Pickled,
        is_code=True,
    ),
}
"""The formats of tensors. Of several in a directory the first is read."""
