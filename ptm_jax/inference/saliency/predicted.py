"""A prediction of a model as a function of its ids and word vectors, for saliency.

It is the log-probability of a class under the head `classify`, of a word at the mask of a masked
language model, or of an answer's first and last token in a passage, or the number of a regression.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.batch import segments_of
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.networks import Network
from ptm_jax.core.towers import Tower, outlined
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.encoders.readers import readers_of
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.text import answering, classifying, filling
from ptm_jax.nn.attention.multihead import with_maps
from ptm_jax.nn.embeddings.moved import movable
from ptm_jax.nn.embeddings.summed import word_width

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.inference.pretrained import Pretrained

ROWS, TOKENS = 16, 128
"""Rows of a batch; tokens of a row that reads the table of word vectors."""
SPAN = "span"
"""The head of answers; `inference.text.answering`."""


class Function(NamedTuple):
    """The prediction of a row as a function of its ids and its word vectors.

    ids     [L], with special tokens; `text` the places of the tokens between them, without the mask
            that is filled
    index   of the class, id of the word, or place of the answer's last token; `place` of the mask,
            of the answer's first token, or 0
    """

    model: Pretrained
    question: _Question
    ids: np.ndarray
    types: np.ndarray
    text: np.ndarray
    target: str
    index: int
    place: int

    @property
    def measure(self) -> str:
        """The name of the numbers of `values`."""
        return "value" if self.question.kind == "number" else "log-probability"

    def values(self, rows: np.ndarray) -> np.ndarray:
        """Returns the predictions [n] of rows of ids [n, L]."""
        return np.concatenate([
            np.asarray(
                _scores(self.question, self.model.weights, batch, None, self.place)
            )[:count, self.index]
            for batch, count in self._batches(rows)
        ])  # fmt: skip

    def gradients(self, moves: np.ndarray) -> np.ndarray:
        """Returns the gradients [n, L, D] at word vectors that are moved by [n, L, D]."""
        parts = []
        for start in range(0, len(moves), ROWS):
            part = moves[start : start + ROWS]
            ((batch, count),) = self._batches(np.tile(self.ids, (len(part), 1)))
            rows, length = batch["input_ids"].shape
            pads = ((0, rows - len(part)), (0, length - len(self.ids)), (0, 0))
            gradient = _gradients(
                self.question,
                self.model.weights,
                batch,
                np.pad(part, pads),
                (self.index, self.place),
            )
            parts.append(np.asarray(gradient)[:count, : len(self.ids)])
        return np.concatenate(parts)

    def words(self, ids: np.ndarray) -> np.ndarray:
        """Returns the word vectors [L, D] of a row."""
        ((batch, _),) = self._batches(ids[None])
        return np.asarray(_words(self.question, self.model.weights, batch))[0, : len(ids)]

    def missing(self) -> np.ndarray:
        """Returns the ids [L] of the missing text."""
        vocab = self.model.vocab
        ids = self.ids.copy()
        ids[self.text] = vocab.pad if vocab.mask is None else vocab.mask
        return ids

    def maps(self) -> np.ndarray:
        """Returns the attention [N, H, L, L] of all layers. Raises UserError without attention."""
        types = self.types[None] if self.question.typed else None
        module = self.model.module
        if readers_of(module) or outlined(with_maps(module)).attention is None:
            raise UserError(
                f"{self.model.system.name} has no maps of attention that its head reads; take "
                "another method, or an encoder with attention"
            )
        return self.model(self.ids[None], None, types, attention=True, logits=False).attention[:, 0]

    def _batches(self, rows: np.ndarray) -> list[tuple[Mapping[str, np.ndarray], int]]:
        batches = []
        for start in range(0, len(rows), ROWS):
            part = rows[start : start + ROWS]
            types = np.tile(self.types, (len(part), 1)) if self.question.typed else None
            batches.append((self.model._batch(part, np.ones_like(part), types), len(part)))
        return batches


class _Question(NamedTuple):
    """A network, its head, what the head predicts ("classes", "labels", "number", "mask" or
    "span"), and whether rows have token types."""

    module: Network
    head: str
    kind: str
    typed: bool


def function_of(
    model: Pretrained, text: str, target: str | None = None, pair: str | None = None
) -> Function:
    """Returns the prediction of a text: of its class, of the word at its [MASK], or of the answer
    to a question.

    target  a class, a word, or an answer: its text, or START:END in characters of the passage;
            None: the most probable one
    pair    the other text of a pair; the passage, where `text` is a question

    Raises UserError.
    """
    if word_width(model.module.encoder.embeddings) is None or model.pair:
        raise UserError(
            f"{model.system.name} is no encoder with a table of word vectors; saliency needs one"
        )
    heads = model.module.heads
    if classifying.HEAD in heads:
        return _of_class(model, text, target, pair)
    if SPAN in heads:
        return _of_answer(model, text, target, pair)
    if pair is not None:
        raise UserError(f"{model.system.name} reads one text; leave the pair out")
    return _of_mask(model, text, target)


def vectors_of(model: Pretrained, ids: np.ndarray) -> np.ndarray:
    """Returns the word vectors [n, D] float64 of tokens. Raises UserError as `function_of`."""
    question, parts = function_of(model, "a [MASK]").question, []
    size = min(TOKENS, model.limit or TOKENS)
    for start in range(0, len(ids), size):
        row = ids[None, start : start + size]
        types = np.zeros_like(row) if question.typed else None
        batch = model._batch(row, np.ones_like(row), types)
        parts.append(np.asarray(_words(question, model.weights, batch))[0, : row.shape[1]])
    return np.concatenate(parts).astype(np.float64)


def _of_class(model: Pretrained, text: str, target: str | None, pair: str | None) -> Function:
    ((ids, types),) = classifying._framed(model, [text], None if pair is None else [pair])
    function = _row(model, classifying.HEAD, classifying.kind_of(model), (ids, types))
    if function.question.kind == "number":
        return function._replace(target="number")
    names = classifying.labels_of(model)
    if target is not None and target not in names:
        raise unknown("class", target, names)
    index = _likeliest(function) if target is None else names.index(target)
    return function._replace(index=index, target=names[index])


def _of_mask(model: Pretrained, text: str, target: str | None) -> Function:
    filling.check_fills(model)
    head = filling.mask_head(model)
    if model.module.heads[head].gives_rows:
        raise UserError(f"{model.system.name} gives no probabilities of words")
    parts, (ids,) = filling.masked_rows(model, [text])
    if len(parts[0]) != 2:
        raise UserError(f"the text has {len(parts[0]) - 1} masks; give one")
    place = int(np.flatnonzero(ids == model.vocab.mask)[0])
    function = _row(model, head, "mask", (ids, np.zeros_like(ids)), place)
    if target is None:
        index = _likeliest(function)
        return function._replace(index=index, target=shown(model._tokenizer(), index))
    if (index := cloze_scores.token_of(model, target, text)) is None:
        raise UserError(f"{target!r} is no single token of {model.system.name}; take another word")
    return function._replace(index=index, target=target)


def _of_answer(model: Pretrained, text: str, target: str | None, pair: str | None) -> Function:
    if pair is None:
        raise UserError(f"{model.system.name} answers questions; give the passage as --pair")
    tokenizer, length = model._tokenizer(), model.limit or 1 << 20
    (record,) = answering.records_of(tokenizer, [text], [pair])
    rows = answering.windows(tokenizer, [record["question"]], [record["ids"]], length, 1)
    if len(rows) > 1:
        raise UserError(
            f"question and passage are longer than {length} tokens; shorten the passage"
        )
    function = _row(model, SPAN, "span", (rows[0].ids, rows[0].types))
    if target is None:
        ((answer, _),) = answering.read(model, SPAN, [pair], [record], rows, batch=1)
        start, end = answer.best[0].start, answer.best[0].end
    else:
        start, end = _characters(target, pair)
    places = np.flatnonzero((record["ends"] > start) & (record["starts"] < end)) + rows[0].offset
    if not len(places):
        raise UserError(f"the answer {target!r} has no tokens in the passage; give START:END in it")
    place, index = int(places[0]), int(places[-1])
    return function._replace(target=pair[start:end], place=place, index=index)


def _characters(target: str, passage: str) -> tuple[int, int]:
    """Returns start and end in characters of an answer, which is its text or START:END."""
    first, mark, last = target.partition(":")
    if mark and first.isdecimal() and last.isdecimal():
        return int(first), int(last)
    if target not in passage:
        raise UserError(f"the passage has no {target!r}; give words of it, or START:END")
    return passage.index(target), passage.index(target) + len(target)


def _row(
    model: Pretrained,
    head: str,
    kind: str,
    framed: tuple[np.ndarray, np.ndarray],
    place: int = 0,
) -> Function:
    """Returns the prediction of a row of ids and token types, without its target."""
    question = _Question(movable(model.module), head, kind, model.module.encoder.types > 1)
    ids, types = (np.asarray(one, np.int32) for one in framed)
    places = np.flatnonzero(~np.isin(ids, [*model.vocab.specials]))
    if kind == "mask":
        places = places[places != place]
    if not len(places):
        raise UserError("the text has no tokens beside its mask; give some")
    return Function(model, question, ids, types, places, "", 0, place)


def _likeliest(function: Function) -> int:
    """Returns the index of the most probable class or word."""
    ((batch, _),) = function._batches(function.ids[None])
    scores = _scores(function.question, function.model.weights, batch, None, function.place)
    return int(np.asarray(scores)[0].argmax())


def shown(tokenizer: Tokenizer, index: int) -> str:
    """Returns the text of a token; a WordPiece that goes on keeps its mark."""
    piece = tokenizer.piece(index)
    return piece if piece.startswith("##") else tokenizer.decode([index]).strip() or piece


@functools.partial(jax.jit, static_argnums=0)
def _scores(
    question: _Question, params: Params, batch: Batch, moves: Array | None, place: Array
) -> Array:
    """Returns log-probabilities [B, C] of classes, of words at a place, or of answers that begin at
    a place and end at each token; or numbers [B, 1]."""
    tower = Tower(question.module, params)
    batch = batch if moves is None else {**batch, "perturbation": moves}
    encoded = tower(batch)
    if question.kind == "mask":
        logits = tower.head(question.head, encoded.hidden[:, place][:, None]).logits()[:, 0]
    else:
        logits = tower.read(question.head, encoded, batch)
    if question.kind == "span":
        real = segments_of(batch) > 0
        starts, ends = (
            jax.nn.log_softmax(jnp.where(real, one.astype(jnp.float32), -1e30))
            for one in logits[:2]
        )
        return starts[:, place][:, None] + ends
    logits = logits.astype(jnp.float32).reshape(len(logits), -1)
    if question.kind == "labels":
        return jax.nn.log_sigmoid(logits)
    return logits if question.kind == "number" else jax.nn.log_softmax(logits, -1)


@functools.partial(jax.jit, static_argnums=0)
def _gradients(
    question: _Question, params: Params, batch: Batch, moves: Array, where: tuple[Array, Array]
) -> Array:
    """Returns the gradient [B, L, D] of each row's prediction at its moved word vectors."""

    def total(moves):
        return _scores(question, params, batch, moves, where[1])[:, where[0]].sum()

    return jax.grad(total)(moves)


@functools.partial(jax.jit, static_argnums=0)
def _words(question: _Question, params: Params, batch: Batch) -> Array:
    """Returns the word vectors [B, L, D]."""
    _, state = question.module.apply(
        {"params": params}, batch, method="encode", mutable=["intermediates"]
    )
    (words,) = jax.tree.leaves(state["intermediates"])
    return words.astype(jnp.float32)
