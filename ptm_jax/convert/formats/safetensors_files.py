"""safetensors files: eight bytes of header length, a JSON header, and the arrays one after another.

The header is checked before any array is read: sizes, offsets, overlaps, holes and bytes after the
last array. The format and the limit of 100 MB for a header are those of
https://github.com/huggingface/safetensors, section Format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.convert.formats.tensors import DTYPES, Entry, Stored, bytes_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import LARGEST_JSON, broken, parse_json, reading, shown, size_of


def open_safetensors(path: Path) -> Stored:
    """Reads the table of a safetensors file. Raises UserError if it is inconsistent."""
    size = size_of(path)
    with reading(path), path.open("rb") as file:
        lead = file.read(8)
        if len(lead) < 8:
            raise broken(path, f"is no safetensors file: it has {size} bytes")
        length, brace = int.from_bytes(lead, "little"), file.read(1)
        # A header of 640 or 19,280 bytes begins like a pickle or a zip: only the byte after the
        # length decides.
        if lead[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04") and (
            brace != b"{" or length > LARGEST_JSON
        ):
            raise broken(path, "is no safetensors file but a pickle under another name")
        if length > min(LARGEST_JSON, size - 8):
            raise broken(
                path,
                f"its header claims {length:,} bytes, but the file has {size:,}: truncated, "
                "or no safetensors file",
            )
        header = (brace + file.read(length - 1)) if length else b""
    if len(header) < length or not header.startswith(b"{"):
        raise broken(path, "its header is not JSON")
    table = parse_json(path, header, "its header")
    if not isinstance(table, dict):
        raise broken(path, "its header is not a JSON object")
    metadata = table.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise broken(path, "its __metadata__ is not a table of texts")
    begin = 8 + length
    entries = {
        name: _entry(path, name, fields, begin, size - begin) for name, fields in table.items()
    }
    _check_cover(path, entries, begin, size)
    return Stored(path, size, entries, metadata)


def _whole(value: Any, length: int | None = None) -> bool:
    """Returns whether `value` is a list of integers >= 0 (of the given length)."""
    return (
        isinstance(value, list)
        and (length is None or len(value) == length)
        and all(type(number) is int and number >= 0 for number in value)
    )


def _entry(path: Path, name: str, fields: Any, begin: int, room: int) -> Entry:
    try:
        name.encode("utf8")
    except UnicodeEncodeError:
        raise broken(path, "has a name that is not Unicode", name) from None
    if not isinstance(fields, dict) or not {"dtype", "shape", "data_offsets"} <= fields.keys():
        raise broken(path, "lacks its dtype, shape or data_offsets in the header", name)
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise broken(path, f"is of type {shown(dtype)}; these are read: {', '.join(DTYPES)}", name)
    if not _whole(shape):
        raise broken(path, f"has the shape {shown(shape)}, which is not a list of sizes", name)
    if not _whole(offsets, 2) or offsets[0] > offsets[1]:
        raise broken(
            path, f"has the data_offsets {shown(offsets)}, which are not two positions", name
        )
    if offsets[1] > room:
        raise broken(
            path,
            f"ends at byte {shown(offsets[1])} of the data, but there are {room:,}: "
            "truncated, or a wrong header",
            name,
        )
    expected = bytes_of(dtype, tuple(shape))
    if expected != offsets[1] - offsets[0]:
        description = f"{dtype} {shown(shape)} over {offsets[1] - offsets[0]:,} bytes"
        raise broken(path, f"is {description}, which do not go together", name)
    return Entry(
        dtype=dtype, stored=tuple(shape), extents=((begin + offsets[0], offsets[1] - offsets[0]),)
    )


def _check_cover(path: Path, entries: Mapping[str, Entry], begin: int, size: int) -> None:
    """Checks that the arrays fill the file from the header to the end without gaps or overlaps."""
    position = begin
    for name, entry in sorted(entries.items(), key=lambda item: (*item[1].extents[0], item[0])):
        start, length = entry.extents[0]
        if start != position:
            raise broken(
                path,
                "overlaps with another tensor"
                if start < position
                else "has bytes before it that are nobody's",
                name,
            )
        position = start + length
    if position != size:
        raise broken(path, f"has {size - position:,} bytes after its last tensor that are nobody's")


def layout(
    arrays: Sequence[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None
) -> tuple[bytes, list[str]]:
    """Returns (header bytes, order of the names in the data) of (name, dtype, shape) lists.

    Arrays are sorted by item size, largest first, so that each starts at a multiple of its item
    size; then by name, as in the safetensors library.
    """
    ranks = {name: rank for rank, name in enumerate(DTYPES)}
    order = sorted(arrays, key=lambda array: (-ranks[array[1]], array[0].encode("utf8")))
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, dtype, shape in order:
        length = bytes_of(dtype, shape)
        if length is None or name in table or name == "__metadata__":
            raise UserError(
                f"a tensor {shown(name)} of shape {shape} cannot be written: its name or its "
                "shape is not possible"
            )
        table[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + length],
        }
        position += length
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [name for name, _, _ in order]
