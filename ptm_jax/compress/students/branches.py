"""FastBERT: classifiers on every layer of a frozen model.

They learn the top classifier's predictions (Liu et al. 2020, arXiv 2004.02178).
`inference.text.exits` lets rows leave at the first certain layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.compress.base import Compression
from ptm_jax.compress.matches.predictions import soft_targets
from ptm_jax.compress.students.from_teacher import stack_of
from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Params, Visibility, add_losses
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dense, Module
from ptm_jax.objectives.base import (
    AroundTask,
    makes_one_pass,
    name_of,
    prediction_weights,
    token_loss,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


BRANCH = "branch_"
"""Prefix of the names of the heads of the layers, which follows the number of the layer."""


class BranchHead(slots.ClassHead, Module):
    """Returns the logits [B, C] of a text from the states of layer `layer`.

    A dense layer to `width`, attention of `heads` heads, a dense layer on the first token, and one
    to the classes (section 3.1; the activations are the authors').
    """

    classes: int
    layer: int
    width: int = 128
    heads: int = 2
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    def reads(self, encoded, batch):
        return encoded.layers[self.layer], segments_of(batch)

    def example(self, encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, states, segments=None, *, table=None, context=None):
        def dense(size, name):
            return Dense(size, initializer=self.initializer, precision=self.precision, name=name)

        segments = jnp.ones(states.shape[:2], jnp.int32) if segments is None else segments
        full = Context(
            visibility=Visibility(jnp.maximum(segments, 1), segments), rows=jnp.arange(len(states))
        )
        attention = Attention(
            self.heads,
            self.width,
            initializer=self.initializer,
            precision=self.precision,
            name="attention",
        )
        narrow, _, _ = attention(jnp.tanh(dense(self.width, "narrow")(states)), full)
        first = jnp.tanh(dense(self.width, "dense")(narrow[:, 0]))
        return dense(self.classes, "classes")(first).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branched(AroundTask):
    """The sum over the branches of KL(p || q), p from the task's head and q from the branch.

    Deviation: the paper's Eq. 6 has KL(q || p); this is what the authors' program computes. At
    evaluation it is the loss of the task with that sum as a metric, `branches`.
    """

    branches: tuple[str, ...]

    def __post_init__(self):
        if not makes_one_pass(self.task) or self.task.head is None:
            raise ValueError(
                f"{name_of(self.task)} has no head on texts for branches to learn from; take "
                "a classification"
            )

    @property
    def tower(self) -> str:
        return self.task.tower

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = dataclasses.replace(towers[self.tower], train=False)
        encoded = tower(batch)
        task = self.task.of(tower, encoded, batch)
        top = tower.read(self.task.head, encoded, batch)
        weights, parts = prediction_weights(top, batch), []
        for name in self.branches:
            scores = tower.read(name, encoded, batch, None if key is None else named(key, name))
            divergence = soft_targets(scores, [jax.lax.stop_gradient(top)], 1.0)
            parts.append(
                token_loss(
                    divergence, weights, (scores.argmax(-1) == top.argmax(-1)), f"{name}_nll"
                )
            )
        return add_losses(*((1.0, part) for part in parts), (0.0, task))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FastBERT(Compression):
    """Trains a classifier on every layer below the last of a frozen fine-tuned model.

    The classifiers learn from the predictions of the model's own head (Liu et al. 2020, section
    3.2.3). Rows leave at the first layer whose normalised entropy is below a threshold (`ptm
    evaluate --speed`).

    Deviation: the top classifier is the model's own head in place of a branch of this form.
    """

    width: int = 128
    heads: int = 2
    tower: str = "main"

    owns = rf"/heads_{BRANCH}\d+/"
    minimises = "KL of each layer's classifier to the last"

    def __post_init__(self):
        if self.width < 1 or self.heads < 1 or self.width % self.heads:
            raise ValueError(
                f"width is {self.width}, heads {self.heads}; heads must divide the width of "
                "a branch"
            )

    def rewrite(self, system: System) -> Any:
        tower, task = system.towers[self.tower], system.objective
        layers, head = stack_of(tower).layers, slots.objective(task).head
        if head not in tower.heads or not isinstance(tower.heads[head], slots.ClassHead):
            raise ValueError(
                f"{name_of(task)} has no head of classes; fine-tune a classification first"
            )
        if layers < 2:
            raise ValueError("1 layer has no layer below it where a text could leave")

        def make(layer):
            return BranchHead(tower.heads[head].classes, layer, self.width, self.heads)

        made = {f"{BRANCH}{layer}": make(layer) for layer in range(1, layers)}
        towers = {**system.towers, self.tower: tower.clone(heads={**tower.heads, **made})}
        return dataclasses.replace(
            system, towers=towers, objective=Branched(task=task, branches=tuple(made))
        )

    def trainable(self, path: str, step: Step) -> bool:
        return f"/heads_{BRANCH}" in path

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        task = system.objective.task if isinstance(system.objective, Branched) else system.objective
        others = tuple(wrapper for wrapper in system.compress if wrapper != self)
        return dataclasses.replace(system, objective=task, compress=others), params
