"""Attention over the concepts of each word with a sentinel, and matching of a text with itself
(KT-NET).

Compared line by line with `MemoryLayer` and `TriLinearTwoTimeSelfAttentionLayer` of
PaddlePaddle/Research (NLP/ACL2019-KTNET, model/layers.py).
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.constraint import constrain
from ptm_jax.core.precision import Precision
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.initializers import Normal, Trilinear, TruncatedNormal, Zeros
from ptm_jax.nn.layers import Dense, Module

NEVER = -1e30


class ConceptMemory(Module):
    """Knowledge vectors of words [B, L, W] from states [B, L, D] (Yang et al. 2019, ACL).

    A word's vector is a weighted mean of a sentinel and of the vectors `entities` [E, W] of the
    word's candidates (Eq. 1 and 2). The weights are softmax(c W s). The sentinel, initially 0,
    means that no candidate fits. A word outside the lexicon has zeros.
    """

    logical_axes = {"entities": ("words", None), "sentinel": (None,)}

    lexicon: Entities
    width: int = 100
    entity_init: Any = Normal(0.1)
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, states, ids, segments):
        concepts = self.lexicon.find(ids, segments).values[..., : self.lexicon.candidates]
        table = constrain(
            self.param("entities", self.entity_init, (self.lexicon.entities, self.width)),
            "words",
            None,
        )
        sentinel = self.param("sentinel", Zeros(), (self.width,))
        dense = Dense(
            self.width,
            bias=False,
            initializer=self.initializer,
            precision=self.precision,
            name="relevance",
        )
        query, vectors = dense(states).astype(jnp.float32), table[concepts]
        scores = jnp.where(concepts > 0, jnp.einsum("blw,blcw->blc", query, vectors), NEVER)
        shares = jax.nn.softmax(jnp.concatenate([scores, (query @ sentinel)[..., None]], -1))
        mean = jnp.einsum("blc,blcw->blw", shares[..., :-1], vectors) + shares[..., -1:] * sentinel
        return jnp.where((concepts > 0).any(-1, keepdims=True), mean, 0.0)


class SelfMatching(Module):
    """[u; v; u - v; u v; v'; u - v'] [B, L, 6 D] for u [B, L, D] (Yang et al. 2019, Eq. 3 to 6).

    v = A u with A = softmax of w [u_i; u_j; u_i u_j] over the tokens that i sees (`sees` [B, L, L]
    bool), and v' = A A u. The code also adds a constant to all scores, which does not change the
    softmax.
    """

    logical_axes = {"match": (None, None)}

    initializer: Any = Trilinear()

    @nn.compact
    def __call__(self, u, sees):
        x = u.astype(jnp.float32)
        left, right, both = self.param("match", self.initializer, (3, u.shape[-1]))
        scores = (
            (x @ left)[:, :, None] + (x @ right)[:, None] + jnp.einsum("bid,bjd->bij", x * both, x)
        )
        direct = jax.nn.softmax(jnp.where(sees, scores, NEVER))
        near = direct @ x
        far = direct @ near  # (A A) u = A (A u), in two products with the width of u
        return jnp.concatenate([x, near, x - near, x * near, far, x - far], -1).astype(u.dtype)
