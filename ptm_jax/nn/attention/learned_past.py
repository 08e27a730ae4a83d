"""Attention with a learned prefix (Li and Liang 2021, arXiv 2101.00190)."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.types import Visibility
from ptm_jax.nn.attention.caches import KeyValues
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, Dense

SHARED = r"^attention/prefix_(table|hidden)"
"""Matches the parameters of a block that all layers share if `prefix_hidden` is above 0."""


class PrefixAttention(Attention):
    """`Attention` with `prefix` learned keys and values before all others.

    Every token sees them (4.2).

    They are parameters [P, H, K]. With `prefix_hidden` above 0 they are computed from one table [P,
    D] by W_l tanh(W t): only W_l differs between layers (section 4.3, Eq. 3). The returned
    probabilities leave out the prefix. The mask is dense, so that no kernel for long rows is used.
    """

    logical_axes = {
        "prefix_key": (None, None, None),
        "prefix_value": (None, None, None),
        "prefix_table": (None, None),
        "prefix_made/kernel": ("width", None, None, None),
        "prefix_made/bias": (None, None, None),
    }

    prefix: int = 10
    prefix_hidden: int = 0
    prefix_init: Any = Normal(0.02)

    @nn.compact
    def __call__(
        self, x, context: Context, source=None, cache: KeyValues | None = None, values=None
    ):
        if source is not None or values is not None or (cache is not None and cache.start is None):
            raise ValueError(
                "a prefix stands before the tokens of a row; it has no place beside another "
                "source of keys"
            )
        if cache is None:
            empty = jnp.zeros((*x.shape[:2], *self.each_key), self.precision.dtype)
            base = KeyValues(empty, empty, 0)
        else:
            base = cache
        learned = self._learned(base.key.shape[2:])
        before = [
            jnp.broadcast_to(part, (len(x), *part.shape)).astype(base.key.dtype) for part in learned
        ]
        key, value = (
            jnp.concatenate(pair, 1) for pair in zip(before, (base.key, base.value), strict=True)
        )
        past = KeyValues(key, value, base.start + self.prefix)
        among = dataclasses.replace(context, visibility=_after(context.visibility, self.prefix))
        out, probabilities, past = super().__call__(x, among, cache=past)
        if probabilities is not None:
            probabilities = probabilities[..., self.prefix :]
        if cache is not None:

            def cut(part):
                return part[:, self.prefix :]

            cache = KeyValues(cut(past.key), cut(past.value), past.start - self.prefix)
        return out, probabilities, cache

    def _learned(self, heads):
        """Returns the learned keys and values [2, P, H, K]."""
        if not self.prefix_hidden:
            made = [
                self.param(f"prefix_{name}", self.prefix_init, (self.prefix, *heads))
                for name in ("key", "value")
            ]
            return jnp.stack(made)
        table = self.param("prefix_table", self.prefix_init, (self.prefix, self.width))

        def dense(features, name):
            return Dense(features, precision=self.precision, name=f"prefix_{name}")

        inner = jnp.tanh(dense(self.prefix_hidden, "hidden")(table))
        return jnp.moveaxis(dense((2, *heads), "made")(inner), 1, 0)


def _after(visibility: Visibility, prefix: int) -> Visibility:
    """Returns the visibility with `prefix` keys before the others that all tokens see."""
    seen = visibility.dense()
    ones = jnp.ones((*seen.shape[:3], prefix), bool)
    allow = jnp.concatenate([ones, seen], -1)

    def one(length):
        return jnp.ones((len(seen), length), jnp.int32)

    return Visibility(one(allow.shape[2]), one(allow.shape[3]), allow=allow)
