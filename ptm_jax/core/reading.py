"""Reads untrusted files: regular files of a bounded size, JSON, pickles, and texts for errors."""

from __future__ import annotations

import codecs
import collections
import contextlib
import itertools
import json
import os
import pickle
import re
import reprlib
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ptm_jax.core.errors import UserError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The begin of a URL; pathlib writes its two slashes as one."""
LARGEST_JSON = 100_000_000
"""Bytes of a JSON file that is read at most; it is safetensors' limit for a header."""


class _Shown(reprlib.Repr):
    """`repr` of a bounded part of a value: nested values may be far longer than their file."""

    def __init__(self):
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple = 4, 24, 40, 40
        self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = 40
        self.maxstring = self.maxother = 400

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 10_000 else hex(x)  # Python refuses longer decimals

    def repr1(self, x: object, level: int) -> str:
        if isinstance(x, dict):  # in its own order
            parts = [
                f"{self.repr1(key, level - 1)}: {self.repr1(x[key], level - 1)}"
                for key in itertools.islice(x, self.maxdict if level > 0 else 0)
            ]
            return "{" + ", ".join([*parts, *["..."] * (len(parts) < len(x))]) + "}"
        return super().repr1(x, level)


_SHOWN = _Shown()


def shown(name: Any) -> str:
    """Returns a value from a file for an error message: quoted, escaped and shortened."""
    text = _SHOWN.repr(name)
    return text if len(text) <= 120 else f"{text[:100]}...{text[-10:]}"


def broken(path: Path, why: str, tensor: str | None = None) -> UserError:
    """Returns the error for an unusable file (and a tensor in it)."""
    where = str(path) if str(path).isprintable() else repr(str(path))
    return UserError(
        f"{where}: {why}" if tensor is None else f"{where}: tensor {shown(tensor)} {why}"
    )


def check_local(path: str | os.PathLike, name: str) -> None:
    """Raises UserError for a URL of another kind than `data.stores` opens.

    `name` is the option that gave it.
    """
    if _URL.match(place := os.fspath(path)):
        raise UserError(
            f"{name} is {place}; the object stores are gs://BUCKET/DIR and s3://BUCKET/DIR: give "
            "one of them, or a local folder"
        )


def check_apart(output: str | os.PathLike, option: str, *inputs: str | os.PathLike | None) -> None:
    """Raises UserError for an output, of the option `option`, that is one of the files read."""
    for path in filter(None, inputs):
        with contextlib.suppress(OSError):  # one of them is not there
            if os.path.samefile(output, path):
                raise UserError(f"{option} is {output}, a file that is read; give another path")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Converts an OSError inside the block to a UserError about `path`."""
    try:
        yield
    except OSError as error:
        raise broken(path, f"cannot be read ({error.strerror or error})") from None


def size_of(path: Path) -> int:
    """Returns the bytes of a regular file.

    Refuses other files, since reading them could block or never end.
    """
    with reading(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise broken(path, "is not a regular file")
    return status.st_size


MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""{byte order mark: encoding}. The marks of UTF-32 come first: one begins as a mark of UTF-16."""


def encoding_of(head: bytes) -> str | None:
    """Returns the encoding of a text that begins so, if it is UTF-16 or UTF-32.

    The byte order mark names it. Without one the zeros among the first bytes do: in UTF-16 the
    characters of the first 256 code points, such as blanks and line feeds, have a zero on one side.
    """
    named = next((name for mark, name in MARKS.items() if head.startswith(mark)), None)
    head = head[:4096]
    if named is not None or head.count(0) < 2:
        return named
    for order, plane, top in (("LE", 2, 3), ("BE", 1, 0)):
        # The planes above 2 have no letters.
        if len(head) > 7 and any(head) and max(head[plane::4]) <= 2 and not any(head[top::4]):
            return f"UTF-32{order}"
    for order, first in (("LE", 1), ("BE", 0)):
        zeros = head[first::2].count(0)
        if zeros == head.count(0) and zeros * 20 > len(head) // 2:
            return f"UTF-16{order}"
    return None


def check_encoding(where: str | Path, head: bytes) -> None:
    """Raises UserError where the first bytes of a text show UTF-16 or UTF-32."""
    if name := encoding_of(head):
        raise UserError(f"{where} is {name} text; convert it, as `iconv -f {name} -t UTF-8` does")


def decoded(where: str | Path, raw: bytes, encoding: str = "utf-8-sig") -> str:
    """Returns the text of the bytes of a file. Raises UserError for another encoding."""
    check_encoding(where, raw)
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from None


def not_utf8(where: str | Path, error: UnicodeDecodeError, offset: int = 0) -> UserError:
    """Returns the error for bytes that are not UTF-8. `offset` are the bytes before."""
    return UserError(
        f"{where} is not UTF-8 at byte {offset + error.start}; convert it, as `iconv -t UTF-8` does"
    )


