"""gensim's KeyedVectors (`.kv`), and vectors of saved Word2Vec and FastText models.
gensim 1 to 4.

The file is a pickle: a program. It is read on request only, and by a reader that calls nothing of
the file: classes become plain records, arrays are built here. Large arrays are in `.npy` files in
the same folder, which are memory-mapped without pickles.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.convert.words.wordtable import Subwords, WordTable
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import (
    Record,
    Unpickler,
    broken,
    read_bytes,
    shown,
    size_of,
)

LARGEST = 1 << 32
"""Bytes of the pickle at most; arrays of more than 10 MB lie beside it."""
NUMBERS = {f"{kind}{size}" for kind in "fiu" for size in (2, 4, 8)} | {"i1", "u1"}
"""Types of numbers that an array of a pickle may have: f2 to f8, i1 to i8, u1 to u8."""
CLASSES = {
    False: "gensim.models.keyedvectors\nKeyedVectors",
    True: "gensim.models.fasttext\nFastTextKeyedVectors",
}


def is_pickle(head: bytes) -> bool:
    """Whether a file begins as a pickle of protocol 2 to 5."""
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


class _Type(Record):
    """A type of numbers of a pickle: `dtype(name, align, copy)` and its state, of which the order
    of the bytes is read. numpy's own takes any state, and some crash it."""

    def __init__(self, name: Any = "", *ignored: object):
        self.name, self.order = str(name), "<"

    def __setstate__(self, state: object) -> None:
        self.order = ">" if state[1] == ">" else "<"

    def numbers(self, raw: object, shape: object, by_columns: bool) -> np.ndarray:
        """Returns the array of its bytes. Raises ValueError for another type or size."""
        if self.name not in NUMBERS:
            raise ValueError(f"numbers of the type {shown(self.name)}")
        raw = raw.encode("latin-1") if isinstance(raw, str) else raw
        flat = np.frombuffer(raw, f"{self.order}{self.name}")
        return flat.reshape(shape, order="F" if by_columns else "C")


class _Array(Record):
    """An array of a pickle, built from its bytes; None for one of objects, which is not read."""

    value: np.ndarray | None = None

    def __setstate__(self, state: object) -> None:
        _, shape, dtype, by_columns, raw = state
        self.value = None if isinstance(raw, list) else dtype.numbers(raw, shape, by_columns)


def _from_buffer(raw: object, dtype: _Type, shape: tuple, order: str) -> _Array:
    array = _Array()
    array.value = dtype.numbers(raw, shape, order == "F")
    return array


def _scalar(dtype: _Type, raw: object) -> int | float:
    return dtype.numbers(raw, (1,), False)[0].item()


def _bytes(text: str, encoding: str = "latin-1") -> bytes:
    return text.encode("latin-1" if encoding in ("latin1", "latin-1") else "utf8")


