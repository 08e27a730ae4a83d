"""The states of every layer for the tokens of texts, also carried from text to text.
Peters et al. 2018, section 3.3."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch
from ptm_jax.inference import inputs

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.types import Params
    from ptm_jax.inference.pretrained import Pretrained


def encode(
    model: Pretrained, texts: Any, batch_size: int, specials: bool, carry: bool
) -> list[Any]:
    """`Pretrained.encode` with `layers`.
    Raises UserError for an encoder without a state, or lists of several lengths."""
    if not carry:
        texts = inputs.texts_of(texts)
        rows, text_states = (
            [_rows(model, [text], specials)[0] for text in texts],
            [None] * len(texts),
        )
        for chosen in inputs.batches(rows, batch_size):
            for number, states in zip(
                chosen, _states(model, [rows[i] for i in chosen], None)[0], strict=True
            ):
                text_states[number] = states
        return text_states
    if not model.module.encoder.carries:
        raise UserError(
            f"the encoder of {model.system.name} has no state that could be carried; leave "
            "carry out"
        )
    text_states, memory, batches = [], None, [inputs.texts_of(batch) for batch in texts]
    for number, batch in enumerate(batches, 1):
        if len(batch) != len(batches[0]):
            raise UserError(
                f"list {number} has {len(batch)} texts and the first {len(batches[0])}; all "
                "need the same number"
            )
        states, memory = _states(model, _rows(model, batch, specials), memory)
        text_states.append(states)
    return text_states


def _rows(model: Pretrained, texts: Sequence[str], specials: bool) -> list[np.ndarray]:
    rows = [inputs.framed(model, row) for row in model._tokenizer().encode_batch(texts, specials)]
    model._check(rows)
    return rows


def _states(
    model: Pretrained, rows: Sequence[np.ndarray], memory: Any, specials: bool = False
) -> tuple[list[np.ndarray], Any]:
    """Returns the states [N+1, T, D] of each row, and the memory after it. Special tokens of the
    frame have states with `specials` alone."""
    batch = model._batch(*inputs.rectangle(rows, model.vocab.pad))
    if memory is not None:
        batch["carry"] = memory
    layers, memory = _forward(model.module, model.weights, batch)
    if layers is None:
        raise UserError(f"the layers of {model.system.name} differ in width; leave layers out")
    layers, frame = np.asarray(layers), inputs.framed(model, np.array([-1], np.int32))
    if specials:
        return [layers[:, number, : len(row)] for number, row in enumerate(rows)], memory
    before = int(np.flatnonzero(frame == -1)[0])
    return [
        layers[:, number, before : before + len(row) - len(frame) + 1]
        for number, row in enumerate(rows)
    ], memory


@functools.partial(jax.jit, static_argnums=(0,))
def _forward(module: Network, params: Params, batch: Batch) -> tuple[Any, Any]:
    encoded = Tower(module, params)(batch)
    layers = encoded.layers
    return None if layers is None else layers.at[-1].set(encoded.hidden), encoded.memory
