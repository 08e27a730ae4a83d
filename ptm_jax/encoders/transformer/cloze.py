"""Cloze-driven pre-training: two towers, each blind to one side of a token.

Baevski et al. 2019.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Batch, Encoded, Visibility
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.nn.layers import Context, Dropout, LayerNorm, Module
from ptm_jax.objectives.text.text_traits import TwoDirections


class Combination(Module):
    """Predicts token t from both towers, by attention with a query from the neighbours' states.

    The states of both towers are normalised. The query is the sum of the forward state of t-1 and
    the backward state of t+1, or their concatenation. Keys and values are all states that
    `visibility` allows. The attention has no residual branch; the feed-forward layer has one, with
    pre-norm. The layout follows fairseq's branch bi_trans_lm.
    """

    attention: nn.Module
    ffn: nn.Module
    query: Literal["sum", "concat"] = "sum"
    dropout: float = 0.0
    forward_norm: nn.Module = LayerNorm()
    backward_norm: nn.Module = LayerNorm()
    ffn_norm: nn.Module = LayerNorm()

    @nn.compact
    def __call__(self, ahead, behind, context: Context, masked: bool):
        """States [B, L, D] of both towers -> ([B, L, D], probabilities [B, H, L, 2 L], forward keys
        first)."""
        ahead, behind = self.forward_norm(ahead), self.backward_norm(behind)
        left, right = neighbours(ahead, behind, context)
        query = left + right if self.query == "sum" else jnp.concatenate([left, right], -1)
        both = dataclasses.replace(context, visibility=_both(context.visibility, masked))
        x, probabilities, _ = self.attention(
            query, both, source=jnp.concatenate([ahead, behind], 1)
        )
        x = Dropout(self.dropout)(x, context)
        return x + Dropout(self.dropout)(
            self.ffn(self.ffn_norm(x), context), context
        ), probabilities


class TwoTowers(Embedded, TwoDirections):
    """Two causal stacks over one embedding, and a layer that combines them (section 3, Figure 2).

    hidden[t] [B, L, D] depends on forward states up to t-1 and backward states from t+1, so it does
    not see token t. combine="attention" uses the `Combination` in `merge`; "sum" adds the two
    neighbours' states. `masked=False` also lets position t read both states of t, for fine-tuning
    (section 3).

    `extra` holds the last states of the towers, "forward" and "backward" [B, L, D]. `attention` is
    the combination's [1, B, H, L, 2 L], forward keys first, if its `impl` returns probabilities.
    """

    embed: nn.Module
    forward: nn.Module
    backward: nn.Module
    merge: Combination | None = None
    combine: Literal["attention", "sum"] = "attention"
    masked: bool = True

    @property
    def direction(self) -> slots.Direction:
        return "both" if self.masked else "bidirectional"

    @property
    def stacks(self) -> dict[str, slots.Layered]:
        return {"forward": self.forward, "backward": self.backward}

    def level_of(self, path: str) -> int | range:
        """Layers of both directions have the same levels; their combination is one level higher."""
        for name, stack in self.stacks.items():
            if path.startswith(f"encoder/{name}/"):
                return stack.level_of(path.removeprefix(f"encoder/{name}/"))
        return self.forward.levels + 1 if path.startswith("encoder/merge/") else 0

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        if (self.merge is None) == (self.combine == "attention"):
            raise ValueError(
                f"combine={self.combine!r}: the layer of slot merge belongs to 'attention', "
                "and only to it"
            )
        batch = {
            name: field
            for name, field in batch.items()
            if name not in ("order", "key_order", "group")
        }
        context = context_of(batch, "causal", train)
        x = self.embed(batch, context)
        ahead = self.forward(x, context).hidden
        behind = self.backward(x, context_of(batch, "backward", train)).hidden
        extra = {"forward": ahead, "backward": behind}
        if self.combine == "attention":
            hidden, attention = self.merge(ahead, behind, context, self.masked)
            return Encoded(
                hidden, None, None if attention is None else attention[None], extra=extra
            )
        hidden = sum(neighbours(ahead, behind, context))
        return Encoded(hidden if self.masked else hidden + ahead + behind, extra=extra)


def neighbours(ahead, behind, context: Context):
    """Returns the forward states of t-1 and the backward states of t+1, [B, L, D] each."""
    segments = context.visibility.k_segments
    return neighbour(ahead, segments, -1), neighbour(behind, segments, 1)


def neighbour(states, segments, step: int):
    """Returns the states [B, L, D] of the token `step` places to the right in the same segment.

    Zeros if there is none.
    """
    same = jnp.roll(segments, -step, 1) == segments
    edge = 0 if step < 0 else segments.shape[1] - 1
    same = same.at[:, edge].set(False)
    return jnp.where(same[..., None], jnp.roll(states, -step, 1), 0)


def _both(visibility: Visibility, masked: bool) -> Visibility:
    """Returns the visibility of [forward; backward] keys: left of the query in the first half,
    right of it in the second."""
    places = jnp.arange(visibility.k_segments.shape[1])
    apart = places[None, :] - places[:, None]
    left, right = (apart < 0, apart > 0) if masked else (apart <= 0, apart >= 0)
    segments = jnp.concatenate([visibility.k_segments] * 2, 1)
    return Visibility(
        visibility.q_segments, segments, allow=jnp.concatenate([left, right], 1)[None, None]
    )
