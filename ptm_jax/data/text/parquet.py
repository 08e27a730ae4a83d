"""Rows of parquet files.
A few kilobytes may stand for terabytes: strings stay in their dictionary until a row is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken
from ptm_jax.data.text.bounded import RATIO


@contextlib.contextmanager
def reading(path: Path, form: str = "parquet") -> Iterator[None]:
    """Converts errors of Arrow inside the block to a UserError about `path`."""
    import pyarrow as arrow

    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        raise UserError(
            f"{path} is not a readable {form} file ({str(error).splitlines()[0]})"
        ) from None


def opened(path: Path, limit: int, source: BinaryIO | None = None) -> Any:
    """Returns the `ParquetFile` of `path`, or of its decompressed content.
    Its strings are read as dictionaries.

    Raises UserError for a part of a column that decompresses to more than `most` bytes and `RATIO`
    times its size.
    """
    from pyarrow import parquet

    facts = parquet.ParquetFile(source or path).metadata
    for group in map(facts.row_group, range(facts.num_row_groups)):
        for column in map(group.column, range(facts.num_columns)):
            size = column.total_uncompressed_size
            if size > max(limit, RATIO * column.total_compressed_size):
                raise broken(
                    path,
                    f"the column {column.path_in_schema} has parts of {size:,} bytes; write "
                    "smaller row groups",
                )
    leaves = [
        leaf
        for leaf in map(facts.schema.column, range(facts.num_columns))
        if leaf.physical_type == "BYTE_ARRAY"
    ]
    strings = [leaf.path for leaf in leaves if leaf.logical_type.type in ("STRING", "NONE")]
    return parquet.ParquetFile(source or path, metadata=facts, read_dictionary=strings)


def texts(file: Any) -> list[str]:
    """Returns the names of the string columns."""
    from pyarrow import types

    kinds = {field.name: field.type for field in file.schema_arrow}
    plain = {
        name: kind.value_type if types.is_dictionary(kind) else kind for name, kind in kinds.items()
    }
    return [
        name for name, kind in plain.items() if types.is_string(kind) or types.is_large_string(kind)
    ]


def rows(
    file: Any, path: Path, limit: int, columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the rows. Raises UserError for a row of more than `most` bytes."""
    for batch in file.iter_batches(batch_size=1024, columns=columns):
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            if sum(map(_weight, part.columns)) <= limit:
                yield from part.to_pylist()
            elif len(part) > 1:
                half = len(part) // 2
                waiting += [part.slice(half), part.slice(0, half)]
            else:
                raise broken(path, f"has a row of more than {limit:,} bytes; cut it")


def _weight(array: Any) -> int:
    """Returns the bytes of the values, each counted where it stands."""
    from pyarrow import compute, types

    kind = array.type
    if types.is_dictionary(kind):
        return compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind):
        parts = array.flatten()
        return sum(map(_weight, parts)) if types.is_struct(kind) else _weight(parts)
    return array.nbytes
