"""Heads for reading comprehension other than the plain span head.

AnswerHead         XLNet's: the start, the end given the start, and whether there is an answer
                   (Yang et al. 2019, section 3.4, and zihangdai/xlnet, run_squad.py)
VerifiedSpanHead   a span, and whether the row has an answer
RationaleHead      a span, its rationale and the kind of the answer
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import record
from ptm_jax.nn.heads.pooling import last_token, noisy
from ptm_jax.nn.heads.task_heads import TaskHead
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Dense, LayerNorm, Module


@record
class Answers:
    """Predictions of an answer, float32.

    `start` are logits [B, L]; `none` is a logit [B], above 0 if there is no answer.

    If the start of the right answer is given: `end`, logits [B, L]. Otherwise the K best starts,
    and the M best ends of each, best first: `starts` and `start_places` [B, K], `ends` and
    `end_places` [B, K, M] are their probabilities and slots.
    """

    start: Any
    none: Any
    end: Any = None
    starts: Any = None
    start_places: Any = None
    ends: Any = None
    end_places: Any = None


class AnswerHead(slots.Head, Module):
    """Returns `Answers` for [B, L, D].

    A dense layer scores the start; tanh and a norm on a token and the start score the end; tanh on
    the start (its expectation if it is not given) and the classifying token scores `none`.

    Reads from the batch `answer_start` [B] (training), `cls_places` [B] (default: the last token)
    and `answer_places` [B, L], 1 where an answer may lie (default: every token; in training every
    place, padding too, as in the original).
    """

    starts: int = 5
    ends: int = 5
    eps: float = 1e-12
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        first = jnp.zeros(len(encoded.hidden), jnp.int32)
        return encoded.hidden, first, first

    @staticmethod
    def reads(encoded, batch):
        segments = segments_of(batch)
        places = batch["cls_places"] if "cls_places" in batch else last_token(segments)
        start = batch.get("answer_start")
        return (
            encoded.hidden,
            places,
            start,
            batch.get("answer_places", segments if start is None else None),
        )

    @nn.compact
    def __call__(self, hidden, cls_places, start=None, allowed=None, *, table=None, context=None):
        states, take = (
            hidden[:, :, None],
            lambda places: jnp.take_along_axis(hidden, places[..., None], 1),
        )
        scores = self._allowed(self._score("start", hidden), allowed)
        chances = jax.nn.softmax(scores)
        if start is not None:
            begun, beams = take(start[:, None]), None
            expected = begun[:, 0]
        else:
            beams = jax.lax.top_k(chances, min(self.starts, chances.shape[-1]))
            begun = take(beams[1])
            expected = jnp.einsum("bl,bld->bd", chances, hidden.astype(jnp.float32)).astype(
                hidden.dtype
            )
        joined = LayerNorm(self.eps, name="end_norm")(
            self._joined("end_join", states, begun[:, None])
        )
        ends = self._allowed(
            self._score("end", joined).swapaxes(1, 2), None if allowed is None else allowed[:, None]
        )
        none = self._score(
            "none", self._joined("none_join", expected, take(cls_places[:, None])[:, 0]), bias=False
        )
        if beams is None:
            return Answers(scores, none, end=ends[:, 0])
        best = jax.lax.top_k(jax.nn.softmax(ends), min(self.ends, ends.shape[-1]))
        return Answers(scores, none, None, *beams, *best)

    def _score(self, name, x, bias=True):
        """Maps [.., D] to logits [..] float32."""
        dense = Dense(
            1, bias=bias, initializer=self.initializer, precision=self.precision, name=name
        )
        return dense(x)[..., 0].astype(jnp.float32)

    def _joined(self, name, a, b):
        """Combines two states [.., D] that broadcast into one [.., D]."""
        dense = Dense(
            a.shape[-1], initializer=self.initializer, precision=self.precision, name=name
        )
        return jnp.tanh(dense(jnp.concatenate(jnp.broadcast_arrays(a, b), -1)))

    @staticmethod
    def _allowed(scores, allowed):
        return scores if allowed is None else jnp.where(allowed > 0, scores, -1e30)


class VerifiedSpanHead(TaskHead):
    """Returns the logits of an answer's ends [B, L] each, and of no answer [B, 1], float32.

    The logit of no answer (above 0: none) is from the classifying token (Zhang et al. 2021, arXiv
    2001.09694, section 3.3: the internal front verifier). It reads [B, L, D].

    `cls_places` [B] of the batch are the classifying tokens (default: the first token).
    """

    per_token = True

    @staticmethod
    def example(encoded):
        return encoded.hidden, jnp.zeros(len(encoded.hidden), jnp.int32)

    @staticmethod
    def reads(encoded, batch):
        return encoded.hidden, batch.get("cls_places", jnp.zeros(len(encoded.hidden), jnp.int32))

    @nn.compact
    def __call__(self, hidden, cls_places, *, table=None, context=None):
        ends = self.dense(2, "ends")(hidden).astype(jnp.float32)
        first = jnp.take_along_axis(hidden, cls_places[:, None, None], 1)[:, 0]
        return ends[..., 0], ends[..., 1], self.scores(first, context, 1, "none")


class RationaleHead(TaskHead):
    """Predicts span, rationale and kind of an answer from h [B, L, D].

    Ju et al. 2019, arXiv 1909.10772, section 2.2:

        start, end = W h                    p = sigmoid(w_2 relu(W_1 h))           h' = p h
        a = softmax(v_2 relu(V_1 h'))       kinds = U [sum_t a_t h'_t; h_cls]

    Returns logits in float32: start, end [B, L], `kinds` [B, C] (yes, no, unknown) and the
    rationale [B, L] before the sigmoid. The softmax is over tokens that are not padding.
    `cls_places` [B] of the batch are the classifying tokens (default: the first token).
    """

    per_token = True

    kinds: int = 3

    @staticmethod
    def example(encoded):
        return (
            encoded.hidden,
            jnp.ones(encoded.hidden.shape[:2], jnp.int32),
            jnp.zeros(len(encoded.hidden), jnp.int32),
        )

    @staticmethod
    def reads(encoded, batch):
        segments = segments_of(batch)
        return (
            encoded.hidden,
            segments,
            batch.get("cls_places", jnp.zeros(len(segments), jnp.int32)),
        )

    @nn.compact
    def __call__(self, hidden, segments, cls_places, *, table=None, context=None):
        hidden = noisy(self.dropout, hidden, context)
        ends = self.dense(2, "ends")(hidden).astype(jnp.float32)
        rationale = self._score("rationale", hidden)
        marked = hidden * jax.nn.sigmoid(rationale)[..., None].astype(hidden.dtype)
        weights = jax.nn.softmax(jnp.where(segments > 0, self._score("attend", marked), -1e30))
        read = jnp.einsum("bl,bld->bd", weights, marked.astype(jnp.float32)).astype(hidden.dtype)
        first = jnp.take_along_axis(hidden, cls_places[:, None, None], 1)[:, 0]
        kinds = self.dense(self.kinds, "kinds")(jnp.concatenate([read, first], -1)).astype(
            jnp.float32
        )
        return ends[..., 0], ends[..., 1], kinds, rationale

    def _score(self, name, x):
        """Computes logits [B, L] float32 by two layers."""
        inner = jax.nn.relu(self.dense(x.shape[-1], f"{name}_hidden")(x))
        return self.dense(1, f"{name}_score")(inner)[..., 0].astype(jnp.float32)
