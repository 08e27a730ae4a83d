"""Extends a vocabulary.

`grown` adds words of a domain to the vocabulary of a published checkpoint: to the pieces of a
vocab.txt (BERT, ELECTRA, DistilBERT, MiniLM), else to the added tokens of a tokenizer.json
(ModernBERT). A new word is the mean of its old pieces (further pre-training, survey section 5.3;
Tai et al. 2020; Yao et al. 2021). `assembled` changes to another vocabulary. `expanded` adds the
words of a table of word vectors to a vocabulary of whole words (skip-thought).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.words.wordtable import WordTable
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers import words as whole_words
from ptm_jax.data.tokenizers.published import read_published

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


WORD = re.compile(r"\w+")
UNUSED = re.compile(r"(\[unused_?\d+\]|<unused_?\d+>)")
_VOCABULARIES = frozenset({"vocab.txt", "tokenizer.json"})
MULTIPLE = 64
"""A vocabulary padded to a multiple of this stays one."""


def candidates(tokenizer: Tokenizer, texts: Iterable[str], limit: int, least: int = 5) -> list[str]:
    """Returns up to `limit` words of several pieces, most frequent first.
    They occur at least `least` times."""
    lower = tokenizer.encode("A").tolist() == tokenizer.encode("a").tolist()
    counts: collections.Counter = collections.Counter()
    for text in texts:
        counts.update(WORD.findall(text.lower() if lower else text))
    frequent = [word for word, count in counts.most_common() if count >= least]
    cut = tokenizer.encode_batch(frequent)
    return [word for word, ids in zip(frequent, cut, strict=True) if len(ids) > 1][:limit]


def grown(model: Any, words: Sequence[str]) -> Any:
    """Returns the `Pretrained` model with a piece for every word.
    Existing pieces are kept. Raises UserError."""
    tokenizer = model.tokenizer
    files = {} if tokenizer is None or tokenizer.published is None else tokenizer.published.files
    if not _VOCABULARIES & {*files}:
        raise UserError(
            f"{model.system.name} has no vocabulary (vocab.txt or tokenizer.json) that words could "
            "be added to"
        )
    odd = [word for word in words if not word or re.search(r"\s", word)]
    if odd:
        raise UserError(f"{odd[0]!r} is no word that can be added; give one word a line")
    spaced = "" if "vocab.txt" in files else " "  # pieces of a word inside a text
    unknown = [word for word in dict.fromkeys(words) if tokenizer.id(word) is None]
    pieces_of = dict(
        zip(unknown, tokenizer.encode_batch([spaced + w for w in unknown]), strict=True)
    )
    new = [word for word in unknown if not spaced or len(pieces_of[word]) > 1]
    if not new:
        raise UserError(
            f"all {len(words)} words are pieces of {model.system.name} already; there is "
            "nothing to add"
        )
    larger = _extended(tokenizer, new)
    ids = [larger.id(word) for word in new]
    old, size = model.vocab.size, max(model.vocab.size, len(larger.pieces))
    if old % MULTIPLE == 0:
        size = -(-size // MULTIPLE) * MULTIPLE
    vocab = dataclasses.replace(larger.vocab, size=size)

    def fill(table: np.ndarray) -> np.ndarray:
        table = np.concatenate([table, np.zeros((size - old, *table.shape[1:]), table.dtype)])
        for index, word in zip(ids, new, strict=True):
            table[index] = table[pieces_of[word]].mean(0)
        return table

    return _refilled(model, larger, vocab, fill)


def assembled(model, pieces: Sequence[str]) -> Any:
    """Returns the `Pretrained` model with another WordPiece vocabulary, that of the lines of a
    vocab.txt (RuBERT: Kuratov and Arkhipov 2019, arXiv 1905.07213, section 3).

    A piece that the old vocabulary has keeps its rows, bit for bit; the rows of another are the
    means of those of its old pieces, for "##abc" of pieces that go on a word. Deviation: a piece
    with a character that no old piece has begins at the mean of all rows, which the paper does not
    say. Raises UserError.
    """
    tokenizer = model.tokenizer
    files = {} if tokenizer is None or tokenizer.published is None else tokenizer.published.files
    if tokenizer is None or tokenizer.kind != "wordpiece" or not _VOCABULARIES & {*files}:
        raise UserError(
            f"{model.system.name} has no WordPiece vocabulary, whose pieces could be assembled"
        )
    pieces = list(pieces)
    if doubled := [piece for piece, n in collections.Counter(pieces).items() if n > 1]:
        raise UserError(f"the vocabulary has {doubled[0]!r} twice; leave one out")
    if absent := sorted({*tokenizer.special_pieces} - {*pieces}):
        raise UserError(f"the vocabulary has no piece {absent[0]}; add it as a line")
    known = {piece: index for index, piece in enumerate(tokenizer.pieces)}
    parts = [_cut(piece, known) for piece in pieces]
    larger = _read(_renumbered(files, pieces))

    def fill(table: np.ndarray) -> np.ndarray:
        mean = table[: len(known)].mean(0)
        rows = [table[i[0]] if len(i) == 1 else table[i].mean(0) if i else mean for i in parts]
        return np.stack(rows).astype(table.dtype)

    return _refilled(model, larger, larger.vocab, fill)


def _cut(piece: str, known: Mapping[str, int]) -> list[int]:
    """Returns the ids of the longest known pieces that spell a piece, from the left; [] where none
    do. A known piece is itself."""
    ids, text, mark = [], piece.removeprefix("##"), "##" if piece.startswith("##") else ""
    if piece in known:
        return [known[piece]]
    while text:
        sizes = range(len(text), 0, -1)
        size = next((size for size in sizes if mark + text[:size] in known), None)
        if size is None:
            return []
        ids.append(known[mark + text[:size]])
        text, mark = text[size:], "##"
    return ids


def _refilled(
    model, tokenizer: Tokenizer, vocab: Vocab, fill: Callable[[np.ndarray], np.ndarray]
) -> Any:
    """Returns the model with another vocabulary: each table [V, ..] becomes `fill(table)`."""
    old, size = model.vocab.size, vocab.size
    system = spec.respell(model.system, Vocab, vocab)
    shapes = flatten(towers.abstract(system.towers, checkpoint.example(system)))

    def rows(path: str, leaf: Any) -> Any:
        axes = [
            axis
            for axis, (a, b) in enumerate(zip(leaf.shape, shapes[path].shape, strict=True))
            if (a, b) == (old, size)
        ]
        axes = (
            axes
            if size != old
            else [axis for axis, length in enumerate(leaf.shape) if length == old][:1]
        )
        if not axes:
            return leaf
        return np.moveaxis(fill(np.moveaxis(np.asarray(leaf), axes[0], 0)), 0, axes[0])

    params = unflatten({path: rows(path, leaf) for path, leaf in flatten(model.params).items()})
    return dataclasses.replace(
        model, system=system, params=params, tokenizer=tokenizer, vocab=vocab
    )


def expanded(model: Any, table: WordTable) -> Any:
    """Returns the `Pretrained` model with every word of a table of word vectors.
    Kiros et al. 2015, section 2.2.

    W [E, D] minimises ||X W - Y||^2 over the words that both know, with their vectors X [n, E] in
    the table and Y [n, D] in the model. A new word has the vector x W; others keep theirs. Words
    that the tokenizer divides are left out. Of several spellings that it does not distinguish, that
    in lower case counts, else the first. The result encodes: heads of the vocabulary, which know no
    new word, are left out.

    Raises UserError for another tokenizer than one of whole words, a model without a plain table of
    words, or fewer than E words that both know.
    """
    tokenizer, tower = model._tokenizer(), model.params[model.tower]
    table_of_tokens = tower["encoder"].get("embed", {}).get("token")
    if table_of_tokens is None or len(table_of_tokens) != len(tokenizer.pieces):
        raise UserError(
            f"{model.system.name} has no plain table of its words that could be extended"
        )
    places: dict[str, int] = {}
    for number, word in enumerate(table.words):
        spelled = word.lower() if tokenizer.lowercase else word
        if spelled == word or spelled not in places:
            places[spelled] = number
    parts, special = tokenizer.encode_batch(list(places)), tokenizer.special_pieces
    added = [
        word
        for word, ids in zip(places, parts, strict=True)
        if len(ids) == 1 and word not in special
    ]
    larger = whole_words.extended(tokenizer, added)
    index, place = (
        np.array([larger.id(word) for word in added]),
        np.array([places[word] for word in added]),
    )
    vectors = table.vectors([table.words[i] for i in place], place)
    known = index < len(table_of_tokens)
    if known.sum() < table.width:
        raise UserError(
            f"{model.system.name} knows {known.sum():,} of the {len(table.words):,} words, "
            "too few for a map from width "
            f"{table.width}; give a table with at least as many words that it knows"
        )
    rows = _mapped(np.asarray(table_of_tokens), len(larger.pieces), index, vectors)
    dropped = {f"heads_{name}" for name, head in model.module.heads.items() if head.scores_words}
    heads = {
        name: head for name, head in model.module.heads.items() if f"heads_{name}" not in dropped
    }
    module = spec.respell(model.module.clone(heads=heads), Vocab, larger.vocab)
    params = {name: part for name, part in tower.items() if name not in dropped}
    params["encoder"] = {**tower["encoder"], "embed": {**tower["encoder"]["embed"], "token": rows}}
    system = dataclasses.replace(model.system, towers={**model.system.towers, model.tower: module})
    params = {**model.params, model.tower: params}
    return dataclasses.replace(
        model, system=system, params=params, tokenizer=larger, vocab=larger.vocab
    )


def _mapped(old: np.ndarray, size: int, index: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Returns the table [size, D] of `old` [V, D] and of the words `index` [n] with the `vectors`
    [n, E]: by least squares from those below V to their rows."""
    known = index < len(old)
    fitted = np.linalg.lstsq(
        vectors[known].astype(np.float64), old.astype(np.float64)[index[known]], rcond=None
    )[0]
    rows = np.zeros((size, old.shape[1]), np.float32)
    rows[: len(old)] = old
    rows[index[~known]] = vectors[~known] @ fitted.astype(np.float32)
    return rows


