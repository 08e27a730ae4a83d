"""A text read by the LSTMs of several tasks (Liu et al. 2016, arXiv 1605.05101)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.encoders.encoder_traits import SelectsTask
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Dropout
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.nn.recurrent.shared_cells import Sharing, SharingLSTM
from ptm_jax.objectives.text.text_traits import BeginsWithLanguageModels


class SharingEncoder(Embedded, BeginsWithLanguageModels, SelectsTask):
    """Maps a batch of one task to the states [B, L, H] of that task's LSTM, left to right.

    The cells are in `nn.recurrent.shared_cells`.

    count    number of tasks. The task is `batch["task"][0]`, as in `tasks.formats.mixed`, or
             `task`; else it is the first
    task_width   "uniform": width of each task's word vectors, which are concatenated with the
             vectors of `embed` (section 4.1)
    shared   "shared": the layer that all tasks share (section 4.3). `Experiment.init` may name it
             "shared": it and the embeddings begin with a bidirectional language model of one layer
             (section 5.2)
    """

    logical_axes = {"own": (None, "vocab", "width")}

    embed: nn.Module
    kind: Sharing
    hidden: int = 50
    count: int = 2
    task: int | None = None
    task_width: int = 0
    shared: Bidirectional | None = None
    dropout: float = 0.0
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @property
    def direction(self) -> slots.Direction:
        return "causal" if self.shared is None else "bidirectional"

    @property
    def language_models(self) -> Mapping[str, Mapping[str, str]]:
        if self.shared is None:
            return {}
        moves = {f"encoder/{way}_0/": f"encoder/shared/{way}/" for way in ("right", "left")}
        return {"shared": {"encoder/embed/": "encoder/embed/", **moves}}

    def of_task(self, number: int) -> SharingEncoder:
        return dataclasses.replace(self, task=number) if self.task is None else self

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context = context_of(batch, self.direction, train)
        segments, x = context.visibility.k_segments, self.embed(batch, context)
        task = jnp.asarray(
            batch["task"][0] if self.task is None and "task" in batch else self.task or 0
        )
        if self.task_width:
            tables = self.param(
                "own", self.initializer, (self.count, self.embed.vocab.size, self.task_width)
            )
            x = jnp.concatenate([x, tables[task, batch["input_ids"]].astype(x.dtype)], -1)
        x = Dropout(self.dropout)(x, context)
        beside = None if self.shared is None else self.shared(x, segments, context=context)[0]
        reads = SharingLSTM(
            self.kind, self.hidden, self.count, self.initializer, self.precision, name="tasks"
        )
        return Encoded(Dropout(self.dropout)(reads(x, beside, task, segments), context))
