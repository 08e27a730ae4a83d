"""A recursive cell over trees, one step per level: one program for every tree, no recursion.

A node reads slots of a memory and adds a message to one slot. Upwards, a child adds to the slot of
its head; downwards, a node writes its own slot, which its children read. The backward pass walks
the steps in reverse on the final memory: a slot does not change after it was read, so nothing else
is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array, record
from ptm_jax.nn.tree.forest import Forest, schedule, take

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


WIDTH = 8
"""Nodes of a row that a step computes."""


@record
class Plan:
    """nodes [B, S, W] and the number of steps (`schedule`); reads [B, L, K] and writes [B, L]:
    slots of every node. The memory has R slots; a node without a slot reads R, which is zero, and
    writes R + 1, which is nowhere."""

    nodes: Any
    steps: Any
    reads: Any
    writes: Any


def upwards(forest: Forest, slots: int = 1) -> tuple[Plan, int]:
    """Returns (plan, R) of a walk from the leaves.

    With `slots` 1, the messages of all children are added; with 2, the first child has a slot of
    its own and the others share the second.
    """
    length = forest.heads.shape[1]
    root = forest.heads == length
    writes = forest.heads * slots + (jnp.where(forest.first, 0, 1) if slots == 2 else 0)
    reads = jnp.arange(length)[:, None] * slots + jnp.arange(slots)
    reads = jnp.broadcast_to(reads, (len(root), *reads.shape))
    nodes, steps = schedule(forest.levels, forest.real, WIDTH)
    return Plan(nodes, steps, reads, jnp.where(root, slots * length + 1, writes)), slots * length


def downwards(forest: Forest) -> tuple[Plan, int]:
    """Returns (plan, R) of a walk from the roots: a node reads the message of its head."""
    length = forest.heads.shape[1]
    itself = jnp.broadcast_to(jnp.arange(length), forest.heads.shape)
    nodes, steps = schedule(forest.depths, forest.real, WIDTH)
    return Plan(nodes, steps, forest.heads[..., None], itself), length


def walk(cell, params: Params, inputs: Any, plan: tuple[Plan, int], hidden: int) -> Array:
    """Returns the outputs [B, L, H] float32 of all nodes; 0 for padding.

    cell(params, x, read) -> (h [B, W, H], message) in float32: x has the inputs' leaves [B, W, ...]
    at the nodes, `read` the messages' leaves [B, W, K, H] of their slots. A message has the leaves
    of `cell.message`, a number of vectors [H].
    """
    return _walk(_Rule(cell, plan[1], hidden), params, inputs, plan[0])


class _Rule(NamedTuple):
    """The static arguments of a walk: the cell, the number R of messages, and H."""

    cell: Callable[..., tuple[Array, tuple[Array, ...]]]
    messages: int
    hidden: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _walk(rule, params, inputs, plan):
    return _forward(rule, params, inputs, plan)[0]


def _at(plan, inputs, memory, step):
    """Returns (nodes, slots to read, slot to write, inputs, values read) of a step."""
    nodes = plan.nodes[:, step]

    def fill(slots, value):
        return jax.vmap(lambda s, at: s.at[at].get(mode="fill", fill_value=value))(slots, nodes)

    none = memory[0].shape[1]
    reads, writes = fill(plan.reads, none), fill(plan.writes, none)
    gathered = jax.tree.map(lambda leaf: take(leaf, nodes), inputs)
    return nodes, reads, writes, gathered, tuple(take(leaf, reads) for leaf in memory)


def _forward(rule, params, inputs, plan):
    cell, messages, hidden = rule
    rows, length = plan.writes.shape
    empty = tuple(jnp.zeros((rows, messages + 1, hidden)) for _ in range(cell.message))

    def body(step, state):
        out, memory = state
        nodes, _, writes, x, read = _at(plan, inputs, memory, step)
        h, message = cell(params, x, read)
        memory = tuple(_add(leaf, writes, part) for leaf, part in zip(memory, message, strict=True))
        return _add(out, nodes, h), memory

    out, memory = jax.lax.fori_loop(0, plan.steps, body, (jnp.zeros((rows, length, hidden)), empty))
    return out, (params, inputs, plan, memory)


def _backward(rule, residuals, g):
    params, inputs, plan, memory = residuals

    def zeros(tree):
        return jax.tree.map(jnp.zeros_like, tree)

    def body(number, state):
        dparams, dinputs, dmemory = state
        nodes, reads, writes, x, read = _at(plan, inputs, memory, plan.steps - 1 - number)
        _, pull = jax.vjp(rule.cell, params, x, read)
        gradients = pull((take(g, nodes), tuple(take(leaf, writes) for leaf in dmemory)))
        dparams = jax.tree.map(jnp.add, dparams, gradients[0])
        dinputs = jax.tree.map(lambda leaf, part: _add(leaf, nodes, part), dinputs, gradients[1])
        dmemory = tuple(
            _add(leaf, reads, part) for leaf, part in zip(dmemory, gradients[2], strict=True)
        )
        return dparams, dinputs, dmemory

    dparams, dinputs, _ = jax.lax.fori_loop(
        0, plan.steps, body, (zeros(params), zeros(inputs), zeros(memory))
    )
    return dparams, dinputs, None


_walk.defvjp(_forward, _backward)


def _add(values: Array, places: Array, parts: Array) -> Array:
    """Adds parts [B, ..., H] at places [B, ...] of values [B, R, H]; nowhere for a place
    outside."""
    return jax.vmap(lambda value, at, part: value.at[at].add(part, mode="drop"))(
        values, places, parts
    )