def _extended(tokenizer: Tokenizer, new: Sequence[str]) -> Any:
    """Returns the tokenizer with the words, read again from its files."""
    files = dict(tokenizer.published.files)
    files |= (_appended if "vocab.txt" in files else _added)(files, new)
    return _read(files)


def _renumbered(files: Mapping[str, bytes], pieces: Sequence[str]) -> dict[str, bytes]:
    """Returns the files of a WordPiece tokenizer with other pieces."""
    number = {piece: index for index, piece in enumerate(pieces)}
    config = json.loads(files.get("tokenizer_config.json", b"{}"))
    config.pop("added_tokens_decoder", None)
    new = {"tokenizer_config.json": _bytes(config)} if config else {}
    if "vocab.txt" in files:
        new["vocab.txt"] = ("\n".join(pieces) + "\n").encode("utf8")
    if "tokenizer.json" in files:
        document = json.loads(files["tokenizer.json"])
        document["model"]["vocab"] = number
        document["added_tokens"] = [
            {**token, "id": number[token["content"]]}
            for token in document.get("added_tokens") or []
            if token["content"] in number
        ]
        frame = document.get("post_processor") or {}
        for token in frame.get("special_tokens", {}).values():
            token["ids"] = [number[piece] for piece in token["tokens"]]
        for name in ("sep", "cls"):  # of BertProcessing
            if name in frame:
                frame[name] = [frame[name][0], number[frame[name][0]]]
        new["tokenizer.json"] = _bytes(document)
    return {**files, **new}


