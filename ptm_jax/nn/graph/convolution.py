"""Graph convolutions over trees.

Kipf and Welling 2017, arXiv 1609.02907; Marcheggiani and Titov 2017, arXiv 1703.04826.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.initializers import FanIn, Zeros
from ptm_jax.nn.layers import Dense, Module, activate, drop
from ptm_jax.nn.tree.forest import Forest, take


def to_heads(x, forest: Forest):
    """Adds the vectors [B, L, D] of the nodes at their heads."""
    return jax.vmap(lambda x, heads: jnp.zeros_like(x).at[heads].add(x, mode="drop"))(
        x, forest.heads
    )


class GCN(Module):
    """relu(D^-1/2 (A + I) D^-1/2 X W), A the undirected tree: [B, L, H].

    Kipf and Welling 2017, Eq. 2.
    """

    hidden: int
    initializer: Any = FanIn()
    precision: Precision = Precision()

    reach = "bidirectional"

    @nn.compact
    def __call__(self, x, forest: Forest, context=None):
        dense = Dense(
            self.hidden,
            bias=False,
            initializer=self.initializer,
            precision=self.precision,
            name="inputs",
        )
        degree = 1 + forest.children + (forest.heads < forest.heads.shape[1])
        scale = jax.lax.rsqrt(degree.astype(jnp.float32))[..., None]
        sent = dense(x).astype(jnp.float32) * scale
        y = scale * (sent + take(sent, forest.heads) + to_heads(sent, forest))
        return activate("relu", jnp.where(forest.real[..., None], y, 0).astype(x.dtype)), None


class SyntacticGCN(Module):
    """A graph convolution over dependencies (Marcheggiani and Titov 2017, Eq. 5 to 7).

    relu(sum over neighbours u of g (V_dir h_u + b_label)), g = sigmoid(h_u v_dir + c_label): [B, L,
    H].

    The neighbours are the head (direction along the arc), the children (against it) and the node
    itself; each direction has its own labels. `labels` is the number of relations, without 0 for an
    unknown one. `edge_dropout` leaves out arcs in training, each direction alone.
    """

    logical_axes = {
        "label_bias": (None, None, "width"),
        "label_gate": (None, None, None),
        "bias": (None,),
        "gate": (None,),
    }

    hidden: int
    labels: int
    edge_dropout: float = 0.0
    initializer: Any = FanIn()
    precision: Precision = Precision()

    reach = "bidirectional"

    @nn.compact
    def __call__(self, x, forest: Forest, context=None):
        size = self.hidden
        dense = Dense(
            3 * size,
            bias=False,
            initializer=self.initializer,
            precision=self.precision,
            name="inputs",
        )
        scores = Dense(
            3, bias=False, initializer=self.initializer, precision=self.precision, name="gates"
        )
        y, s = dense(x).astype(jnp.float32), scores(x).astype(jnp.float32)
        biases = self.param("label_bias", Zeros(), (2, self.labels + 1, size))
        gates = self.param("label_gate", Zeros(), (2, self.labels + 1, 1))
        arcs = (forest.heads < forest.heads.shape[1]).astype(jnp.float32)[..., None] * jnp.ones(
            (2,)
        )
        if context is not None and context.train and self.edge_dropout:
            arcs = drop(arcs, self.make_rng("dropout"), context.rows, self.edge_dropout)
        relation = forest.relations

        def sent(values, scores, way):
            gate = jax.nn.sigmoid(scores + gates[way][relation]) * arcs[..., way : way + 1]
            return gate * (values + biases[way][relation])

        along = sent(take(y[..., :size], forest.heads), take(s[..., :1], forest.heads), 0)
        against = to_heads(sent(y[..., size : 2 * size], s[..., 1:2], 1), forest)
        itself = y[..., 2 * size :] + self.param("bias", Zeros(), (size,))
        itself = itself * jax.nn.sigmoid(s[..., 2:] + self.param("gate", Zeros(), (1,)))
        return activate(
            "relu", jnp.where(forest.real[..., None], along + against + itself, 0).astype(x.dtype)
        ), None
