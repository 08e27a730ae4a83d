"""Folders of static token vectors in model2vec's layout.
config.json, model.safetensors, tokenizer.json, modules.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, parse_json, read_bytes, read_json, shown
from ptm_jax.data.tokenizers.backends import check_growth, guarded

KIND = "model2vec"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StaticTable:
    """vectors [V, D] of the tokens of a tokenizer.json; `fields` are those of config.json."""

    vectors: np.ndarray
    tokenizer: bytes
    fields: Mapping[str, Any]


def is_static(path: Path) -> bool:
    """Whether a folder holds static vectors."""
    try:
        fields = json.loads(read_bytes(path / "config.json"))
    except (UserError, ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("model_type") == KIND


def read(folder: Path) -> StaticTable:
    """Reads a folder.
    Raises UserError for damaged files, or a table that does not fit the tokenizer."""
    fields = read_json(folder / "config.json", "its content")
    tensors = open_tensors(folder)
    vectors = _floats(folder, "embeddings", tensors.read("embeddings"), 2)
    file = folder / "tokenizer.json"
    raw = read_bytes(file)
    parse_json(file, raw, "its content")
    count = len(pieces_of(raw, file))
    if "mapping" in tensors:
        mapping = tensors.read("mapping", keep=True)
        if (
            mapping.ndim != 1
            or mapping.dtype.kind not in "iu"
            or not len(mapping)
            or mapping.min() < 0
            or mapping.max() >= len(vectors)
        ):
            raise broken(
                folder,
                f"its mapping has ids outside of its {len(vectors):,} vectors; copy the "
                "folder again",
            )
        vectors = vectors[mapping]
    if "weights" in tensors:
        weights = _floats(folder, "weights", tensors.read("weights"), 1)
        if len(weights) != len(vectors):
            raise broken(
                folder,
                f"{len(weights):,} weights for {len(vectors):,} vectors; copy the folder again",
            )
        vectors = vectors * weights[:, None]
    if count != len(vectors):
        raise broken(
            folder,
            f"its tokenizer has {count:,} tokens, and there are {len(vectors):,} vectors; "
            "copy the folder again",
        )
    return StaticTable(vectors=vectors, tokenizer=raw, fields=fields)


def _floats(folder: Path, name: str, array: np.ndarray, axes: int) -> np.ndarray:
    numbers = array.astype(np.float32)
    if (
        array.ndim != axes
        or array.dtype.kind not in "fi"
        or not numbers.size
        or not np.isfinite(numbers).all()
    ):
        raise broken(
            folder,
            f"{array.dtype} {list(array.shape)} with NaN, infinity or another shape than expected",
            name,
        )
    return numbers


def pieces_of(raw: bytes, file: Path) -> Sequence[str]:
    """Returns the tokens of a tokenizer.json in the order of their ids. Raises UserError."""
    try:
        with guarded():
            backend = tokenizers.Tokenizer.from_str(raw.decode())
            check_growth(backend)
            vocab = backend.get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises bare Exceptions
        raise broken(file, f"is no tokenizer ({shown(str(error))})") from None
    return sorted(vocab, key=vocab.get)


def write(folder: Path, table: StaticTable) -> list[Path]:
    """Writes a folder that model2vec and sentence-transformers load. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = "float16" if table.fields.get("embedding_dtype") == "float16" else "float32"
    files = write_tensors(folder, [("embeddings", table.vectors)], dtype=dtype)
    steps = [
        {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}
    ]
    if table.fields.get("normalize"):
        steps.append(
            {
                "idx": 1,
                "name": "1",
                "path": "1_Normalize",
                "type": "sentence_transformers.models.Normalize",
            }
        )
    fields = {
        **table.fields,
        "model_type": KIND,
        "architectures": ["StaticModel"],
        "hidden_dim": table.vectors.shape[1],
    }
    fields["embedding_dtype"] = dtype
    contents = {
        "config.json": json.dumps(fields, indent=4),
        "modules.json": json.dumps(steps, indent=4),
    }
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf8")
    (folder / "tokenizer.json").write_bytes(table.tokenizer)
    return [*files, *(folder / name for name in (*contents, "tokenizer.json"))]
