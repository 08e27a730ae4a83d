"""Writes a model as a Hugging Face directory, or in the layout of another library."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ptm_jax.convert import checkpoint, layouts
from ptm_jax.convert.formats import untyped
from ptm_jax.convert.libraries import retrieval_folders, sentence_export
from ptm_jax.data.tokenizers.published import write_published
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings.summed import types_are_words
from ptm_jax.nn.heads.retrieval.late_vectors import token_head
from ptm_jax.nn.heads.retrieval.sparse_vector import sparse_head
from ptm_jax.nn.heads.text_vector import vector_head
from ptm_jax.runs import card
from ptm_jax.runs.run import Run
from ptm_jax.runs.writing import drafted

Layout = Literal["transformers", "sentence-transformers"]


def published_config(model: str | os.PathLike) -> Mapping[str, Any] | None:
    """Returns the published config of a run or of a published checkpoint, or None."""
    run = Run.at(model)
    if run.exists:
        return run.published or None
    file = run.folder / "config.json"
    return json.loads(file.read_text(encoding="utf8")) if untyped.is_published(run.folder) else None


def export(
    out: str | os.PathLike,
    model: Any,
    config: Mapping[str, Any] | None = None,
    beside: Sequence[Path] = (),
    *,
    dtype: str = "float32",
    max_shard_bytes: int = 5_000_000_000,
    run: Run | None = None,
    layout: Layout | None = None,
    named: Mapping[str, int] = MappingProxyType({}),
) -> list[Path]:
    """Writes a model as a Hugging Face directory, atomically, and returns its files.

    It has copies of the files `beside`, or the layout of a library that its network has
    (`convert.layouts`).

    The folder has a model card from the record of `run`. `layout`: "transformers" is the class of
    the head; "sentence-transformers" has its files around an encoder. Default: the latter for an
    encoder from such a folder, and for a classifier on the mean of the states, of which no class
    exists. `named` are further fields of config.json. Raises UserError.
    """
    library = layouts.writer_of(model.module)
    if library is not None:
        with drafted(out) as draft:
            library.write(draft, model, dtype)
            text = card.card(model, library.config, False, run, library)
            (draft / "README.md").write_text(text, encoding="utf8")
        return [file for file in Path(out).absolute().rglob("*") if file.is_file()]
    with drafted(out) as draft:
        module, params, last = sentence_export.parted(model.module, model.params[model.tower])
        if vector_head(model.module.heads) is not None and run is not None:
            module, params = _with_pooler(module, params, run)
        task = checkpoint.task_names(
            model.system.objective, model.module.heads, model.examples.labels
        )
        sentence = sentence_export.around(model, last, layout)
        system = dataclasses.replace(model.system, towers={"main": module})
        options = {
            "config": config,
            "named": {**task, **named},
            "dtype": dtype,
            "max_shard_bytes": max_shard_bytes,
        }
        checkpoint.write(draft, system, {"main": params}, **options)
        if run is not None:
            checkpoint.keep_recipe(draft, model.system.recipe)
        if model.tokenizer is not None:
            encoder = model.module.encoder
            typed = encoder.types > 1 and not types_are_words(encoder.embeddings)
            write_published(model.tokenizer, draft, typed=typed, begin=_begin(model))
        for file in beside:
            shutil.copyfile(file, draft / file.name)
        _with_vectors(draft, model, dtype)
        if sentence is not None:
            sentence_export.write(draft, sentence)
        fields = json.loads((draft / "config.json").read_text(encoding="utf8"))
        text = card.card(model, fields, sentence is not None, run)
        (draft / "README.md").write_text(text, encoding="utf8")
    return [file for file in Path(out).absolute().rglob("*") if file.is_file()]


def _begin(model) -> str | None:
    """Returns the piece before a text in the rows of a model, or None."""
    name = model.examples.begin
    number = None if name is None else model.vocab.id(name)
    return None if number is None else model.tokenizer.piece(number)


def _with_vectors(folder: Path, model, dtype: str) -> None:
    """Writes the files of sparse vectors, or of a vector for each token, into an exported folder.
    Raises UserError."""
    heads = model.module.heads
    if (sparse := sparse_head(heads)) is not None:
        retrieval_folders.write_sparse(folder, sparse, model.vocab.size, model.sentence)
    if (late := token_head(heads)) is not None:
        kernel = model.params[model.tower]["heads_vector"]["project"]["kernel"]
        retrieval_folders.write_late(folder, late, kernel, dtype)


def _with_pooler(
    module: Model, params: Mapping[str, Any], run: Run
) -> tuple[Model, Mapping[str, Any]]:
    """Returns the tower of a sentence encoder with the pooler of the published folder that the run
    began with, where it is on this machine and has one.

    No text's vector reads the pooler, and no step changes it.
    """
    init = run.record.get("config", {}).get("init")
    if not isinstance(init, str) or not untyped.is_published(Path(init)):
        return module, params
    begun = checkpoint.read(init)
    head = begun.system.towers["main"].heads.get("pool")
    if head is None or "heads_pool" not in begun.params["main"]:
        return module, params
    module = dataclasses.replace(module, heads={"pool": head})
    return module, {**params, "heads_pool": begun.params["main"]["heads_pool"]}
