"""Select, Answer and Explain (Tu et al. 2020, arXiv 1911.00484; row 211): predicts the needed
documents, the answer and the supporting sentences."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.heads.pooling import noisy
from ptm_jax.nn.heads.task_heads import ChoiceHead, TaskHead
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dense, Module, activate


class PairRanker(ChoiceHead):
    """Returns logits [B, C, C] float32 that compare the documents of a question.

    They are above 0 at (i, j) if document i is needed more than j (3.1). It reads [B C, L, D].

    The summaries of a question's documents attend to each other with `heads` heads; two layers
    score a pair. Rows without tokens are not documents and are masked.
    """

    heads: int = 4

    def example(self, encoded):
        hidden = jnp.repeat(encoded.hidden[:1], self.choices, 0)
        return hidden, None, jnp.ones(hidden.shape[:2], jnp.int32)

    def reads(self, encoded, batch):
        return (*self.summary.reads(encoded, batch), segments_of(batch))

    @nn.compact
    def __call__(self, hidden, where, segments, *, table=None, context=None):
        if len(hidden) % self.choices:
            raise ValueError(
                f"{len(hidden)} rows are not questions of {self.choices} documents each"
            )
        chosen = noisy(self.dropout, self.summary(hidden, where, context=context), context)
        documents = chosen.reshape(-1, self.choices, chosen.shape[-1])
        real = (segments > 0).any(1).reshape(-1, self.choices).astype(jnp.int32)
        width = documents.shape[-1]
        heads = next(n for n in range(min(self.heads, width), 0, -1) if width % n == 0)
        attention = Attention(
            heads=heads, width=width, initializer=self.initializer, precision=self.precision
        )
        among = Context(
            visibility=Visibility(jnp.ones_like(real), real), rows=jnp.arange(len(real))
        )
        states = documents + attention(documents, among)[0]
        first, second = (self.dense(width, name)(states) for name in ("first", "second"))
        pairs = activate(
            "gelu", first[:, :, None] + second[:, None, :]
        )  # W [h_i; h_j] in two halves
        return self.dense(1, "score")(pairs)[..., 0].astype(jnp.float32)


class SentenceGraph(Module):
    """Passes messages between the sentences h [B, S, D] of a question.

    It passes them `hops` times with one set of weights (section 3.3):

        u_j = f_s(h_j) + sum_r (1 / |N_r(j)|) sum_{n in N_r(j)} f_r(h_n)
        g_j = sigmoid(f_g([u_j; h_j]))          h'_j = g_j gelu(u_j) + (1 - g_j) h_j

    edges [B, R, S, S] are 0 or 1; entry (j, n) of r is an edge from n to j.
    """

    hops: int = 3
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, h, edges):
        width, relations = h.shape[-1], edges.shape[1]

        def dense(name):
            return Dense(width, initializer=self.initializer, precision=self.precision, name=name)

        self_layer, gate = dense("own"), dense("gate")
        each = [dense(f"relation{r}") for r in range(relations)]
        edges = edges.astype(jnp.float32)
        edges = edges / jnp.maximum(edges.sum(-1, keepdims=True), 1.0)
        for _ in range(self.hops):
            sent = jnp.stack([message(h) for message in each], 1).astype(jnp.float32)
            u = (self_layer(h) + jnp.einsum("brjn,brnd->bjd", edges, sent)).astype(h.dtype)
            g = jax.nn.sigmoid(gate(jnp.concatenate([u, h], -1)))
            h = g * activate("gelu", u) + (1 - g) * h
        return h


class HopHead(TaskHead):
    """Predicts span, kind and supporting sentences of an answer from [B, L, D].

    Sections 3.2 and 3.3. Returns logits in float32: start, end [B, L], `kinds` [B, C], facts [B,
    S].

        s_j = sum_t softmax_t(w(h_t) + start_t + end_t) h_t     over the tokens t of sentence j
        facts = v(g_j), kinds = U(sum_j softmax_j(facts) g_j)   for g = `SentenceGraph`(s)

    w, v, U and the span's scores are two layers each, with D / 2 units between. Edges connect
    sentences of one document; of two documents that both share a name with the question; of two
    documents that share a name. `tasks.formats.hotpot.HopReading` has the fields of the batch;
    without them a row has no sentences.
    """

    per_token = True

    kinds: int = 3
    hops: int = 3

    def example(self, encoded):
        rows, length = encoded.hidden.shape[:2]
        return (
            encoded.hidden,
            jnp.zeros((rows, length), jnp.int32),
            *(jnp.zeros((rows, 2), jnp.int32) for _ in range(3)),
        )

    @staticmethod
    def reads(encoded, batch):
        ids = batch["input_ids"]
        none = jnp.zeros((len(ids), 1), jnp.int32)
        fields = ("sentence_document", "sentence_asked", "sentence_names")
        return (
            encoded.hidden,
            batch.get("sentence_of", jnp.zeros_like(ids)),
            *(batch.get(name, none) for name in fields),
        )

    @nn.compact
    def __call__(self, hidden, sentence_of, document, asked, names, *, table=None, context=None):
        hidden = noisy(self.dropout, hidden, context)
        start, end = jnp.moveaxis(self._layers("ends", 2, hidden), -1, 0)
        real = document > 0
        inside = sentence_of[:, None] == jnp.arange(1, document.shape[1] + 1)[:, None]
        scores = self._layers("read", 1, hidden)[..., 0] + start + end
        weights = jax.nn.softmax(jnp.where(inside, scores[:, None], -1e30)) * inside
        sentences = jnp.einsum("bsl,bld->bsd", weights, hidden.astype(jnp.float32)).astype(
            hidden.dtype
        )
        graph = SentenceGraph(self.hops, self.initializer, self.precision, name="graph")
        states = graph(sentences, edges_of(document, asked, names))
        facts = jnp.where(real, self._layers("facts", 1, states)[..., 0], -1e30)
        read = jax.nn.softmax(facts) * real
        pooled = jnp.einsum("bs,bsd->bd", read, states.astype(jnp.float32)).astype(hidden.dtype)
        return start, end, self._layers("kinds", self.kinds, pooled), facts

    def _layers(self, name, features, x):
        """Computes [.., features] float32 by two layers."""
        inner = activate("gelu", self.dense(max(1, x.shape[-1] // 2), f"{name}_hidden")(x))
        return self.dense(features, f"{name}_score")(inner).astype(jnp.float32)


def edges_of(document, asked, names):
    """Returns [B, 3, S, S] bool from the sentence fields [B, S].

    Edges in one document, between two that the question names, between two that share a name. No
    sentence has an edge to itself.
    """

    def pair(x):
        return (x[:, :, None], x[:, None, :])

    (a, b), (p, q), (m, n) = pair(document), pair(asked), pair(names)
    real, same = (a > 0) & (b > 0), a == b
    others = real & ~jnp.eye(document.shape[1], dtype=bool)
    return jnp.stack(
        [others & same, others & ~same & (p > 0) & (q > 0), others & ~same & ((m & n) != 0)], 1
    )
