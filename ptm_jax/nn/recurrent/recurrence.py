"""The scan of a recurrent cell over padded and packed rows, and the base of recurrent layers.

The input products of all tokens are computed before the scan. A step computes the products of the
state. The backward scan computes the gradients of the pre-activations. The gradient of a kernel is
then one product over all tokens; the transpose of a scan would add one product per token.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Array, record
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Context, Module

Product = Callable[[str, Array], Array]
Cell = Callable[[Product, Mapping[str, Array], Array, Any], tuple[Array, Any]]
"""(product, read, h, c) -> (h, c). `product(name, x)` is x @ kernels[name] + the inputs of that
name; `read` has the other inputs of the token. A hashable value."""


@record
class State:
    """The state after the last token of a row.

    It has h [B, P] and c [B, H] float32 (a GRU: None), and the token's segment [B] (0: no token
    yet). With `ends`, it has for each token [B, L, ...] the state after its document was read.
    """

    h: Any
    c: Any
    segment: Any


def recur(
    cell: Cell,
    inputs: Mapping[str, Array],
    kernels: Mapping[str, Array],
    segments: Array,
    state: State,
    *,
    masks: Mapping[str, Array] | None = None,
    backward: bool = False,
    precision: Precision = Precision(),
) -> tuple[Array, State]:
    """Returns (h of every token [L, B, P] float32, the last state).

    The inputs are [L, B, ...] and the kernels [in, out].

    The state is reset to zeros where the segment [B, L] changes. Padding (segment 0) does not
    change the state and has h = 0, so that `backward` reads each row from its own last token.
    `masks[name]` [B, in] multiplies the operand of a product: dropout that is the same for all
    tokens of a row (Gal and Ghahramani 2016, arXiv 1512.05287, section 4).
    """
    rule = _Rule(cell, backward, precision)
    arrays = _Arrays(dict(inputs), dict(kernels), masks or {}, segments.T, state)
    return _recur(rule, arrays)


class _Rule(NamedTuple):
    """The static arguments of a scan."""

    cell: Cell
    backward: bool
    precision: Precision


class _Arrays(NamedTuple):
    """The arrays of a scan: inputs [L, B, ...], kernels, masks, segments [L, B], the state before
    it."""

    inputs: dict[str, Array]
    kernels: dict[str, Array]
    masks: Mapping[str, Array]
    segments: Array
    state: State


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recur(rule, arrays):
    return _forward(rule, arrays)[0]


def _forward(rule, arrays):
    cell, backward, precision = rule
    inputs, kernels, masks, segments, before = arrays
    h, c = before.h, before.c
    real, same, last = continuing(segments, before.segment, backward)
    rounded = _rounded(kernels, precision)

    def step(state, token):
        read, real, same = token
        h, c = _where(same, state, 0.0)
        products = {}

        def product(name, x):
            x = x * masks[name] if name in masks else x
            y = precision.einsum("bi,io->bo", x, rounded[name], jnp.float32)
            products[name] = y + read[name].astype(jnp.float32) if name in read else y
            return products[name]

        new = cell(product, _others(read, kernels), h, c)
        return _where(real, new, state), (jnp.where(real[:, None], new[0], 0.0), h, c, products)

    (h, c), (states, *residuals) = jax.lax.scan(
        step, (h, c), (inputs, real, same), reverse=backward
    )
    return (states, State(h, c, last)), (inputs, kernels, masks, real, same, *residuals)


def _backward(rule, residuals, gradients):
    cell, backward, precision = rule
    inputs, kernels, masks, real, same, h, c, products = residuals
    rounded = _rounded(kernels, precision)

    def step(after, token):
        g, read, real, same, h, c, products = token

        def again(read, h, c, products):
            fed = {}

            def product(name, x):
                fed[name] = x * masks[name] if name in masks else x
                return _known(precision, fed[name], rounded[name], products[name])

            return cell(product, read, h, c), {name: x for name, x in fed.items() if x is not h}

        _, pull, fed = jax.vjp(again, read, h, c, products, has_aux=True)
        new, before = _where(real, after, 0.0), _where(~real, after, 0.0)
        dread, dh, dc, dfound = pull((jnp.where(real[:, None], new[0] + g, 0.0), new[1]))
        return jax.tree.map(jnp.add, _where(same & real, (dh, dc), 0.0), before), (
            dread,
            dfound,
            fed,
        )

    tokens = gradients[0], _others(inputs, kernels), real, same, h, c, products
    last = gradients[1]
    (dh, dc), (dread, dfound, fed) = jax.lax.scan(
        step, (last.h, last.c), tokens, reverse=not backward
    )
    dkernels = {}
    for name, kernel in kernels.items():
        product = functools.partial(precision.dense, fed.get(name, h), out=jnp.float32)
        dkernels[name] = jax.vjp(product, kernel)[1](dfound[name])[0]
    dinputs = {name: (dfound | dread)[name].astype(x.dtype) for name, x in inputs.items()}
    dmasks = jax.tree.map(jnp.zeros_like, masks)
    return (_Arrays(dinputs, dkernels, dmasks, None, State(dh, dc, None)),)


_recur.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _known(precision, x, kernel, value):
    """Returns `value`, the known result of x @ kernel + inputs.

    The gradient of the result is passed to the inputs.
    """
    return value


def _known_backward(precision, kernel, g):
    return precision.einsum("bo,io->bi", g, kernel, jnp.float32), None, g


_known.defvjp(lambda precision, x, kernel, value: (value, kernel), _known_backward)


def continuing(segments, segment, backward):
    """Returns which tokens are real, which continue a segment, and the last segment [B].

    The first two are [L, B]: a token continues if the state before it is of its own segment.
    """
    length = len(segments)
    real = segments > 0
    place = jnp.arange(length)[:, None]
    place = jnp.where(real, place, length if backward else -1)
    near = jax.lax.cummin(place, 0, reverse=True) if backward else jax.lax.cummax(place, 0)
    known = jnp.take_along_axis(segments, jnp.clip(near, 0, length - 1), 0)
    known = jnp.where((near >= 0) & (near < length), known, segment)  # the last segment read
    before = jnp.concatenate(
        [known[1:], segment[None]] if backward else [segment[None], known[:-1]]
    )
    return real, segments == before, known[0 if backward else -1]


def _where(condition, tree, other):
    """Returns leaves [B, ...] of the tree where the condition [B] holds, else of `other`.

    `other` is a tree or a number.
    """

    def choose(x, y):
        return jnp.where(condition[:, None], x, y)

    return (
        jax.tree.map(choose, tree, other)
        if isinstance(other, tuple)
        else jax.tree.map(lambda x: choose(x, other), tree)
    )


def _rounded(kernels, precision):
    """Returns the kernels in the type of products: they are cast once, not at every step."""
    return {name: kernel.astype(precision.dtype) for name, kernel in kernels.items()}


def _others(read, kernels):
    return {name: x for name, x in read.items() if name not in kernels}


@dataclasses.dataclass(frozen=True)
class Beside:
    """`cell` with h' = [h; c] [B, P + H]: the scan also returns the c of every token.

    width    P
    """

    cell: Cell
    width: int

    def __call__(self, product, read, h, c):
        h, c = self.cell(product, read, h[:, : self.width], c)
        return jnp.concatenate([h, c], -1), c


def ends_of(segments, backward: bool):
    """Returns the place [B, L] at which the reading of each token's document ends.

    segments are [B, L].
    """
    edge = jnp.pad(
        segments[:, 1:] != segments[:, :-1],
        ((0, 0), (1, 0) if backward else (0, 1)),
        constant_values=True,
    )
    place = jnp.arange(segments.shape[1])
    if backward:
        return jax.lax.cummax(jnp.where(edge, place, 0), 1)
    return jax.lax.cummin(jnp.where(edge, place, len(place) - 1), 1, reverse=True)


class Recurrent(Module):
    """Base of a layer in one direction: x [B, L, D], segments [B, L] -> (h [B, L, P], `State`).

    `state` is the last state of the previous row (None: zeros). `condition` [B, 1 or L, G] is added
    to the inputs of all gates. With `ends` it returns, for each token, the state after the token's
    document in place of the row's last state.

    weight_drop   dropout of the kernel of the state, the same for all rows (Merity et al. 2018,
                  arXiv 1708.02182, section 2)
    state_drop    dropout of the state in its products, the same for all tokens of a row (Gal and
                  Ghahramani 2016)
    state_initializer   initializer of the kernel of the state (None: `initializer`)
    """

    hidden: int
    backward: bool = False
    weight_drop: float = 0.0
    state_drop: float = 0.0
    initializer: Any = FanIn()
    state_initializer: Any = None
    precision: Precision = Precision()

    @property
    def width(self) -> int:
        """Size of h."""
        return self.hidden

    def empty_state(self, batch: int) -> State:
        """Returns the state before the first token."""
        raise NotImplementedError

    def kernel(self, name: str, shape: tuple[int, int], context: Context | None):
        """Returns a kernel of the state, with `weight_drop`."""
        kernel = self.param(name, self.state_initializer or self.initializer, shape)
        if context is None or not context.train or self.weight_drop == 0.0:
            return kernel
        keep = keep_mask(
            self.make_rng("dropout"), jnp.zeros((1,), jnp.int32), shape, self.weight_drop
        )[0]
        return jnp.where(keep, kernel / (1.0 - self.weight_drop), 0.0)

    def masks(self, names: tuple[str, ...], rows: int, context: Context | None) -> dict[str, Array]:
        """Returns the masks of `state_drop` for `recur`."""
        if context is None or not context.train or self.state_drop == 0.0:
            return {}
        keep = keep_mask(self.make_rng("dropout"), context.rows, (self.width,), self.state_drop)
        return dict.fromkeys(names, keep / (1.0 - self.state_drop))

    def scan(
        self,
        cell: Cell,
        inputs,
        kernels,
        segments,
        state: State | None,
        *,
        masks,
        ends: bool = False,
    ) -> tuple[Array, State]:
        """`recur` from the given or the empty state; h is [B, L, P] float32.

        Raises UserError for a state of other sizes.
        """

        def sizes(state):
            return [list(jnp.shape(leaf)) for leaf in jax.tree.leaves((state.h, state.c))]

        empty = self.empty_state(len(segments))
        state = empty if state is None else state
        if sizes(state) != sizes(empty):
            raise UserError(
                f"the state is {sizes(state)}, and this {type(self).__name__} of "
                f"{self.hidden} units needs {sizes(empty)}; "
                "give the last state of the same network and rows"
            )
        if ends and state.c is not None:
            cell, state = (
                Beside(cell, self.width),
                dataclasses.replace(state, h=jnp.concatenate([state.h, state.c], -1)),
            )
        options = {"masks": masks, "backward": self.backward, "precision": self.precision}
        states, state = recur(cell, inputs, kernels, segments, state, **options)
        states = jnp.moveaxis(states, 0, 1)
        if not ends:
            return states, state
        last_states = jnp.take_along_axis(states, ends_of(segments, self.backward)[..., None], 1)
        h, c = (
            last_states[..., : self.width],
            None if state.c is None else last_states[..., self.width :],
        )
        return states[..., : self.width], State(h, c, segments)


def reads_both(layer: nn.Module) -> bool:
    """Returns whether a recurrent layer reads a row in both directions."""
    return isinstance(layer, Bidirectional)


class Bidirectional(Module):
    """Two layers, one in each direction: x [B, L, D], segments [B, L] -> (h [B, L, 2 P], `State`).

    States of both directions are concatenated. The segment of the state is -1 if the directions end
    in different documents.
    """

    right: Recurrent
    left: Recurrent

    @property
    def width(self) -> int:
        return self.right.width + self.left.width

    def __call__(
        self, x, segments, state: None = None, context: Context | None = None, ends: bool = False
    ):
        (right, last), (left, first) = (
            way(x, segments, context=context, ends=ends) for way in (self.right, self.left)
        )

        def both(x, y):
            return None if x is None or y is None else jnp.concatenate([x, y], -1)

        segment = jnp.where(last.segment == first.segment, last.segment, -1)
        return both(right, left), State(both(last.h, first.h), both(last.c, first.c), segment)
