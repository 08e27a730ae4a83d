"""Scores of the tokens of a text: how much each of them carries a prediction.

The prediction is a `predicted.Function`. Gradients are those at the word vectors, before positions
are added. A missing text has the token `mask` in the place of every token (`pad`, where the
vocabulary has no mask); special tokens stay.

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
    attention             the weights from which the prediction is made: of an attention over the
                          words, else the mean over the heads of the last layer at the token that
                          predicts (of a mean over tokens: at all of them)
    rollout               the same of the product of all layers (Abnar and Zuidema 2020)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import unknown
from ptm_jax.inference.saliency import alternatives
from ptm_jax.inference.saliency.attention_pages import rollout
from ptm_jax.inference.saliency.predicted import Function, function_of, shown
from ptm_jax.nn.heads.task_heads import attention_of, summary_of

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

STEPS, SAMPLES = 50, 500
"""Nodes of a path and noisy texts; texts of a regression."""
NOISE, WIDTH, RIDGE = 0.1, 0.25, 1.0


class Attribution(NamedTuple):
    """Scores of a text's tokens.

    pieces      the tokens, without special ones
    scores      [T] float64, of the tokens
    target      the class, word or answer that is explained
    prediction  its `measure`: "log-probability", or "value" of a regression
    mask        number of tokens before the mask; None: a text without one
    """

    pieces: tuple[str, ...]
    scores: np.ndarray
    target: str
    prediction: float
    mask: int | None = None
    measure: str = "log-probability"


def attributed(
    model: Pretrained, text: str, method: str = "integrated_gradients", target: str | None = None,
    *, pair: str | None = None, steps: int = STEPS, samples: int = SAMPLES, seed: int = 0,
) -> Attribution:  # fmt: skip
    """Returns the scores of a text's tokens by one of `METHODS`. `target` and `pair` are those of
    `function_of`. Raises UserError."""
    function = function_of(model, text, target, pair)
    return explained(function, method, steps=steps, samples=samples, seed=seed)


def explained(
    function: Function, method: str, *, steps: int = STEPS, samples: int = SAMPLES, seed: int = 0
) -> Attribution:
    """Returns the scores of the tokens of a prediction by one of `METHODS`. Raises UserError."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    draw = np.random.default_rng(seed)
    scores = METHODS[method](function, draw, samples if method == "lime" else steps)
    tokenizer = function.model._tokenizer()
    pieces = tuple(shown(tokenizer, int(i)) for i in function.ids[function.text])
    value = float(function.values(function.ids[None])[0])
    before = int((function.text < function.place).sum())
    mask = before if function.question.kind == "mask" else None
    scores = np.asarray(scores, np.float64)
    return Attribution(pieces, scores, function.target, value, mask, function.measure)


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


def _attention(function: Function, draw: np.random.Generator, steps: int) -> np.ndarray:
    if attention_of(function.model.module.heads[function.question.head]) is None:
        return _read(function, function.maps()[-1].mean(0))
    part = alternatives.Part(function.question.module, None, None)
    ((batch, _),) = function._batches(function.ids[None])
    specials = np.array(function.model.vocab.specials, np.int32)
    params = {"network": function.model.weights}
    texts = alternatives.attended(part, params, batch, specials)
    return np.asarray(texts.weights)[0, 0, function.text]


def _rollout(function: Function, draw: np.random.Generator, steps: int) -> np.ndarray:
    return _read(function, rollout(function.maps()))


def _read(function: Function, weights: np.ndarray) -> np.ndarray:
    """Returns the weights [T] of a text at the tokens that predict, of weights [L, L]."""
    if function.question.kind == "span":
        rows = [function.place, function.index]
    elif function.question.kind == "mask":
        rows = [function.place]
    else:
        summary = summary_of(function.model.module.heads[function.question.head])
        ends = {"first": [0], "last": [-1]}
        rows = ends.get(summary.at if summary else "", range(len(weights)))
    return weights[rows].mean(0)[function.text]


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
    "attention": _attention,
    "rollout": _rollout,
}
"""{method: function of (prediction, random numbers, steps) -> scores [T]}."""
