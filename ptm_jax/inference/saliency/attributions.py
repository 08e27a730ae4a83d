"""Scores of the tokens of a text: how much each of them carries a prediction.

The prediction is the log-probability of a class under the head `classify`, of a word at the mask
of a masked language model, or the number of a regression. Gradients are those at the word vectors,
before positions are added. A missing text has the token `mask` in the place of every token (`pad`,
where the vocabulary has no mask); special tokens stay.

    gradient              the norm of the gradient (Simonyan et al. 2014)
    gradient_input        gradient times the difference from the missing word
    integrated_gradients  the same along the path from the missing text (Sundararajan et al. 2017,
                          Eq. 1), at `steps` nodes of Gauss and Legendre: the scores add up to the
                          difference of the predictions
    smooth_gradient       gradient_input with the mean gradient of `steps` noisy texts (Smilkov et
                          al. 2017); the deviation of the noise is 0.1 of the range of the vectors
    occlusion             the fall of the prediction without the token (Li et al. 2016)
    lime                  coefficients of a weighted ridge regression on `samples` texts with
                          missing tokens (Ribeiro et al. 2016): the kernel of the share of missing
                          tokens has the width 0.25
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.networks import Network
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.text import classifying, filling
from ptm_jax.nn.embeddings.moved import movable
from ptm_jax.nn.embeddings.summed import word_width

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.inference.pretrained import Pretrained

STEPS, SAMPLES, ROWS, TOKENS = 50, 500, 16, 128
"""Nodes of a path and noisy texts; texts of a regression; rows of a batch; tokens of a row that
reads the table of word vectors."""
NOISE, WIDTH, RIDGE = 0.1, 0.25, 1.0


class Attribution(NamedTuple):
    """Scores of a text's tokens.

    pieces      the tokens, without special ones
    scores      [T] float64, of the tokens
    target      the class or word that is explained
    prediction  its log-probability, or a number
    mask        number of tokens before the mask; None: a text without one
    """

    pieces: tuple[str, ...]
    scores: np.ndarray
    target: str
    prediction: float
    mask: int | None = None


class Function(NamedTuple):
    """The prediction of a row as a function of its ids and its word vectors.

    ids     [L], with special tokens; `text` the places of the tokens between them, without the mask
            that is filled
    index   of the class, or id of the word; `place` of the mask, or 0
    """

    model: Pretrained
    question: _Question
    ids: np.ndarray
    types: np.ndarray
    text: np.ndarray
    target: str
    index: int
    place: int

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

    def _batches(self, rows: np.ndarray) -> list[tuple[Mapping[str, np.ndarray], int]]:
        batches = []
        for start in range(0, len(rows), ROWS):
            part = rows[start : start + ROWS]
            types = np.tile(self.types, (len(part), 1)) if self.question.typed else None
            batches.append((self.model._batch(part, np.ones_like(part), types), len(part)))
        return batches


class _Question(NamedTuple):
    """A network, its head, what the head predicts, and whether rows have token types."""

    module: Network
    head: str
    kind: str
    typed: bool


def function_of(model: Pretrained, text: str, target: str | None = None) -> Function:
    """Returns the prediction of a text: of its class, or of the word at its [MASK].

    target  a class or a word; None: the most probable one. Raises UserError.
    """
    if word_width(model.module.encoder.embeddings) is None or model.pair:
        raise UserError(
            f"{model.system.name} is no encoder with a table of word vectors; saliency needs one"
        )
    module = movable(model.module)
    typed = model.module.encoder.types > 1
    if classifying.HEAD in model.module.heads:
        ((ids, types),) = classifying._framed(model, [text], None)
        kind, names = classifying.kind_of(model), classifying.labels_of(model)
        question = _Question(module, classifying.HEAD, kind, typed)
        place, mask = 0, -1
    else:
        filling.check_fills(model)
        head = filling.mask_head(model)
        if model.module.heads[head].gives_rows:
            raise UserError(f"{model.system.name} gives no probabilities of words")
        parts, (ids,) = filling.masked_rows(model, [text])
        if len(parts[0]) != 2:
            raise UserError(f"the text has {len(parts[0]) - 1} masks; give one")
        types, names = np.zeros_like(ids), None
        place = mask = int(np.flatnonzero(ids == model.vocab.mask)[0])
        question = _Question(module, head, "mask", typed)
    ids = np.asarray(ids, np.int32)
    places = np.flatnonzero(~np.isin(ids, [i for i in model.vocab.specials]))
    places = places[places != mask]
    if not len(places):
        raise UserError("the text has no tokens beside its mask; give some")
    function = Function(model, question, ids, np.asarray(types, np.int32), places, "", 0, place)
    index, name = _index(function, names, target, text)
    return function._replace(index=index, target=name)


def attributed(
    model: Pretrained, text: str, method: str = "integrated_gradients", target: str | None = None,
    *, steps: int = STEPS, samples: int = SAMPLES, seed: int = 0,
) -> Attribution:  # fmt: skip
    """Returns the scores of a text's tokens by one of `METHODS`. Raises UserError."""
    function = function_of(model, text, target)
    return explained(function, method, steps=steps, samples=samples, seed=seed)


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


