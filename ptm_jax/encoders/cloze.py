"""Cloze-driven pre-training: two towers, each blind to one side of a token (Baevski et al. 2019)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.types import Batch, Encoded, Visibility
from ptm_jax.encoders.transformer import context_of


class TwoTowers(nn.Module):
    """Causal stacks in both directions over one embedding, and a layer that combines them (section 3, Figure 2).

    hidden[t] [B, L, D] is made of forward states up to t-1 and backward states from t+1: token t itself is not seen.
    combine="attention": the block `merge` with the sum of the two neighbours' states as its query, over all states of both
    towers; "sum": that sum alone. `masked=False` also lets position t read both states of t, for fine-tuning (section 3).

    `extra` holds the towers' last states, "forward" and "backward" [B, L, D]; `attention` is the combination's
    [1, B, H, L, 2 L], forward keys first. The paper's character CNN is another embedding for the slot `embed`.
    """

    embed: nn.Module
    forward: nn.Module
    backward: nn.Module
    merge: nn.Module | None = None
    combine: Literal["attention", "sum"] = "attention"
    masked: bool = True

    obeys_order = False

    @property
    def sees(self) -> str:
        """Who sees whom when a batch says nothing: objectives ask before they are compiled."""
        return "both" if self.masked else "bidirectional"

    def table(self):
        return self.embed.table()

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        if (self.merge is None) == (self.combine == "attention"):
            raise ValueError(f"combine={self.combine!r}: the block of slot merge belongs to 'attention', and only to it")
        batch = {name: field for name, field in batch.items() if name not in ("order", "key_order", "group")}
        context = context_of(batch, "causal", train)
        x = self.embed(batch, context)
        ahead = self.forward(x, context).hidden
        behind = self.backward(x, context_of(batch, "backward", train)).hidden
        segments = context.visibility.k_segments
        hidden = _neighbour(ahead, segments, -1) + _neighbour(behind, segments, 1)
        if not self.masked:
            hidden = hidden + ahead + behind
        attention = None
        if self.combine == "attention":
            both = dataclasses.replace(context, visibility=_both(context.visibility, self.masked))
            source = jnp.concatenate([ahead, behind], 1)
            hidden, attention, _ = self.merge(hidden, both, source=source)
            attention = attention[None]
        return Encoded(hidden, None, attention, None, {"forward": ahead, "backward": behind})


def _neighbour(states, segments, step: int):
    """The states [B, L, D] of the token `step` places further in the same segment, zero where there is none."""
    same = jnp.roll(segments, -step, 1) == segments
    edge = 0 if step < 0 else segments.shape[1] - 1
    same = same.at[:, edge].set(False)
    return jnp.where(same[..., None], jnp.roll(states, -step, 1), 0)


def _both(visibility: Visibility, masked: bool) -> Visibility:
    """The rule over [forward; backward] keys: left of the query in the first half, right of it in the second."""
    places = jnp.arange(visibility.k_segments.shape[1])
    apart = places[None, :] - places[:, None]
    left, right = (apart < 0, apart > 0) if masked else (apart <= 0, apart >= 0)
    segments = jnp.concatenate([visibility.k_segments] * 2, 1)
    return Visibility(visibility.q_segments, segments, allow=jnp.concatenate([left, right], 1)[None, None])
