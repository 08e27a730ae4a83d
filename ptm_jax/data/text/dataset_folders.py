"""Folders of the library `datasets`: saved ones with Arrow files, and parquet in the Hub's layout.

`save_to_disk` writes dataset_dict.json with a folder for each split, or one folder; a folder has
state.json, which names its data-*.arrow, and dataset_info.json with the names of the classes. The
Hub has data/train-00000-of-00002.parquet, or a folder of parquet files for each split. No script
of a folder is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, size_of
from ptm_jax.data.text import parquet
from ptm_jax.data.text.bounded import DOCUMENT_BYTES

if TYPE_CHECKING:
    from pyarrow import Schema

DICT, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
SPLITS = ("train", "validation", "test")
_SHARD = re.compile(r"([\w.]+)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.parquet")
_KEY = b"huggingface"
"""Key of the schema's metadata under which `datasets` keeps the features."""


class ClassName(str):
    """The name of a class, which knows its `index` and the `count` of classes."""

    index: int
    count: int


def number_in(value: object, labels: Sequence[str]) -> str | None:
    """Returns the number of a class, where the labels are the numbers of its classes; else None."""
    if isinstance(value, ClassName) and list(labels) == [str(n) for n in range(value.count)]:
        return str(value.index)
    return None


def splits_of(folder: Path) -> dict[str, str]:
    """Returns {split: folder or pattern of its files}; {} for another folder. Raises UserError."""
    if (folder / DICT).is_file():
        names = _json(folder / DICT).get("splits")
        if not isinstance(names, list) or not names:
            raise broken(folder / DICT, "names no splits")
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise broken(folder / DICT, f"names the split {name!r}, which is no folder")
        return {name: str(folder / name) for name in names}
    if is_split(folder):
        name = _json(folder / STATE).get("_split")
        return {name if isinstance(name, str) and name else "train": str(folder)}
    for place in (folder / "data", folder):
        shards = (_SHARD.fullmatch(path.name) for path in sorted(place.glob("*.parquet")))
        if names := dict.fromkeys(shard[1] for shard in shards if shard):
            return {name: str(place / f"{name}-*-of-*.parquet") for name in names}
    folders = {name: folder / name for name in SPLITS if (folder / name).is_dir()}
    return {name: str(place / "*.parquet") for name, place in folders.items()
            if any(place.glob("*.parquet"))}  # fmt: skip


def is_split(path: str | Path) -> bool:
    """Returns whether a path, as `splits_of` gives it, stands for the files of a split."""
    path = Path(path)
    pattern = "*" in path.name and path.suffix == ".parquet" and not path.exists()
    return pattern or (path / STATE).is_file()


def files_of(split: str | Path) -> list[Path]:
    """Returns the files of a split, in order. Raises UserError."""
    split = Path(split)
    if split.is_file():
        return [split]
    if not split.is_dir():
        if not (files := sorted(split.parent.glob(split.name))):
            raise UserError(f"no file matches {split}; check the folder")
        return files
    state = _json(split / STATE) if (split / STATE).is_file() else {}
    entries = state.get("_data_files")
    names = [one.get("filename") if isinstance(one, dict) else None for one in entries or ()]
    if not names or not all(isinstance(name, str) for name in names):
        raise broken(split / STATE, "names no data files; save the data set again")
    if state.get("_indices_data_files"):
        raise broken(split / STATE, "chooses rows by indices; save the data set again")
    return [split / Path(name).name for name in names]


def rows(split: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ("FILE: row NUMBER", {column: value}) of a split; classes have their names.
    Raises UserError."""
    for file in files_of(split):
        with parquet.reading(file, "Arrow" if file.suffix == ".arrow" else "parquet"):
            arrow = file.suffix == ".arrow"
            opened = ArrowFile(file) if arrow else parquet.opened(file, DOCUMENT_BYTES)
            names = classes_of(opened.schema_arrow, file.parent / INFO)
            read = parquet.rows(opened, file, DOCUMENT_BYTES)
            for number, row in enumerate(read, 1):
                yield f"{file}: row {number}", named(row, names)


class ArrowFile:
    """A file of Arrow's stream format, with the methods of `pyarrow.parquet.ParquetFile` that
    `parquet.rows` calls."""

    def __init__(self, path: Path):
        import pyarrow

        size_of(path)
        self.reader = pyarrow.ipc.open_stream(pyarrow.memory_map(str(path)))
        self.schema_arrow = self.reader.schema

    def iter_batches(self, batch_size: int, columns: list[str] | None = None) -> Iterator[Any]:
        """Yields the checked batches, `batch_size` rows at a time."""
        for batch in self.reader:
            batch = batch if columns is None else batch.select(columns)
            batch.validate(full=True)
            for start in range(0, len(batch), batch_size):
                yield batch.slice(start, batch_size)


def classes_of(schema: Schema, info: Path) -> dict[str, list[str]]:
    """Returns {column: names of its classes} by the schema's metadata, else by dataset_info.json.
    A column of lists of classes has them too."""
    features = None
    if (text := (schema.metadata or {}).get(_KEY)) is not None:
        features = _features(_parsed(text).get("info"))
    if features is None and info.is_file():
        features = _features(_json(info))
    return {name: names for name, feature in (features or {}).items() if (names := _names(feature))}


def named(row: dict[str, Any], classes: Mapping[str, list[str]]) -> dict[str, Any]:
    """Returns a row whose classes are `ClassName`s."""
    return (
        row
        if not classes
        else {
            key: _named(value, classes[key]) if key in classes else value
            for key, value in row.items()
        }
    )


def _named(value: object, names: list[str]) -> object:
    if isinstance(value, list):
        return [_named(part, names) for part in value]
    if not isinstance(value, int) or value >= len(names):
        return value
    if value < 0:  # without a label, as in the test files of benchmarks
        return "-"
    name = ClassName(names[value])
    name.index, name.count = value, len(names)
    return name


def _features(info: object) -> dict[str, Any] | None:
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else None


def _names(feature: object) -> list[str]:
    """The names of a ClassLabel, or of a sequence of them."""
    while isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if not isinstance(feature, dict):
        return []
    if feature.get("_type") == "ClassLabel":
        names = feature.get("names")
        texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return names if texts else []
    return _names(feature["feature"]) if "feature" in feature else []


def _json(path: Path) -> dict[str, Any]:
    try:
        return _parsed(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from None


def _parsed(text: bytes) -> dict[str, Any]:
    """The object of a JSON text; {} for another text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
