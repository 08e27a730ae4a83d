"""States and attention of the words of sentences, reduced on the device, layer by layer.

The pieces of a word are joined as Kim et al. (2020, section 3.2) do: the mean of their states; the
attention that a word receives is the sum over its pieces, and the attention that it gives is their
mean. A sentence has no special tokens, as in their code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import Network
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.inference import inputs
from ptm_jax.nn.attention.multihead import with_maps
from ptm_jax.nn.attention.reduced_maps import reduced
from ptm_jax.nn.stacks import stacks_of
from ptm_jax.tasks.probes.word_states import MEMORY, batch_of

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

Arrays = dict[str, Array]


class Reduction(NamedTuple):
    """What a program returns of a batch.

    of_states  states [N+1, B, W, D] of words -> {name: [N, B, ...]}
    of_maps    maps [B, H, W, W] of a layer, and pairs [B, P, 2] of words -> {name: [B, H, ...]}
    """

    of_states: Callable[[Array], Arrays]
    of_maps: Callable[[Array, Array], Arrays]


def of_sentences(
    model: Pretrained, records: Sequence[dict[str, np.ndarray]], reduction: Reduction,
    pairs: Sequence[np.ndarray] | None = None, *, batch: int = 32, memory: float = MEMORY,
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:  # fmt: skip
    """Yields the number of each record, and its arrays [N, ...] and [N, H, ...]; padding has any
    values. An encoder without attention has no arrays of maps.

    records  of `word_states.fitting_records` without special tokens
    pairs    [P, 2] words of each sentence
    memory   GB of the layers of a batch and of the maps of one layer
    """
    rows, encoder = [record["ids"] for record in records], model.module.encoder
    if not rows:
        return
    if encoder.direction == "both" and stacks_of(encoder):
        raise UserError(f"{model.system.name} has two towers; no probe reads the maps of both")
    module = with_maps(model.module)
    pairs = [np.zeros((1, 2), np.int32)] * len(rows) if pairs is None else pairs
    program = functools.partial(_forward, module, reduction, model.weights)
    states, maps = _forward.eval_shape(
        module, Reduction(_sizes, _first), model.weights, _operands(model, records[:1], pairs[:1])
    )
    if states is None:
        raise UserError(f"the layers of {model.system.name} differ in width; no probe reads them")
    heads = maps["heads"].shape[2] if maps else 0
    layers, _, width = states["sizes"].shape
    longest = max(map(len, rows))
    size = batch_of(batch, longest, 4 * layers * width, memory, 4 * MAPS * heads)
    for chosen in inputs.batches(rows, size):
        several = [[each[i] for i in chosen] for each in (records, pairs)]
        states, maps = jax.device_get(program(_operands(model, *several)))
        for place, number in enumerate(chosen):
            arrays = {**states, **(maps or {})}.items()
            yield number, {name: array[:, place] for name, array in arrays}


MAPS = 4
"""Arrays [B, H, L, L] of a layer: scores, probabilities, and those of words."""


def _sizes(states: Array) -> Arrays:
    return {"sizes": states[:, :, 0]}


def _first(maps: Array, pairs: Array) -> Arrays:
    return {"heads": maps[:, :, 0, 0]}


def _operands(
    model: Pretrained, records: Sequence[dict[str, np.ndarray]], pairs: Sequence[np.ndarray]
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """Returns a padded batch, which word [B, L, W] each piece is of, and pairs [B, P, 2]."""
    batch = model._batch(*inputs.rectangle([one["ids"] for one in records], model.vocab.pad))
    count, length = batch["input_ids"].shape
    words = np.zeros((count, length, length), np.float32)
    room = -(-max(map(len, pairs)) // 32) * 32
    padded = np.zeros((count, room, 2), np.int32)
    for row, (record, several) in enumerate(zip(records, pairs, strict=True)):
        sizes = record["sizes"]
        words[row, np.arange(sizes.sum()), np.repeat(np.arange(len(sizes)), sizes)] = 1
        padded[row, : len(several)] = several
    return batch, words, padded


@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward(
    module: Network, reduction: Reduction, params: Params, operands: tuple[Batch, Array, Array]
) -> tuple[Arrays | None, Arrays | None]:
    batch, words, pairs = operands
    shares = words / jnp.maximum(words.sum(1, keepdims=True), 1)
    layers_with_maps = []

    def of_layer(maps: Array) -> Arrays:
        layers_with_maps.append(maps)
        maps = maps[..., -words.shape[1] :].astype(jnp.float32)
        received = jnp.einsum("bhqk,bkw->bhqw", maps, words)
        return reduction.of_maps(jnp.einsum("bhqw,bqv->bhvw", received, shares), pairs)

    with reduced(of_layer):
        encoded = Tower(module, params)(batch)
    maps = encoded.attention if layers_with_maps else None
    if encoded.layers is None:
        return None, maps
    layers = encoded.layers.at[-1].set(encoded.hidden).astype(jnp.float32)
    return reduction.of_states(jnp.einsum("nbld,blw->nbwd", layers, shares)), maps
