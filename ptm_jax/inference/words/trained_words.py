"""The table of words that a run trained, as a file of word vectors has it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ptm_jax.convert.words import wordfiles
from ptm_jax.convert.words.wordtable import Subwords, WordTable
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.data.rows.windows import Chunks
from ptm_jax.encoders.words import static
from ptm_jax.encoders.words.bags import BagOfNGrams
from ptm_jax.encoders.words.windows import WindowEncoder
from ptm_jax.inference.words import trained_classes
from ptm_jax.knowledge.vocabulary_graph import ENTITY, kinds_of
from ptm_jax.nn.heads.word_rows import WordRows
from ptm_jax.objectives.vectors.graph_vectors import TripleLoss, unit
from ptm_jax.objectives.vectors.windows import NegativeSampling
from ptm_jax.runs.run import Run

TABLES = (static.WordVectors, static.ContextWords)
"""Encoders that are a table of words and nothing else."""


def is_words(path: str | os.PathLike) -> bool:
    """Whether `ptm_jax.load` finds word vectors at a path.
    It may be a file, a folder of them, or a run that trained a table."""
    if wordfiles.is_words(path):
        return True
    run = Run.at(path)
    main = run.system["towers"].get("main", {}) if run.exists else {}
    return main.get("encoder", {}).get("kind") in {kind.__name__ for kind in TABLES}


def table_of(model: Any, counts: np.ndarray | None = None) -> WordTable:
    """Returns the table of a `Pretrained` model with one, without the special pieces.
    Raises UserError for another model.

    The table has what fastText's `.bin` holds, n-grams and output vectors too, so that it may be
    written as one.
    counts   [V] of every id in the training text, where known
    """
    encoder, name = model.module.encoder, model.system.name
    if isinstance(encoder, BagOfNGrams):
        return trained_classes.table_of(model)
    if not isinstance(encoder, (*TABLES, WindowEncoder)):
        raise UserError(
            f"{name} is no table of word vectors; `ptm compress static` makes vectors of a "
            "model's tokens"
        )
    tokenizer, params = model._tokenizer(), model.params[model.tower]
    numbers = np.array(
        [i for i, piece in enumerate(tokenizer.pieces) if piece not in tokenizer.special_pieces],
        np.int64,
    )
    embedding = params["encoder"].get("embed", params["encoder"])
    rows, subwords = np.asarray(embedding["token"], np.float32), None
    for head, kind in model.module.heads.items():
        if isinstance(kind, WordRows) and kind.added:
            rows = rows + np.asarray(params[f"heads_{head}"]["table"], np.float32)
    rows = _as_scored(model, rows)
    settings = _settings(model, numbers)
    if isinstance(encoder, TABLES) and (fact := encoder.subwords) is not None:
        sizes = {"shortest": fact.shortest, "longest": fact.longest, "buckets": fact.buckets}
        subwords, settings = (
            Subwords(rows=np.asarray(embedding["ngrams"], np.float32), **sizes),
            {**settings, **sizes},
        )
    if counts is not None:
        counts = np.maximum(counts[numbers], 1)
        settings["tokens"] = int(counts.sum())
    words = [tokenizer.pieces[i] for i in numbers]
    return WordTable(
        words=words, rows=rows[numbers], counts=counts, subwords=subwords, settings=settings
    )


def triple_loss(model: Any) -> TripleLoss | None:
    """Returns the loss of triples by which a table was trained, or None."""
    losses = (part for _, part in spec.walk(model.system.objective) if isinstance(part, TripleLoss))
    return next(losses, None)


def _as_scored(model: Any, rows: np.ndarray) -> np.ndarray:
    """Returns the rows [V, D] as the score of triples reads them: entities of length 1 where it
    brings them to that."""
    loss = triple_loss(model)
    if loss is None or not loss.unit:
        return rows
    entities = kinds_of(model.tokenizer.pieces) == ENTITY
    return np.where(entities[:, None], np.asarray(unit(rows)), rows)


def _settings(model: Any, numbers: np.ndarray) -> dict[str, Any]:
    """Returns fastText's arguments and output vectors of a model with negative sampling; {} of
    others."""
    system, objective = model.system, model.system.objective
    if not isinstance(objective, NegativeSampling) or not isinstance(model.module.encoder, TABLES):
        return {}
    settings = {
        "window": objective.window,
        "negatives": objective.k,
        "model": 1 if objective.predicts == "centre" else 2,
    }
    if isinstance(system.examples, Chunks):
        settings["sample"] = system.examples.sample or 0.0
    if system.tokenizer is not None:
        settings["min_count"] = system.tokenizer.min_count
    output = model.params[model.tower][f"heads_{objective.head}"]["table"]
    return {**settings, "output": np.asarray(output, np.float32)[numbers]}
