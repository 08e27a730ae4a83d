"""Structured removal: layers of a tower as a list, and removal or gates of heads and units."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import towers
from ptm_jax.core.networks import Network
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Batch, Params
from ptm_jax.encoders.transformer import transformer
from ptm_jax.nn import uneven
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward

if TYPE_CHECKING:
    from ptm_jax.core.system import System


Layer = tuple[Block, Params]
"""A block and the parameters of one layer."""
KERNELS = {"heads": "attention/out/kernel", "columns": "ffn/down/kernel"}
"""{part: the kernel whose axis 0, in a layer, is the heads or hidden units: a gate of 0 there
removes one}."""


def layers_of(tower: Network, params: Params) -> list[Layer]:
    """Returns the layers of a tower.

    Raises ValueError for another encoder than a Transformer with layers of their own.
    """
    stack = transformer.stack_of(tower.encoder)
    if not uneven.is_separate(stack):
        raise ValueError(
            "its layers share parameters, or are no Transformer's; take a BERT, RoBERTa, "
            "ELECTRA or GPT"
        )
    trees = uneven.layers_of(stack, params["encoder"]["stack"])
    return list(zip(uneven.blocks_of(stack), trees, strict=True))


def with_layers(tower: Network, params: Params, layers: Sequence[Layer]) -> tuple[Any, Params]:
    """Returns the tower and its parameters with these layers.

    A `Stack` if they are of one size, else an `UnevenStack`.
    """
    stack = uneven.stack_of([block for block, _ in layers], tower.encoder.stack)
    if uneven.is_uneven(stack) and tower.encoder.writes:
        raise ValueError(
            "it decodes with one cache for all layers, which must be of one size; remove "
            "hidden units"
        )
    inner = uneven.of_layers(stack, [tree for _, tree in layers])
    others = {
        name: tree
        for name, tree in params["encoder"]["stack"].items()
        if not name.startswith("block")
    }
    tower = dataclasses.replace(tower, encoder=dataclasses.replace(tower.encoder, stack=stack))
    return tower, {**params, "encoder": {**params["encoder"], "stack": {**others, **inner}}}


def changed(
    system: System,
    params: Params,
    names: Sequence[str],
    change: Callable[[str, list[Layer]], Sequence[Layer]],
) -> tuple[Any, Params]:
    """Returns the system and {tower: parameters} with changed layers.

    `change(tower, layers)` returns the layers of each of the towers `names`.
    """
    for name in names:
        layers = change(name, layers_of(system.towers[name], params[name]))
        tower, tree = with_layers(system.towers[name], params[name], layers)
        system = dataclasses.replace(system, towers={**system.towers, name: tower})
        params = {**params, name: tree}
    return system, params


def sizes(layers: Sequence[Layer], part: str) -> list[int]:
    """Returns the number of heads or hidden units ("columns") of each layer.

    Raises ValueError for layers without them.
    """
    wanted = {"heads": ("attention", Attention), "columns": ("ffn", FeedForward)}
    name, kind = wanted[part]
    if any(type(vars(block)[name]) is not kind for block, _ in layers):
        raise ValueError(f"its layers have no plain {kind.__name__}; choose another compression")
    return [block.attention.heads if part == "heads" else block.ffn.hidden for block, _ in layers]


def kept(layers: Sequence[Layer], part: str, chosen: Iterable[Any]) -> list[Layer]:
    """Returns the layers with only the `chosen` heads or hidden units of each.

    Matrices are really smaller.
    """
    sizes(layers, part)
    return [
        _kept(layer, part, np.asarray(indices))
        for layer, indices in zip(layers, chosen, strict=True)
    ]


def _kept(layer: Layer, part: str, indices: np.ndarray) -> Layer:
    block, flat = layer[0], flatten(layer[1])
    if part == "heads":
        attention = block.attention
        if attention.key_heads:
            raise ValueError(
                f"its heads share {attention.key_heads} heads of keys; remove hidden units"
            )
        if attention.relative is not None:
            raise ValueError(
                f"its heads have {type(attention.relative).__name__}, made for all heads; "
                "remove hidden units"
            )
        block, names = (
            dataclasses.replace(block, attention=uneven.with_heads(attention, len(indices))),
            r"^attention/(query|key|value)/",
        )
    else:
        ffn = dataclasses.replace(block.ffn, hidden=len(indices))
        block, names = dataclasses.replace(block, ffn=ffn), r"^ffn/(up|gate)/"
    for path, leaf in flat.items():
        if re.search(names, path):
            flat[path] = np.take(leaf, indices, int(path.endswith("/kernel")))
        elif path == KERNELS[part]:
            flat[path] = np.take(leaf, indices, 0)
    return block, unflatten(flat)


def gated(params: Params, gates: Sequence[Any], part: str) -> Params:
    """Multiplies each head's or hidden unit's rows of the output kernel by its gate.

    gates    [H] per layer
    part     "heads" or "columns", the key of `KERNELS`
    """
    flat, kernel = flatten(params), KERNELS[part]
    for path, leaf in flat.items():
        match = re.fullmatch(rf"encoder/stack/block(?:s_(\d+))?/{kernel}", path)
        if match:
            gate = jnp.stack(list(gates)) if match[1] is None else gates[int(match[1])]
            flat[path] = leaf * gate.reshape(gate.shape + (1,) * (leaf.ndim - gate.ndim))
    return unflatten(flat)


def row_loss(
    system: System, params: Params, part: str, name: str = "main"
) -> Callable[[Any, Batch], tuple[Any, Any]]:
    """Returns the loss of a row as a function of gates, without dropout.

    The function is (gates, row of a batch) -> (loss, weight) of the system's objective.
    """
    params = jax.tree.map(jnp.asarray, params)

    def loss(gates, row):
        bound = towers.bind(system.towers, {**params, name: gated(params[name], gates, part)})
        batch = {field: value[None] for field, value in row.items()} | {
            "step": jnp.zeros((), jnp.int32)
        }
        row_loss = system.objective(bound, batch, jax.random.key(0))
        return jnp.sum(row_loss.sum), jnp.sum(jnp.asarray(row_loss.weight))

    return loss


def importance(
    loss: Callable[..., Any], gates: Sequence[Any], batches: Iterator[Batch]
) -> list[np.ndarray]:
    """Returns the importance I_h = E_x |dL(x) / dxi_h| of each gate, [H] for each layer.

    It is divided by the norm of its layer, as Michel et al. (2019, arXiv 1905.10650, section 4.1,
    Eq. 2) do. Raises ValueError without rows.
    """
    slope = jax.grad(loss, has_aux=True)

    def one(gates, row):
        return jax.tree.map(jnp.abs, slope(gates, row))

    work = jax.jit(
        lambda gates, batch: jax.lax.map(lambda row: one(gates, row), batch, batch_size=8)
    )
    total, rows = [np.zeros(gate.shape) for gate in gates], 0
    for batch in batches:
        slopes, weight = work(list(gates), batch)
        total = [old + np.asarray(new).sum(0) for old, new in zip(total, slopes, strict=True)]
        rows += int((np.asarray(weight) > 0).sum())
    if not rows:
        raise ValueError("there are no rows to measure it on; give some examples")
    return [one / rows / (np.linalg.norm(one / rows) + 1e-20) for one in total]


def ablation(
    loss: Callable[..., Any], gates: Sequence[Any], batches: Iterator[Batch]
) -> list[np.ndarray]:
    """Returns the loss without each single head or unit minus the loss with it.

    It is the mean of all rows, [H] for each layer (Michel et al. 2019, section 3.2). Raises
    ValueError without rows.
    """
    work = jax.jit(
        lambda gates, batch: jax.tree.map(
            lambda part: part.sum(), jax.vmap(loss, (None, 0))(gates, batch)
        )
    )
    rows = list(batches)

    def mean(gates):
        losses = [work(gates, batch) for batch in rows]
        return sum(float(part) for part, _ in losses) / sum(float(weight) for _, weight in losses)

    if not rows:
        raise ValueError("there are no rows to measure it on; give some examples")
    gates = [np.asarray(gate, np.float32) for gate in gates]
    full, losses = mean(gates), [np.zeros(gate.shape) for gate in gates]
    for layer, gate in enumerate(gates):
        for head in np.flatnonzero(gate):
            without = [gate.copy() for gate in gates]
            without[layer][head] = 0
            losses[layer][head] = mean(without) - full
    return losses
