"""Adaptive inference of a model with a classifier on every layer.
FastBERT: Liu et al. 2020, arXiv 2004.02178, section 3.3. A row leaves the batch at the first layer
that is certain, and the layers above compute the remaining rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.compress.students.branches import BRANCH
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import context_of
from ptm_jax.inference import inputs
from ptm_jax.inference.outputs import Output
from ptm_jax.inference.pretrained import Pretrained

HEAD = "classify"


@dataclasses.dataclass(frozen=True)
class Early:
    """Scores [R, C] of texts, and the layer [R] at which each left (N: the last)."""

    scores: np.ndarray
    layers: np.ndarray


class EarlyExit(Pretrained):
    """A model that classifies texts by `classify` at a `speed`.
    `passed` lists the layer at which each text left.

    Raises UserError for a model without classifiers on its layers, or a speed outside [0, 1].
    """

    def __init__(self, model: Pretrained, speed: float):
        check(model, speed)
        for name in (field.name for field in dataclasses.fields(model)):
            object.__setattr__(self, name, vars(model)[name])
        object.__setattr__(self, "speed", speed)
        object.__setattr__(self, "passed", [])

    def __call__(
        self, input_ids=None, attention_mask=None, token_type_ids=None, **options
    ) -> Output:
        """An `Output` with the scores of the texts alone."""
        batch = self._batch(input_ids, attention_mask, token_type_ids, None, None)
        rows, _ = inputs.shape_of(input_ids, None)
        classified = classify(
            self, {name: np.asarray(value)[:rows] for name, value in batch.items()}, self.speed
        )
        self.passed.extend(classified.layers.tolist())
        return Output(hidden=None, scores={HEAD: classified.scores})

    @property
    def cost(self) -> float:
        """Mean share of the layers that the texts so far passed."""
        return float(np.mean(self.passed) / self.module.encoder.stack.layers)


def check(model: Pretrained, speed: float) -> None:
    """Raises UserError for a model without classifiers on its layers, or a speed outside [0, 1]."""
    if not any(name.startswith(BRANCH) for name in model.module.heads):
        raise UserError(
            f"{model.system.name} has no classifiers on its layers; compress it with `ptm "
            "compress fastbert`"
        )
    if not 0 <= speed <= 1:
        raise UserError(f"speed is {speed}; it must be in [0, 1], 0 for all layers")


def uncertainty(scores: np.ndarray) -> np.ndarray:
    """Returns the entropy of softmax(scores [.., C]) over log C, in [0, 1] (Eq. 7)."""
    scores = np.asarray(scores, np.float64)
    scores = scores - scores.max(-1, keepdims=True)
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return -(p * np.log(np.maximum(p, 1e-30))).sum(-1) / np.log(scores.shape[-1])


def classify(model: Pretrained, batch: Batch, speed: float) -> Early:
    """Classifies the rows of a batch (`input_ids` [R, L] and the encoder's other inputs).
    A row leaves at the first layer whose uncertainty is below `speed`, in [0, 1]; 0: none does.

    The rows that are left are packed into the next power of two, so that few programs are compiled.
    """
    module, params = model.module, model.params[model.tower]
    branches = {int(name.removeprefix(BRANCH)) for name in module.heads if name.startswith(BRANCH)}
    count, top = len(batch["input_ids"]), module.encoder.stack.layers
    rows, size = np.arange(count), _bucket(count)
    batch = {name: np.asarray(value)[_filled(rows, size)] for name, value in batch.items()}
    states, scores, left = _embed(module, params, batch), None, np.full(count, top)
    for layer in range(1, top + 1):
        states = _layer(module, params, states, batch, layer - 1)
        if layer < top and layer not in branches:
            continue
        head = HEAD if layer == top else f"{BRANCH}{layer}"
        scores_of_rows = np.asarray(_read(module, params, states, batch, head))[: len(rows)]
        scores = (
            np.zeros((count, scores_of_rows.shape[-1]), scores_of_rows.dtype)
            if scores is None
            else scores
        )
        leaves = uncertainty(scores_of_rows) < speed if layer < top else np.ones(len(rows), bool)
        scores[rows[leaves]], left[rows[leaves]] = scores_of_rows[leaves], layer
        stay = np.flatnonzero(~leaves)
        if not len(stay):
            break
        rows, pick = rows[stay], _filled(stay, _bucket(len(stay)))
        batch, states = {name: value[pick] for name, value in batch.items()}, states[pick]
    return Early(scores, left)


def _bucket(rows: int) -> int:
    return 1 << max(0, rows - 1).bit_length()


def _filled(rows: Sequence[int] | np.ndarray, size: int) -> np.ndarray:
    """Returns the rows and repetitions of the first up to a size."""
    return np.concatenate([rows, np.repeat(rows[:1], size - len(rows))]).astype(np.int64)


@functools.partial(jax.jit, static_argnums=0)
def _embed(module, params, batch):
    encoder = module.encoder
    context = context_of(batch, encoder.direction, False)
    return encoder.embed.clone(parent=None, name=None).apply(
        {"params": params["encoder"]["embed"]}, batch, context
    )


@functools.partial(jax.jit, static_argnums=0)
def _layer(module, params, states, batch, layer):
    encoder = module.encoder
    context = context_of(batch, encoder.direction, False)
    params_of_layer = jax.tree.map(lambda leaf: leaf[layer], params["encoder"]["stack"]["block"])
    return encoder.stack.block.clone(parent=None, name=None).apply(
        {"params": params_of_layer}, states, context
    )[0]


@functools.partial(jax.jit, static_argnums=(0, 4))
def _read(module, params, states, batch, name):
    tower = Tower(module, params)
    if name == HEAD:
        stack = module.encoder.stack
        norm = params["encoder"]["stack"].get("final_norm", {})
        states = stack.final_norm.clone(parent=None, name=None).apply({"params": norm}, states)
        return tower.read(name, Encoded(states), batch)
    layer = module.heads[name].layer
    return tower.read(
        name, Encoded(states, layers=jnp.broadcast_to(states, (layer + 1, *states.shape))), batch
    )
