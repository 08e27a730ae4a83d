"""Folders of SPLADE and ColBERT as others have them.

A sparse encoder is a folder of sentence-transformers (`SparseEncoder`): a model with a vocabulary
head, then `SpladePooling`. Late interaction is a folder of the released ColBERTv2: the encoder and
`linear.weight` in one file, `HF_ColBERT` in config.json, and artifact.metadata with the markers and
lengths; sentence-transformers 6 and PyLate read it too.
"""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.family import family_of
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.libraries.sentence_folder import Sentence
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import read_json
from ptm_jax.core.system import System
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.retrieval.late_vectors import LateRows, TokenVectors
from ptm_jax.nn.heads.retrieval.sparse_vector import SparseVector
from ptm_jax.objectives.sentences.base import HEAD

COLBERT, METADATA = "HF_ColBERT", "artifact.metadata"
LONGEST = 1 << 20
"""Bytes of a config of ColBERT at most."""
_POOLING = "SpladePooling"
_MODULES = "sentence_transformers.sparse_encoder.models"


def write_sparse(folder: Path, head: SparseVector, words: int, sentence: Sentence | None) -> None:
    """Writes the files of a `SparseEncoder` into the folder of a model with a vocabulary head."""
    names = ("", "MLMTransformer"), (f"1_{_POOLING}", _POOLING)
    steps = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_MODULES}.{name}"}
        for number, (path, name) in enumerate(names)
    ]
    _write(folder / "modules.json", steps)
    (folder / f"1_{_POOLING}").mkdir(exist_ok=True)
    pooling = {"pooling_strategy": "max", "activation_function": head.activation}
    _write(folder / f"1_{_POOLING}" / "config.json", {**pooling, "word_embedding_dimension": words})
    sentence = sentence or Sentence()
    lengths = {"max_seq_length": sentence.max_length, "do_lower_case": sentence.lower}
    _write(folder / "sentence_bert_config.json", lengths)
    prompts = {"prompts": sentence.prompts, "default_prompt_name": sentence.default_prompt}
    fields = {"model_type": "SparseEncoder", **prompts, "similarity_fn_name": "dot"}
    _write(folder / "config_sentence_transformers.json", fields)


def with_sparse(folder: Path, system: System, sentence: Sentence) -> tuple[System, Sentence]:
    """Returns the system and settings of a folder of sentence-transformers, with a head of sparse
    vectors where it is a `SparseEncoder`. Raises UserError for a pooling that is not supported."""
    steps = read_json(folder / "modules.json", "the steps of a model")
    pooling = [step for step in steps if str(step.get("type")).endswith(f".{_POOLING}")]
    if not pooling:
        return system, sentence
    place = folder / Path(str(pooling[0].get("path"))).name
    fields = read_json(place / "config.json", "the settings of a pooling")
    if fields.get("pooling_strategy", "max") != "max":
        raise UserError(
            f"{place} has pooling_strategy {fields['pooling_strategy']!r}; supported is 'max'"
        )
    try:
        head = SparseVector(activation=fields.get("activation_function", "relu"))
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None
    main = system.towers["main"]
    if head.reads_head not in main.heads:
        raise UserError(f"{folder} has no masked-LM head, whose logits {_POOLING} reads")
    main = dataclasses.replace(main, heads={**main.heads, HEAD: head})
    system = dataclasses.replace(system, towers={**system.towers, "main": main})
    return system, dataclasses.replace(sentence, refused=None, similarity="dot")


def write_late(folder: Path, head: TokenVectors, kernel: np.ndarray, dtype: str) -> None:
    """Makes the folder of an encoder one of ColBERT. Raises UserError for rows that its metadata
    cannot hold."""
    rows = head.rows
    everywhere = tuple(string.punctuation)
    if not (rows.query_marker and rows.document_marker and rows.expands):
        raise UserError(
            "ColBERT's folder needs markers and queries that masks fill; this model has other rows"
        )
    if rows.skipped not in ((), everywhere):
        raise UserError("ColBERT's folder leaves all punctuation out or none; this model has other")
    file = folder / "config.json"
    fields = json.loads(file.read_text(encoding="utf8"))
    root = family_of(checkpoint.config_of(folder)).root
    tensors = open_tensors(folder)
    named = [(f"{root}{name}", np.asarray(tensors.read(name))) for name in tensors.names()]
    write_tensors(folder, [("linear.weight", np.asarray(kernel).T), *named], dtype=dtype)
    _write(file, {**fields, "architectures": [COLBERT]})
    _write(
        folder / METADATA,
        {
            "query_token_id": rows.query_marker,
            "doc_token_id": rows.document_marker,
            "query_token": "[Q]",
            "doc_token": "[D]",
            "query_maxlen": rows.query_length,
            "doc_maxlen": rows.document_length or 180,
            "dim": head.features,
            "similarity": "cosine",
            "mask_punctuation": bool(rows.skipped),
            "attend_to_mask_tokens": rows.attends,
        },
    )


def is_late(path: Path) -> bool:
    """Whether a path is a folder of ColBERT. A config larger than `LONGEST` is none."""
    file = path / "config.json"
    if not file.is_file() or file.stat().st_size > LONGEST:
        return False
    return COLBERT in file.read_text(encoding="utf8", errors="replace")


def read_late(path: Path, allow_pickle: bool = False) -> tuple[System, Mapping[str, Any], Any]:
    """Returns (system, {tower: parameters}, tokenizer) of a folder of ColBERT. Raises UserError."""
    family = family_of(checkpoint.config_of(path))
    tokenizer = checkpoint.tokenizer_of(path)
    vocab = None if tokenizer is None else tokenizer.vocab
    read = checkpoint.read(path, architecture=family.bare, vocab=vocab, allow_pickle=allow_pickle)
    tensors = open_tensors(path, allow_pickle=allow_pickle)
    if "linear.weight" not in tensors:
        raise UserError(f"{path} has no tensor linear.weight, ColBERT's last layer; copy it again")
    kernel = np.ascontiguousarray(np.asarray(tensors.read("linear.weight"), np.float32).T)
    system = read.system
    width = system.towers["main"].encoder.embed.width
    if kernel.ndim != 2 or len(kernel) != width:
        raise UserError(f"{path}: linear.weight reads {len(kernel)} features, states have {width}")
    head = TokenVectors(features=kernel.shape[1], rows=_rows(path))
    main = Model(encoder=system.towers["main"].encoder, heads={HEAD: head})
    params = {
        "encoder": read.params["main"]["encoder"],
        "heads_vector": {"project": {"kernel": kernel}},
    }
    return dataclasses.replace(system, towers={"main": main}), {"main": params}, tokenizer


def _rows(path: Path) -> LateRows:
    """Returns the rows of artifact.metadata; the released defaults without it. Raises UserError."""
    file = path / METADATA
    fields = read_json(file, "the settings of ColBERT") if file.is_file() else {}
    if not isinstance(fields, dict):
        raise UserError(f"{file} holds no JSON object; copy the folder again")
    try:
        return LateRows(
            query_marker=str(fields.get("query_token_id") or "[unused0]"),
            document_marker=str(fields.get("doc_token_id") or "[unused1]"),
            query_length=int(fields.get("query_maxlen") or 32),
            document_length=int(fields.get("doc_maxlen") or 180),
            attends=bool(fields.get("attend_to_mask_tokens")),
            skipped=tuple(string.punctuation) if fields.get("mask_punctuation", True) else (),
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{file}: {error}") from None


def _write(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