def check_unicode(where: str, text: str) -> None:
    """Raises UserError for a lone surrogate, half of a character of UTF-16 (in JSON `\\ud83d`)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} has a lone surrogate ({text[error.start]!r}, character {error.start + 1:,}), "
            "which is no Unicode text; replace it, as text.encode('utf-8', 'replace').decode() does"
        ) from None


def read_bytes(path: str | os.PathLike, limit: int = LARGEST_JSON) -> bytes:
    """Returns the bytes of a regular file.

    Raises UserError if it is none, has more than `limit` bytes, or cannot be read.
    """
    path = Path(path)
    if size_of(path) > limit:
        raise broken(path, f"has {size_of(path):,} bytes; a file of its kind has at most {limit:,}")
    with reading(path):
        return path.read_bytes()


def parse_json(path: Path, raw: bytes, what: str) -> Any:
    """Parses JSON from a file. Raises UserError for repeated keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise broken(path, f"{what} names {shown(twice)} twice")
        return fields

    check_encoding(path, raw)
    try:
        return json.loads(raw.decode("utf8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise broken(path, f"{what} is not JSON") from None


def read_json(path: Path, what: str) -> Any:
    """Reads a JSON file."""
    return parse_json(path, read_bytes(path), what)


Fields = Mapping[str, type | tuple[type, ...] | Mapping]


def check_fields(path: Path, value: object, fields: Fields, where: str = "") -> None:
    """Raises UserError unless a value of a JSON file is an object with fields of these types.

    A nested mapping stands for an object. A name that ends in ? may be absent or null."""
    if not isinstance(value, Mapping):
        raise broken(path, f"{where or 'the whole'} is {shown(value)}; expected an object")
    for name, kind in fields.items():
        key, place = name.removesuffix("?"), f"{where}.{name}".strip(".?")
        part = value.get(key)
        if part is None and name.endswith("?"):
            continue
        if isinstance(kind, Mapping):
            check_fields(path, part, kind, place)
        elif not isinstance(part, kind) or (isinstance(part, bool) and kind is int):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            names = " or ".join(_JSON.get(one, one.__name__) for one in kinds)
            raise broken(path, f"{place} is {shown(part)}; expected {names}")


_JSON = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def inside(folder: Path, name: object, path: Path) -> Path:
    """Returns the file in a folder that the file `path` names.
    Raises UserError for a name that leads elsewhere."""
    if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
        raise broken(path, f"names the file {shown(name)}, which is not in its folder")
    if "\0" in name or not name or len(name) > 1000:
        raise broken(path, f"names the file {shown(name)}, which cannot be")
    return folder / name


class Record:
    """Stands for an object of any class of a pickle: its attributes, and nothing that runs."""

    def __init__(self, *arguments: object, **named: object):
        pass

    def __call__(self, *arguments: object, **named: object) -> Record:
        return self

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, value: object) -> None:
        pass


def _plain(key: object) -> bool:
    """Whether a value is hashed and compared in a time that its own size bounds."""
    if isinstance(key, int):
        return abs(key) < 1 << 60  # greater ones can share a hash
    return key is None or isinstance(key, str | bytes | Record)


def ordered(*pairs: object) -> collections.OrderedDict:
    """Returns the ordered dictionary that a pickle builds: empty, or of a list of pairs."""
    table = collections.OrderedDict()
    for key, value in pairs[0] if pairs else ():
        if not _plain(key):
            raise pickle.UnpicklingError("a key that is no text or number")
        table[key] = value
    return table


class Unpickler(pickle._Unpickler):
    """Reads a pickle in time and memory in proportion to its size, and calls nothing that it names.

    Python's own unpickler, since the one in C takes memory for the numbers that it reads. A class
    or function of the file is an entry of `builders`, or else `Record`. Keys are plain values, or
    tuples of these. Damage may raise any of Python's errors.
    """

    builders: ClassVar[Mapping[tuple[str, str], Any]] = {("collections", "OrderedDict"): ordered}
    dispatch: ClassVar[dict] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        return self.builders.get((module, name), Record)

    def _checked(self, keys: list) -> None:
        for key in keys:
            if not (_plain(key) or (isinstance(key, tuple) and all(map(_plain, key)))):
                raise pickle.UnpicklingError("a key that is no text or number")

    def _load_keys(self, load: Callable, keys: slice) -> None:
        self._checked(self.stack[keys])
        load(self)

    def _load_bytearray(self) -> None:
        raise pickle.UnpicklingError("a bytearray")

    def _load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Record):
            target.__setstate__(state)
        elif not isinstance(target, dict):
            raise pickle.UnpicklingError("a state of what has none")


def _limit(opcode: bytes, keys: slice) -> None:
    load = pickle._Unpickler.dispatch[opcode[0]]
    Unpickler.dispatch[opcode[0]] = lambda self: self._load_keys(load, keys)


_limit(pickle.SETITEM, slice(-2, -1))
for _opcode in (pickle.SETITEMS, pickle.DICT):
    _limit(_opcode, slice(0, None, 2))
for _opcode in (pickle.ADDITEMS, pickle.FROZENSET):
    _limit(_opcode, slice(None))
Unpickler.dispatch[pickle.BYTEARRAY8[0]] = Unpickler._load_bytearray
Unpickler.dispatch[pickle.BUILD[0]] = Unpickler._load_build
