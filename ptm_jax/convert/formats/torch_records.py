"""Reads torch files without torch. Nothing in a file is run.

A class of the file becomes a `Record` with the attributes, and a tensor a place in the file. Both
layouts are read: torch's zip archive, and the row of pickles that torch wrote before 1.6. Time and
memory are in proportion to the size of the file: each claim is compared with what the file holds.
"""

from __future__ import annotations

import dataclasses
import io
import math
import mmap
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ptm_jax.convert.formats.tensors import DTYPES
from ptm_jax.core.reading import Record, Unpickler, broken, shown, size_of

STORAGES = {
    "FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL", "UntypedStorage": "U8",
}  # fmt: skip
"""{torch's name of a storage: the type of its numbers}."""
UNREAD = {
    "ComplexFloatStorage": ("complex64", 8), "ComplexDoubleStorage": ("complex128", 16),
    "QInt8Storage": ("qint8", 1), "QUInt8Storage": ("quint8", 1), "QInt32Storage": ("qint32", 4),
}  # fmt: skip
"""{storage whose numbers are not read: (their type, bytes of one)}."""
SIZES = {name: DTYPES[dtype].itemsize for name, dtype in STORAGES.items()}
SIZES |= {name: size for name, (_, size) in UNREAD.items()}
UNSIGNED = {"uint16": "U16", "uint32": "U32", "uint64": "U64"}
"""Types whose numbers torch keeps in storages of bytes."""
MAGIC = 0x1950A86A20F9469CFC6C
"""The first value of a file of torch before 1.6."""
_DIMENSIONS = 32
_LOCAL = 30
"""Bytes of the header of a member of an archive, without its name and its extra field."""


