"""Initial vectors of an embedding layer: a file of word vectors, or another run's table.
Survey, Table 4.

Rows are matched by token. A file's word fits the piece that is this word: `the`, or `Ġthe` and
`▁the` at the beginning of a word. Tables of two tokenizers are matched alike; pieces inside words
fit pieces inside words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert.words import static_folder, wordfiles
from ptm_jax.convert.words.wordtable import WordTable
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.words import OpenWords
from ptm_jax.training.logs import console
from ptm_jax.training.start.init_models import TABLES, Initial

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


INSIDE = "##"
"""Before the text of a piece inside a word."""


def fill_entities(
    params: Mapping[str, Any], source: Initial, lexicons: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Fills an entity table [E, W] from a vector file or a TransE run.

    It matches entities by the names of the table's lexicon, and prints the number that matched. Row
    0, no entity, is 0.

    Raises UserError as `fill`, and where `source.at` is no table.
    """
    flat, at = flatten(params), source.at
    if at not in lexicons or at not in flat:
        raise UserError(
            f"init={at}={source.path} names no table of entities; there are: {', '.join(lexicons)}"
        )
    names, table = lexicons[at].names(), flat[at]
    keys = [None, *names, *[None] * len(table)][: len(table)]
    vectors, known = rows_of(read(source), keys)
    if not known.any():
        raise UserError(
            f"{source.path} has none of the {len(names):,} entities of {at}; give vectors of the "
            "lexicon's graph"
        )
    if table.shape[1] != vectors.shape[1]:
        raise UserError(
            f"{source.path} has vectors of width {vectors.shape[1]}, and {at} rows of width "
            f"{table.shape[1]}; train others"
        )
    known[0] = True
    flat[at] = _filled(table, vectors, known)
    console.say(
        f"{source.path}: vectors of {int(known.sum()) - 1:,} of {len(names):,} entities; the "
        "others keep their values"
    )
    return unflatten(flat)


def fill(params: Mapping[str, Any], source: Initial, tokenizer: Tokenizer) -> Mapping[str, Any]:
    """Fills the rows of all token tables [V, D] below `source.at` with the vectors of their tokens.
    Prints the number that matched. Special tokens and other missing ones keep their values. Over an
    open vocabulary V is the table's number of rows.

    Raises UserError for a file that cannot be read, another width, no token table, or no common
    token.
    """
    flat, tower, path = flatten(params), source.at.removesuffix(TABLES).strip("/"), source.path
    keys, is_open = keys_of(tokenizer), isinstance(tokenizer, OpenWords)
    tables = [
        name
        for name, leaf in flat.items()
        if name.endswith("/token")
        and (not tower or name.startswith(f"{tower}/"))
        and (is_open or leaf.shape[:1] == (len(keys),))
    ]
    if not tables:
        raise UserError(
            f"{path} gives vectors of tokens, and no "
            f"encoder{f' of {tower}' if tower else ''} has a table of them"
        )
    if is_open:
        size = flat[tables[0]].shape[0]
        keys = [*keys, *[None] * size][:size]
    vectors, known = rows_of(read(source), keys)
    if not known.any():
        raise UserError(
            f"{path} has none of the {len(keys):,} tokens; give vectors of this language and "
            "spelling"
        )
    for name in tables:
        width = flat[name].shape[1]
        if width != vectors.shape[1]:
            raise UserError(
                f"{path} has vectors of width {vectors.shape[1]}, and {name} rows of width "
                f"{width}; "
                f"take an encoder whose embeddings have the width {vectors.shape[1]}"
            )
        flat[name] = _filled(flat[name], vectors, known)
    console.say(
        f"{path}: vectors of {int(known.sum()):,} of {len(keys):,} tokens; the others keep "
        "their initial values"
    )
    return unflatten(flat)


def _filled(table: jax.Array, vectors: np.ndarray, known: np.ndarray) -> jax.Array:
    """Replaces the rows of a table [V, D] that are known [V], on its sharding."""
    merge = jax.jit(
        lambda table, vectors, known: jnp.where(known[:, None], vectors, table),
        out_shardings=table.sharding,
    )
    return merge(table, vectors.astype(table.dtype), known)


def keys_of(tokenizer: Tokenizer) -> list[str | None]:
    """Returns the keys [V] of pieces, None for special pieces.
    The key of a piece that begins a word is the word; the key of another piece is `##` and its
    text."""
    begins, special = tokenizer.word_starts(), {*tokenizer.special_pieces.values()}
    plain = [piece.lstrip("Ġ▁").removeprefix(INSIDE) for piece in tokenizer.pieces]
    return [
        None if i in special or not text else text if start else INSIDE + text
        for i, (text, start) in enumerate(zip(plain, begins, strict=True))
    ]


def read(source: Initial) -> WordTable:
    """Returns the vectors of a file or folder of them, or the token table of a model.
    The model is a run or a published checkpoint; its words are the keys of its pieces. Raises
    UserError."""
    path = Path(source.path)
    if source.is_table and not static_folder.is_static(path):
        return wordfiles.read(path)
    if source.is_table:
        static = static_folder.read(path)
        pieces = static_folder.pieces_of(static.tokenizer, path / "tokenizer.json")
        return WordTable(words=list(pieces), rows=np.asarray(static.vectors, np.float32))
    arrays = flatten(source.plain_params())
    keys = keys_of(vocabularies.read(TokenizerSpec(path=str(source.tokenizer_folder))))
    tables = [
        leaf
        for name, leaf in arrays.items()
        if name.endswith("/token") and leaf.shape[0] >= len(keys)
    ]
    if not tables:
        raise UserError(f"{source.path} has no table of tokens; give vectors, or a model with one")
    words = [i for i, key in enumerate(keys) if key is not None]
    return WordTable(words=[keys[i] for i in words], rows=np.asarray(tables[0], np.float32)[words])


def rows_of(table: WordTable, keys: Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (vectors [V, D] float32, whether there is one [V]) of keys.
    With n-grams also for words outside the table."""
    index = dict(zip(reversed(table.words), range(len(table.words) - 1, -1, -1), strict=True))
    ids = np.array([-1 if key is None else index.get(key, -1) for key in keys])
    known = ids >= 0
    if table.subwords is not None:
        known = np.array(
            [
                key is not None and not (key.startswith(INSIDE) and i < 0)
                for key, i in zip(keys, ids, strict=True)
            ]
        )
    vectors = np.zeros((len(keys), table.width), np.float32)
    rows = np.flatnonzero(known)
    vectors[rows] = table.vectors([keys[i] for i in rows], ids[rows])
    return vectors, known