def explained(
    function: Function, method: str, *, steps: int = STEPS, samples: int = SAMPLES, seed: int = 0
) -> Attribution:
    """Returns the scores of the tokens of a prediction by one of `METHODS`. Raises UserError."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    draw = np.random.default_rng(seed)
    scores = METHODS[method](function, draw, samples if method == "lime" else steps)
    tokenizer = function.model._tokenizer()
    pieces = tuple(_shown(tokenizer, int(i)) for i in function.ids[function.text])
    value = float(function.values(function.ids[None])[0])
    before = int((function.text < function.place).sum())
    mask = before if function.question.kind == "mask" else None
    return Attribution(pieces, np.asarray(scores, np.float64), function.target, value, mask)


def _index(
    function: Function, names: Sequence[str] | None, target: str | None, text: str
) -> tuple[int, str]:
    """Returns the index of the target, and its name."""
    model = function.model
    if function.question.kind == "number":
        return 0, "number"
    if names is not None and target is not None:
        if target not in names:
            raise unknown("class", target, names)
        return names.index(target), target
    if target is not None:
        if (index := cloze_scores.token_of(model, target, text)) is None:
            raise UserError(
                f"{target!r} is no single token of {model.system.name}; take another word"
            )
        return index, target
    ((batch, _),) = function._batches(function.ids[None])
    scores = _scores(function.question, model.weights, batch, None, function.place)
    index = int(np.asarray(scores)[0].argmax())
    return index, names[index] if names is not None else _shown(model._tokenizer(), index)


def _shown(tokenizer: Tokenizer, index: int) -> str:
    """Returns the text of a token; a WordPiece that goes on keeps its mark."""
    piece = tokenizer.piece(index)
    return piece if piece.startswith("##") else tokenizer.decode([index]).strip() or piece


def _gradient(function: Function, draw: np.random.Generator, steps: int) -> np.ndarray:
    (gradient,) = function.gradients(np.zeros((1, *function.words(function.ids).shape), np.float32))
    return np.linalg.norm(gradient, axis=-1)[function.text]


def _gradient_input(function: Function, draw: np.random.Generator, steps: int) -> np.ndarray:
    difference = _difference(function)
    (gradient,) = function.gradients(np.zeros((1, *difference.shape), np.float32))
    return (gradient * difference).sum(-1)[function.text]


def _integrated(function: Function, draw: np.random.Generator, steps: int) -> np.ndarray:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    nodes, weights = (nodes + 1) / 2, weights / 2
    difference = _difference(function)
    moves = (nodes[:, None, None] - 1) * difference
    gradients = function.gradients(moves.astype(np.float32))
    mean = np.einsum("n,nld->ld", weights, gradients.astype(np.float64))
    return (mean * difference).sum(-1)[function.text]


def _smooth(function: Function, draw: np.random.Generator, steps: int) -> np.ndarray:
    difference, words = _difference(function), function.words(function.ids)
    noise = draw.normal(size=(steps, *words.shape)) * NOISE * (words.max() - words.min())
    gradients = function.gradients(noise.astype(np.float32))
    return (gradients.mean(0) * difference).sum(-1)[function.text]


def _occlusion(function: Function, draw: np.random.Generator, steps: int) -> np.ndarray:
    rows = np.tile(function.ids, (len(function.text) + 1, 1))
    rows[np.arange(1, len(rows)), function.text] = function.missing()[function.text]
    values = function.values(rows)
    return values[0] - values[1:]


def _lime(function: Function, draw: np.random.Generator, steps: int) -> np.ndarray:
    present = draw.integers(0, 2, (steps, len(function.text))).astype(bool)
    present[0] = True
    rows = np.tile(function.ids, (steps, 1))
    rows[:, function.text] = np.where(
        present, function.ids[function.text], function.missing()[function.text]
    )
    values = function.values(rows)
    weights = np.exp(-((1 - present.mean(1)) ** 2) / WIDTH**2)
    return _ridge(present.astype(float), values, weights)


def _ridge(inputs: np.ndarray, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the coefficients of a weighted ridge regression with a free constant."""
    mean = np.average(inputs, axis=0, weights=weights)
    centred, residual = inputs - mean, values - np.average(values, weights=weights)
    gram = (centred * weights[:, None]).T @ centred + RIDGE * np.eye(inputs.shape[1])
    return np.linalg.solve(gram, (centred * weights[:, None]).T @ residual)


def _difference(function: Function) -> np.ndarray:
    """Returns the word vectors of the text less those of the missing text [L, D]."""
    return function.words(function.ids) - function.words(function.missing())


METHODS: Mapping[str, Callable[[Function, np.random.Generator, int], np.ndarray]] = {
    "gradient": _gradient,
    "gradient_input": _gradient_input,
    "integrated_gradients": _integrated,
    "smooth_gradient": _smooth,
    "occlusion": _occlusion,
    "lime": _lime,
}
"""{method: function of (prediction, random numbers, steps) -> scores [T]}."""


@functools.partial(jax.jit, static_argnums=0)
def _scores(
    question: _Question, params: Params, batch: Batch, moves: Array | None, place: Array
) -> Array:
    """Returns log-probabilities [B, C] of classes or of words at a place, or numbers [B, 1]."""
    tower = Tower(question.module, params)
    batch = batch if moves is None else {**batch, "perturbation": moves}
    encoded = tower(batch)
    if question.kind == "mask":
        logits = tower.head(question.head, encoded.hidden[:, place][:, None]).logits()[:, 0]
    else:
        logits = tower.read(question.head, encoded, batch)
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
