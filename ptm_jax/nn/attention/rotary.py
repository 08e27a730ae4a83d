"""Rotary positions, and layers that see a local window, for the slots of `Attention`.

A stack of such layers is a `NumberedStack`, whose layers know their numbers, so that one scan runs
local and full layers. Both modules have no parameters.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Window
from ptm_jax.nn.layers import Context, Module

FAR = 1 << 30
"""The radius of a full layer: more than the longest row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalLayers:
    """The pattern of full and local layers (Beltagy et al. 2020, section 3.1; ModernBERT, section
    2.1.1).

    Layer i, from 0, attends to all keys if i % `every` is `phase`. The other layers attend to keys
    at a distance of at most `radius`, on both sides. `every=1` makes all layers full.
    """

    radius: int
    every: int = 3
    phase: int = 0

    def __post_init__(self):
        least = {"radius": 1, "every": 1, "phase": 0}
        for name, smallest in least.items():
            if vars(self)[name] < smallest:
                raise ValueError(
                    f"LocalLayers.{name} is {vars(self)[name]}; it must be at least {smallest}"
                )

    def full(self, layer: int | jax.Array) -> bool | jax.Array:
        """Returns whether layers (a number, or an array of numbers) are full."""
        return layer % self.every == self.phase

    def window(self, context: Context, queries: int, keys: int) -> Window:
        """Returns the window of the context's layer for so many queries and keys."""
        radius = jnp.where(self.full(context.layer), FAR, self.radius)
        return Window(*places_of(context, queries, keys), radius)


def places_of(context: Context, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
    """Returns the places of queries [1 or B, Lq] and keys [1 or B, Lk] int32.

    Unless the context has places, the last query is at the last key.
    """
    places, k_places = context.places, context.k_places
    if places is None:
        places = jnp.arange(keys - queries, keys, dtype=jnp.int32)[None]
    if k_places is None:
        k_places = jnp.arange(keys, dtype=jnp.int32)[None]
    return places, k_places


class Rotary(Module):
    """Rotary position embedding (Su et al. 2021, arXiv 2104.09864, Eq. 34): turns pairs of features
    of a query or key at place p by the angles p / theta^(2 i / K).

    Feature i is paired with feature i + K / 2, or with its neighbour if `interleave` (the paper;
    NeoBERT). `local_theta` is theta in local layers (ModernBERT: 10,000, and 160,000 in full
    layers; None: the same). `values`: the attention also turns the values (RoFormer's
    `rotary_value`).
    """

    theta: float = 10_000.0
    local_theta: float | None = None
    interleave: bool = False
    values: bool = False

    def __call__(self, x, places, full: bool | jax.Array = True):
        """Returns x [B, L, H, K] turned by the angles of places [1 or B, L]. `full`: whether the
        layer is full."""
        width = x.shape[-1]
        if width % 2:
            raise ValueError(f"rotary positions need an even head width, not {width}")
        turns = places[..., None].astype(jnp.float32) * self._rates(width, full)
        cos, sin = (wave(turns)[:, :, None] for wave in (jnp.cos, jnp.sin))
        f = x.astype(jnp.float32)
        a, b = (f[..., ::2], f[..., 1::2]) if self.interleave else jnp.split(f, 2, -1)
        turned = a * cos - b * sin, b * cos + a * sin
        if self.interleave:
            return jnp.stack(turned, -1).reshape(x.shape).astype(x.dtype)
        return jnp.concatenate(turned, -1).astype(x.dtype)

    def _rates(self, width, full):
        powers = jnp.arange(0, width, 2, dtype=jnp.float32) / width
        rates = 1.0 / self.theta**powers
        if self.local_theta is None:
            return rates
        return jnp.where(full, rates, 1.0 / self.local_theta**powers)