def _read(files: Mapping[str, bytes]) -> Any:
    with tempfile.TemporaryDirectory(prefix="ptm-grow-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return read_published(Path(folder))


def _appended(files: Mapping[str, bytes], new: Sequence[str]) -> dict[str, bytes]:
    """Returns the files of a WordPiece vocabulary with the words after its pieces."""
    pieces = files["vocab.txt"].decode("utf8").rstrip("\n").split("\n")
    larger = {"vocab.txt": ("\n".join([*pieces, *new]) + "\n").encode("utf8")}
    if "tokenizer.json" in files:
        document = json.loads(files["tokenizer.json"])
        table = document["model"]["vocab"]
        table.update({word: len(pieces) + number for number, word in enumerate(new)})
        larger["tokenizer.json"] = _bytes(document)
    return larger


def _added(files: Mapping[str, bytes], new: Sequence[str]) -> dict[str, bytes]:
    """Returns the files of a tokenizer.json with the words as added tokens: whole words, with the
    space before them. They take the ids of unused tokens first."""
    document = json.loads(files["tokenizer.json"])
    tokens, table = document.get("added_tokens") or [], document["model"]["vocab"]
    numbers = table.values() if isinstance(table, dict) else range(len(table))
    ids = [token["id"] for token in tokens if UNUSED.fullmatch(token["content"])]
    first = max([*numbers, *(token["id"] for token in tokens)]) + 1
    ids = [*ids, *range(first, first + len(new))][: len(new)]
    flags = {"single_word": True, "lstrip": True, "rstrip": False, "normalized": True}
    words = {
        index: {"id": index, "content": word, **flags, "special": False}
        for index, word in zip(ids, new, strict=True)
    }
    others = [token for token in tokens if token["id"] not in words]
    document["added_tokens"] = sorted([*others, *words.values()], key=lambda token: token["id"])
    larger = {"tokenizer.json": _bytes(document)}
    config = json.loads(files.get("tokenizer_config.json", b"{}"))
    if decoder := config.get("added_tokens_decoder"):
        plain = {str(i): {k: v for k, v in t.items() if k != "id"} for i, t in words.items()}
        larger["tokenizer_config.json"] = _bytes(
            {**config, "added_tokens_decoder": decoder | plain}
        )
    return larger


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf8")