class _Reader(Unpickler):
    """Finds numpy's arrays and plain containers."""

    builders = {
        **Unpickler.builders,
        ("numpy", "dtype"): _Type,
        ("numpy", "ndarray"): _Array,
        ("_codecs", "encode"): _bytes,
        ("collections", "defaultdict"): lambda *ignored: {},
    }
    builders |= {(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")}
    builders |= {(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")}
    builders |= {
        (f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")
    }


def read(path: Path, allow_pickle: bool) -> WordTable:
    """Reads the vectors of a pickle of gensim.
    Raises UserError without `allow_pickle`, or for what holds no vectors."""
    if not allow_pickle:
        raise broken(
            path,
            "is a pickle, which can run code; read one that you trust with --allow-pickle "
            "(allow_pickle=True), or write it "
            "from gensim as word2vec: vectors.save_word2vec_format(FILE, binary=True)",
        )
    raw = read_bytes(path, LARGEST)
    try:
        content = _Reader(io.BytesIO(raw), encoding="latin-1").load()
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:  # a damaged pickle may end in any of Python's errors
        raise broken(
            path, f"is a pickle that cannot be read ({type(error).__name__}); save it again"
        ) from None
    state, prefix = vars(content) if isinstance(content, Record) else {}, str(path)
    if isinstance(state.get("wv"), Record):
        state, prefix = vars(state["wv"]), f"{prefix}.wv"
    return _table(path, state, prefix)


def _table(path: Path, state: Mapping[str, Any], prefix: str) -> WordTable:
    words = next(
        (state[name] for name in ("index_to_key", "index2word", "index2entity") if name in state),
        None,
    )
    if not isinstance(words, list) or not words:
        raise broken(
            path, "holds no vectors of words: it has no list of words as gensim's KeyedVectors"
        )
    if odd := [word for word in words if not isinstance(word, str) and type(word) is not int]:
        raise broken(
            path,
            f"the key {shown(odd[0])} is neither a word nor a whole number; write keys as texts",
        )
    keys, words = words, list(map(str, words))

    def array(*names):
        return _array(path, state, prefix, names, len(words))

    rows, subwords = None, None
    sizes = [state.get(name) for name in ("min_n", "max_n", "bucket")]
    # Models of before gensim 3.7 hashed otherwise than fastText: their words are read, without
    # n-grams.
    if state.get("compatible_hash") is True and all(
        type(size) is int and 0 <= size < 1 << 32 for size in sizes
    ):
        rows, ngrams = (
            array("vectors_vocab"),
            _array(path, state, prefix, ("vectors_ngrams",), None),
        )
        buckets = state.get("hash2index")
        expected = (
            sizes[2] if buckets is None else len(buckets),
            None if rows is None else rows.shape[1],
        )
        if ngrams is None or ngrams.shape != expected:
            raise broken(
                path, f"has no n-grams of the shape {list(expected)}; copy all files of the model"
            )
        subwords = Subwords(
            rows=ngrams,
            shortest=sizes[0],
            longest=sizes[1],
            buckets=sizes[2],
            bucket_rows=buckets,
            of_end=state.get("of_end", True),
        )
    else:
        rows = array("vectors", "syn0")
    if rows is None:
        raise broken(path, "holds no vectors of words; their .npy file may be missing beside it")
    return WordTable(
        words=words,
        rows=rows,
        counts=_counts(state, keys),
        subwords=subwords,
        format="keyed-vectors",
    )


def _array(
    path: Path, state: Mapping[str, Any], prefix: str, names: tuple[str, ...], count: int | None
) -> np.ndarray | None:
    for name in names:
        value = state.get(name)
        if value is None and name in (state.get("__numpys") or ()):
            beside = Path(f"{prefix}.{name}.npy")
            size_of(beside)
            try:
                value = np.load(beside, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise broken(
                    beside,
                    f"is no array of numpy ({str(error)[:100]}); copy all files of the model",
                ) from None
        value = value.value if isinstance(value, _Array) else value
        if value is None:
            continue
        if (
            not isinstance(value, np.ndarray)
            or value.dtype.kind != "f"
            or value.ndim != 2
            or count not in (None, len(value))
        ):
            what = (
                f"{value.dtype} {list(value.shape)}"
                if isinstance(value, np.ndarray)
                else shown(value)
            )
            raise broken(
                path,
                f"its {name} is {what}; expected floats "
                f"[{'' if count is None else format(count, ',')}, D]",
            )
        if not np.isfinite(value.sum()) and not (fine := np.isfinite(value).all(1)).all():
            raise broken(path, f"its {name} has NaN or infinity in row {int(fine.argmin()) + 1:,}")
        return value if value.dtype == np.float32 else value.astype(np.float32)
    return None


def _counts(state: Mapping[str, Any], words: list[str | int]) -> np.ndarray | None:
    stored = state.get("expandos")
    stored = stored.get("count") if isinstance(stored, dict) else None
    if (
        isinstance(stored, _Array)
        and stored.value is not None
        and stored.value.shape == (len(words),)
        and stored.value.dtype.kind in "iu"
    ):
        return stored.value.astype(np.int64)
    old = state.get("vocab")
    counts = (
        [vars(old[word]).get("count") for word in words if isinstance(old.get(word), Record)]
        if isinstance(old, dict)
        else []
    )
    return (
        np.array(counts, np.int64)
        if len(counts) == len(words) and all(type(n) is int for n in counts)
        else None
    )


def write(path: Path, table: WordTable) -> list[Path]:
    """Writes a pickle of gensim 4, and its arrays in the same folder; returns the files.
    Raises UserError for a pruned model."""
    if table.subwords is not None and table.subwords.bucket_rows is not None:
        raise UserError(
            "this fastText model was pruned, which gensim cannot hold; write its words as "
            "text or binary"
        )
    arrays, state = {"vectors": table.whole()}, {}
    if table.subwords is not None:
        subwords = table.subwords

        def every(rows):
            return np.asarray(rows[np.arange(rows.shape[0])])

        arrays |= {"vectors_vocab": every(table.rows), "vectors_ngrams": every(subwords.rows)}
        state |= {
            "min_n": subwords.shortest,
            "max_n": subwords.longest,
            "bucket": subwords.buckets,
            "buckets_word": None,
        }
        state |= {"compatible_hash": True, "of_end": subwords.of_end}
    files = []
    for name, array in arrays.items():
        files.append(path.with_name(f"{path.name}.{name}.npy"))
        with files[-1].open("wb") as file:
            np.save(file, array)
    state |= {
        "vector_size": table.width, "index_to_key": list(table.words),
        "next_index": len(table.words),
        "key_to_index": {word: i for i, word in reversed(list(enumerate(table.words)))},
        "norms": None, "mapfile_path": None,
        "expandos": {} if table.counts is None else {"count": table.counts},
        "__numpys": list(arrays), "__scipys": [], "__ignoreds": [], "__recursive_saveloads": [],
    }  # fmt: skip
    name = f"c{CLASSES[table.subwords is not None]}\n".encode()
    # Protocol 2: the class by its name, a new object of it, its state. Gensim is not needed to
    # write it.
    path.write_bytes(b"\x80\x02" + name + b")\x81" + pickle.dumps(state, 2)[2:-1] + b"b.")
    return [path, *files]
