"""Recursive networks over binary trees: Socher et al. 2012 (EMNLP), and the tensor network of
Socher et al. 2013 (EMNLP).

p = tanh(W [a; b] + c)                                  RecursiveNN
p = tanh([a; b]^T V [a; b] + W [a; b] + c)              RNTN, V [2 D, 2 D, D] (section 4.3)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.initializers import FanIn, Normal, Zeros
from ptm_jax.nn.layers import Module
from ptm_jax.nn.tree.forest import Forest
from ptm_jax.nn.tree.levelwise import upwards, walk


@dataclasses.dataclass(frozen=True)
class RecursiveCell:
    """A cell of a recursive network, in which a leaf is its word's vector.

    The right part of a node with one child is the node's own word.
    """

    precision: Precision
    message = 1

    def __call__(self, params, x, read):
        left, right = read[0][..., 0, :], read[0][..., 1, :]
        right = jnp.where(x["count"] == 1, x["words"], right)
        both = jnp.concatenate([left, right], -1)
        p = self.precision.dense(both, params["state"], out=jnp.float32) + params["bias"]
        if "tensor" in params:
            products = self.precision.dense(both, params["tensor"], out=jnp.float32)
            products = products.reshape(*both.shape, -1)
            p = p + (products * both[..., None]).sum(-2)
        h = jnp.where(x["count"] > 0, jnp.tanh(p), x["words"])
        return h, (h,)


class RecursiveNN(Module):
    """x [B, L, D], a `Forest` of binary trees -> [B, L, D].

    `tensor`: the RNTN. In a row without trees a token joins the words before it: ((a b) c).
    """

    logical_axes = {"state": ("width", None), "tensor": ("width", None), "bias": (None,)}

    tensor: bool = False
    initializer: Any = FanIn()
    tensor_initializer: Any = Normal(0.01)
    precision: Precision = Precision()

    reach = "causal"

    @nn.compact
    def __call__(self, x, forest: Forest, context=None):
        width = x.shape[-1]
        inputs = {
            "words": x.astype(jnp.float32),
            "count": forest.children[..., None].astype(jnp.float32),
        }
        params = {"state": self.param("state", self.initializer, (2 * width, width))}
        params["bias"] = self.param("bias", Zeros(), (width,))
        if self.tensor:
            params["tensor"] = self.param(
                "tensor", self.tensor_initializer, (2 * width, 2 * width * width)
            )
        return walk(
            RecursiveCell(self.precision), params, inputs, upwards(forest, 2), width
        ).astype(x.dtype), None
