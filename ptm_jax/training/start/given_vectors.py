"""Initial vectors of an embedding layer: a file of word vectors, or the table of another run
(survey, Table 4).

Rows are matched by token. A file's word fits the piece that is this word: `the`, or `Ġthe` and
`▁the` at the beginning of a word. Tables of two tokenizers are matched alike; pieces inside words
fit pieces inside words.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.hub import locate
from ptm_jax.convert.words import static_folder, wordfiles
from ptm_jax.convert.words.wordtable import WordTable
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.open_words import OpenWords
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.training import workdirs
from ptm_jax.training.checkpoints import restore_params
from ptm_jax.training.logs import console

PLACE = "embeddings"
"""The name in `Experiment.init` of the embedding layers of all towers; TOWER/embeddings is that of
one."""
ENTITIES = "entities"
"""The last part of the paths of tables of entities, whose rows are given by the names of the
entities."""
INSIDE = "##"
"""Before the text of a piece inside a word."""


def gives_vectors(at: str, path: str | os.PathLike) -> bool:
    """Whether a pair of `Experiment.init` gives the vectors of tokens, and not a model."""
    return at.split("/")[-1] in (PLACE, ENTITIES) or wordfiles.is_words(path)


def gives_entities(at: str) -> bool:
    """Whether a pair of `Experiment.init` names a table of entities (main/encoder/entities)."""
    return at.split("/")[-1] == ENTITIES


def fill_entities(
    params: Mapping[str, Any], at: str, path: str, lexicons: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Returns the parameters with the rows of the table `at` [E, W] replaced by the vectors of
    their entities, by the names that its lexicon numbers, and prints how many were found: a file of
    vectors whose words are identifiers, or a run of TransE and its kind. Row 0, none, is 0. Raises
    UserError as `fill`, and where `at` is no table."""
    flat = flatten(params)
    if at not in lexicons or at not in flat:
        raise UserError(
            f"init={at}={path} names no table of entities; there are: {', '.join(lexicons)}"
        )
    names, old = lexicons[at].names(), flat[at]
    keys = [None, *names, *[None] * len(old)][: len(old)]
    vectors, found = rows_of(read(path), keys)
    if not found.any():
        raise UserError(
            f"{path} has none of the {len(names):,} entities of {at}; give vectors of the "
            "lexicon's graph"
        )
    if old.shape[1] != vectors.shape[1]:
        raise UserError(
            f"{path} has vectors of width {vectors.shape[1]}, and {at} rows of width "
            f"{old.shape[1]}; train others"
        )
    found[0] = True
    merge = jax.jit(
        lambda old, new, there: jnp.where(there[:, None], new, old), out_shardings=old.sharding
    )
    flat[at] = merge(old, vectors.astype(old.dtype), found)
    console.say(
        f"{path}: vectors of {int(found.sum()) - 1:,} of {len(names):,} entities; the others "
        "keep their values"
    )
    return unflatten(flat)


def fill(params: Mapping[str, Any], at: str, path: str, tokenizer: Any) -> Mapping[str, Any]:
    """Returns the parameters with the rows of all token tables [V, D] below `at` replaced by the
    vectors of their tokens, and prints how many were found. Special tokens and other missing ones
    keep their values. Over an open vocabulary V is the table's own number of rows.

    Raises UserError for a file that cannot be read, another width, no token table, or no common
    token.
    """
    flat, tower = flatten(params), at.removesuffix(PLACE).strip("/")
    mine = keys_of(tokenizer)
    opened = isinstance(tokenizer, OpenWords)

    def below(name):
        return not tower or name.startswith(f"{tower}/")

    tables = [
        name
        for name, leaf in flat.items()
        if name.endswith("/token") and below(name) and (opened or leaf.shape[:1] == (len(mine),))
    ]
    if not tables:
        raise UserError(
            f"{path} gives vectors of tokens, and no "
            f"encoder{f' of {tower}' if tower else ''} has a table of them"
        )
    if opened:
        mine = [*mine, *[None] * flat[tables[0]].shape[0]][: flat[tables[0]].shape[0]]
    vectors, found = rows_of(read(path), mine)
    if not found.any():
        raise UserError(
            f"{path} has none of the {len(mine):,} tokens; give vectors of this language and "
            "spelling"
        )
    for name in tables:
        old = flat[name]
        if old.shape[1] != vectors.shape[1]:
            raise UserError(
                f"{path} has vectors of width {vectors.shape[1]}, and {name} rows of width "
                f"{old.shape[1]}; "
                f"take an encoder whose embeddings have the width {vectors.shape[1]}"
            )
        merge = jax.jit(
            lambda old, new, there: jnp.where(there[:, None], new, old), out_shardings=old.sharding
        )
        flat[name] = merge(old, vectors.astype(old.dtype), found)
    console.say(
        f"{path}: vectors of {int(found.sum()):,} of {len(mine):,} tokens; the others keep "
        "their initial values"
    )
    return unflatten(flat)


def keys_of(tokenizer: Any) -> list[str | None]:
    """Returns the word of every piece that begins one, `##` and the text of the others, None for
    special ones, [V]."""
    begins, special = tokenizer.word_starts(), {*tokenizer.special_pieces.values()}
    plain = [piece.lstrip("Ġ▁").removeprefix(INSIDE) for piece in tokenizer.pieces]
    return [
        None if i in special or not text else text if start else INSIDE + text
        for i, (text, start) in enumerate(zip(plain, begins, strict=True))
    ]


def read(path: str | os.PathLike) -> WordTable:
    """Returns the vectors of a file or folder of them, or the token table of a run or a published
    checkpoint, with the keys of its pieces as words. Raises UserError."""
    if wordfiles.is_words(path):
        if not static_folder.is_static(Path(path)):
            return wordfiles.read(path)
        table = static_folder.read(Path(path))
        pieces = static_folder.pieces_of(table.tokenizer, Path(path) / "tokenizer.json")
        return WordTable(words=list(pieces), rows=np.asarray(table.vectors, np.float32))
    folder = locate(path)
    if checkpoint.is_published(folder):
        params, place = checkpoint.read(folder).params, folder
    else:
        params, place = restore_params(folder)[0], workdirs.place_of(folder)[0] / "tokenizer"
    keys, flat = keys_of(vocabularies.read(TokenizerSpec(path=str(place)))), flatten(params)
    tables = [
        leaf
        for name, leaf in flat.items()
        if name.endswith("/token") and leaf.shape[0] >= len(keys)
    ]
    if not tables:
        raise UserError(f"{path} has no table of tokens; give vectors, or a model with one")
    kept = [i for i, key in enumerate(keys) if key is not None]
    return WordTable(words=[keys[i] for i in kept], rows=np.asarray(tables[0], np.float32)[kept])


def rows_of(table: WordTable, keys: Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (vectors [V, D] float32, whether there is one [V]) of keys; with n-grams also for
    words outside the table."""
    index = dict(zip(reversed(table.words), range(len(table.words) - 1, -1, -1), strict=True))
    ids = np.array([-1 if key is None else index.get(key, -1) for key in keys])
    found = ids >= 0
    if table.subwords is not None:
        found = np.array(
            [
                key is not None and not (key.startswith(INSIDE) and i < 0)
                for key, i in zip(keys, ids, strict=True)
            ]
        )
    vectors = np.zeros((len(keys), table.width), np.float32)
    there = np.flatnonzero(found)
    vectors[there] = table.vectors([keys[i] for i in there], ids[there])
    return vectors, found
