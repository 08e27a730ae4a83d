"""Tree-LSTM (Tai et al. 2015, arXiv 1503.00075): child-sum over dependencies, binary over
constituents."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.initializers import FanIn, Zeros
from ptm_jax.nn.layers import Dense, Module
from ptm_jax.nn.tree.forest import Forest, take
from ptm_jax.nn.tree.levelwise import downwards, upwards, walk


@dataclasses.dataclass(frozen=True)
class ChildSumCell:
    """Eq. 2 to 8. A child sends h, and c times the forget gate that its head has for it."""

    precision: Precision
    message = 2

    def __call__(self, params, x, read):
        h, c = (leaf[..., 0, :] for leaf in read)
        i, o, u = jnp.split(
            x["gates"] + self.precision.dense(h, params["gates"], out=jnp.float32), 3, -1
        )
        c = jax.nn.sigmoid(i) * jnp.tanh(u) + c
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        f = jax.nn.sigmoid(x["forget"] + self.precision.dense(h, params["forget"], out=jnp.float32))
        return h, (h, f * c)


@dataclasses.dataclass(frozen=True)
class ChainCell:
    """An LSTM along the path from the root.

    Miwa and Bansal 2016, arXiv 1601.00770, section 3.3.
    """

    precision: Precision
    message = 2

    def __call__(self, params, x, read):
        h, c = (leaf[..., 0, :] for leaf in read)
        i, o, u, f = jnp.split(
            x["gates"] + self.precision.dense(h, params["gates"], out=jnp.float32), 4, -1
        )
        c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f) * c
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, (h, c)


class ChildSumTreeLSTM(Module):
    """x [B, L, D], a `Forest` -> [B, L, H]: a node's state from its children's (section 3.1).

    both    concatenates the states of an LSTM from the root to every node (Miwa and Bansal 2016):
            [B, L, 2 H], so that a node sees its whole tree
    """

    logical_axes = {
        "state": ("width", None),
        "state_down": ("width", None),
        "forget": ("width", None),
    }

    hidden: int
    both: bool = False
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @property
    def reach(self) -> str:
        return "bidirectional" if self.both else "causal"

    @nn.compact
    def __call__(self, x, forest: Forest, context=None):
        def dense(size, name):
            return Dense(size, initializer=self.initializer, precision=self.precision, name=name)

        def kernel(name, parts):
            return self.param(name, self.initializer, (self.hidden, parts * self.hidden))

        up = dense(4 * self.hidden, "inputs")(x).astype(jnp.float32)
        gates, forget = up[..., : 3 * self.hidden], up[..., 3 * self.hidden :]
        inputs = {"gates": gates, "forget": take(forget, forest.heads)}
        params = {"gates": kernel("state", 3), "forget": kernel("forget", 1)}
        walks = [walk(ChildSumCell(self.precision), params, inputs, upwards(forest), self.hidden)]
        if self.both:
            inputs = {"gates": dense(4 * self.hidden, "inputs_down")(x).astype(jnp.float32)}
            params = {"gates": kernel("state_down", 4)}
            walks.append(
                walk(ChainCell(self.precision), params, inputs, downwards(forest), self.hidden)
            )
        return jnp.concatenate(walks, -1).astype(x.dtype), None


@dataclasses.dataclass(frozen=True)
class BinaryCell:
    """A cell of a binary tree LSTM: Eq. 9 to 14 with N = 2.

    A phrase has no input and a leaf no children. `x["count"]` is the number of children; the right
    part of a node with one child is the node's own word.
    """

    precision: Precision
    message = 2

    def __call__(self, params, x, read):
        own_c, own_o = jnp.split(x["leaf"], 2, -1)
        leaf = jax.nn.sigmoid(own_o) * jnp.tanh(own_c), own_c
        one, many = x["count"] == 1, x["count"] > 0
        (left, left_c), (right, right_c) = (
            tuple(leaf[..., part, :] for leaf in read) for part in range(2)
        )
        right, right_c = jnp.where(one, leaf[0], right), jnp.where(one, leaf[1], right_c)
        gates = self.precision.dense(
            jnp.concatenate([left, right], -1), params["state"], out=jnp.float32
        )
        i, forget_left, forget_right, o, u = jnp.split(gates + params["bias"], 5, -1)
        c = (
            jax.nn.sigmoid(i) * jnp.tanh(u)
            + jax.nn.sigmoid(forget_left) * left_c
            + jax.nn.sigmoid(forget_right) * right_c
        )
        c = jnp.where(many, c, leaf[1])
        h = jnp.where(many, jax.nn.sigmoid(o) * jnp.tanh(c), leaf[0])
        return h, (h, c)


class BinaryTreeLSTM(Module):
    """x [B, L, D], a `Forest` of binary trees -> [B, L, H] (section 3.2).

    As in the authors' code, a leaf has c = W x + b and a separate output gate. In a row without
    trees a token joins the words before it: ((a b) c).
    """

    logical_axes = {"state": ("width", None), "bias": (None,)}

    hidden: int
    initializer: Any = FanIn()
    precision: Precision = Precision()

    reach = "causal"

    @nn.compact
    def __call__(self, x, forest: Forest, context=None):
        dense = Dense(
            2 * self.hidden, initializer=self.initializer, precision=self.precision, name="inputs"
        )
        inputs = {
            "leaf": dense(x).astype(jnp.float32),
            "count": forest.children[..., None].astype(jnp.float32),
        }
        params = {
            "state": self.param("state", self.initializer, (2 * self.hidden, 5 * self.hidden))
        }
        params["bias"] = self.param("bias", Zeros(), (5 * self.hidden,))
        return walk(
            BinaryCell(self.precision), params, inputs, upwards(forest, 2), self.hidden
        ).astype(x.dtype), None