class Foreign(Exception):
    """A name in a pickle that is no part of a table of tensors."""


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A storage class or a type of numbers, by its name in the module `torch`."""

    name: str


@dataclasses.dataclass
class Storage:
    """Numbers in the file: torch's name of their kind, how many, and the offset of the first."""

    kind: str
    count: int
    start: int | None = None

    @property
    def length(self) -> int:
        """Bytes."""
        return self.count * SIZES[self.kind]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A part of a storage, which has all its numbers.

    dtype    one of `DTYPES`, or the name of what is not read
    offset   of the first number, in numbers, as the strides
    """

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, path: Path) -> np.ndarray:
        """Returns the array, mapped from the file."""
        dtype = DTYPES[self.dtype]
        if not math.prod(self.shape):
            return np.empty(self.shape, dtype)
        count = self.storage.length // dtype.itemsize
        flat = np.memmap(path, dtype, "r", self.storage.start, (count,))
        steps = tuple(step * dtype.itemsize for step in self.strides)
        part = flat[self.offset :]
        return np.lib.stride_tricks.as_strided(part, self.shape, steps, writeable=False)


def _tensor(
    storage: Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *more: object
) -> Tensor:
    """`torch._utils._rebuild_tensor_v2`, and v3, whose last argument but one is a type.
    Refuses a tensor of more numbers than its storage has."""
    kind = more[2] if len(more) > 2 and isinstance(more[2], _Kind) else None
    dtype = STORAGES.get(storage.kind) or UNREAD[storage.kind][0]
    size = SIZES[storage.kind]
    if kind is not None:
        dtype = UNSIGNED.get(kind.name, kind.name)
        size = DTYPES[dtype].itemsize if dtype in DTYPES else 1
    shape, strides, count = tuple(shape), tuple(strides), storage.length // size
    if (
        not all(type(number) is int and 0 <= number < 1 << 62 for number in (offset, *shape))
        or not all(type(number) is int and 0 <= number < 1 << 62 for number in strides)
        or len(shape) != len(strides)
        or len(shape) > _DIMENSIONS
    ):
        raise ValueError("a tensor with an odd shape")
    last = offset + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    if math.prod(shape) > count or (math.prod(shape) and last >= count):
        raise ValueError(f"a tensor {shown(list(shape))} that is larger than its numbers")
    return Tensor(storage, dtype, offset, shape, strides)


def _first(value: object, *ignored: object) -> Any:
    return value


class Sparse(Record):
    """A sparse tensor, which is not read."""


class _Reader(Unpickler):
    """Finds tensors and plain containers. Another name is `Record`, or refused if `strict`."""

    builders = {
        **Unpickler.builders,
        ("torch._utils", "_rebuild_tensor"): _tensor,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch._utils", "_rebuild_tensor_v3"): _tensor,
        ("torch._utils", "_rebuild_parameter"): _first,
        ("torch._utils", "_rebuild_sparse_tensor"): Sparse,
        ("torch.serialization", "_get_layout"): Record,
        ("torch.storage", "UntypedStorage"): _Kind("UntypedStorage"),
        ("torch", "Size"): _first,
        ("torch", "device"): Record,
    }

    def __init__(self, file: BinaryIO, storages: dict[str, Storage], strict: bool):
        super().__init__(file, encoding="utf-8")
        self.storages, self.strict = storages, strict

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.builders:
            return self.builders[module, name]
        if module == "torch" and (name in SIZES or name.islower()):
            return _Kind(name)
        if self.strict:
            raise Foreign(f"{module}.{name}")
        return Record

    def persistent_load(self, pid: object) -> Storage:
        _, kind, key, _, count, *view = pid
        if kind.name not in SIZES or type(count) is not int or count < 0 or any(view):
            raise ValueError("an odd storage")
        storage = self.storages.setdefault(str(key), Storage(kind.name, count))
        if (storage.kind, storage.count) != (kind.name, count):
            raise ValueError("two sizes of a storage")
        return storage


def read(path: Path) -> dict[str, Any]:
    """Returns the table that a torch file holds; arrays of tables of tensors are numpy's.
    Raises UserError."""
    try:
        made: dict[int, dict] = {}
        return {name: _made(path, value, made) for name, value in table(path).items()}
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:  # a damaged pickle may end in any of Python's errors
        raise broken(
            path, f"is no torch file of named values ({type(error).__name__}); save it again"
        ) from None


def _made(path: Path, value: object, made: dict[int, dict]) -> Any:
    """Returns a value with arrays for tensors. A table that several others hold is made once."""
    if isinstance(value, dict):
        if id(value) not in made:
            made[id(value)] = {}
            made[id(value)] |= {name: _made(path, part, made) for name, part in value.items()}
        return made[id(value)]
    return np.array(value.array(path)) if isinstance(value, Tensor) else value


def table(path: Path, strict: bool = False) -> Any:
    """Returns the value of a torch file, whose tensors are `Tensor`.

    Raises `Foreign`, if `strict`, for a name that is none of tensors and containers, and any of
    Python's errors for damage or for a claim that the file does not hold."""
    storages: dict[str, Storage] = {}
    with path.open("rb") as file:
        if zipfile.is_zipfile(path):
            value = _archive(file, storages, strict)
        else:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                value = _row(mapped, storages, strict)
    for storage in storages.values():
        if storage.start is None or storage.start + storage.length > size_of(path):
            raise ValueError("a storage without its numbers")
    return value


def _archive(file: BinaryIO, storages: dict[str, Storage], strict: bool) -> Any:
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        place = next(name for name in members if name.endswith("/data.pkl"))
        if members[place].compress_type != zipfile.ZIP_STORED:
            raise ValueError("an archive that torch did not write")
        reader = _Reader(io.BytesIO(archive.read(place)), storages, strict)
        value, folder = reader.load(), place.removesuffix("data.pkl")
        if f"{folder}byteorder" in members and members[f"{folder}byteorder"].file_size != 6:
            raise ValueError("numbers in the other order of bytes")  # "little" has six letters
    for key, storage in storages.items():
        info = members[f"{folder}data/{key}"]
        file.seek(info.header_offset)
        head = file.read(_LOCAL)
        storage.start = (
            info.header_offset
            + _LOCAL
            + int.from_bytes(head[26:28], "little")
            + int.from_bytes(head[28:30], "little")
        )
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != storage.length:
            raise ValueError("a storage of another size")
    return value


def _row(file: mmap.mmap, storages: dict[str, Storage], strict: bool) -> Any:
    magic, _, facts, value, keys = (_Reader(file, storages, strict).load() for _ in range(5))
    if magic != MAGIC or facts.get("little_endian") is not True:
        raise ValueError("another file")
    for key in keys:
        storage = storages[str(key)]
        storage.start = file.tell() + 8
        if int.from_bytes(file.read(8), "little") != storage.count:
            raise ValueError("a storage of another size")
        file.seek(storage.start + storage.length)
    return value
