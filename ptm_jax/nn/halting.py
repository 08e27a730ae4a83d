"""The Universal Transformer (Dehghani et al. 2019): one block over T steps, halted per position, and its feed-forward."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import Remat
from ptm_jax.core.types import Encoded
from ptm_jax.nn.blocks import POLICIES
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation, Context, Dense, Dropout, Identity, activate
from ptm_jax.nn.relative import sinusoids


class Halting(nn.Module):
    """Probability [B, L] float32 that a position halts; a bias of `start` lets it halt early at first."""

    start: float = 1.0
    initializer: Any = TruncatedNormal()

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", self.initializer, x.shape[-1:])
        bias = self.param("bias", nn.initializers.constant(self.start), ())
        return jax.nn.sigmoid(x.astype(jnp.float32) @ kernel + bias)


class AdaptiveStack(nn.Module):
    """One block, applied at most `layers` times, to x plus the sinusoids of position and step (section 2.1, Eq. 6).

    Where `halting` is a module, every position halts on its own (Graves 2016, section 2; appendix C): after the step at
    which its probabilities pass `threshold`, or after the last one. `average="interpolate"` is appendix C's
    s + w (new - s), "sum" Graves' mean-field sum of w new. A halted position's state moves on, as in appendix C, with no
    weight of its own; others see it. `halting=None`: T steps for all, the last state is the result.

    `Encoded.extra`: "updates" [B, L] steps taken, "ponder" [B, L] the same plus the remainder: its mean over tokens is
    the cost. Probabilities that have not passed the threshold at the last step leave a remainder of 0.
    """

    block: nn.Module
    layers: int
    halting: nn.Module | None = Halting()
    threshold: float = 0.99
    average: Literal["interpolate", "sum"] = "interpolate"
    signal: Literal["sinusoids", "none"] = "sinusoids"
    remat: Remat = "none"
    final_norm: nn.Module = Identity()

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        def layer(self, carry, cache, step, context):
            carry, attention, cache = self._step(carry, cache, step, context)
            return carry, (carry[0], attention, cache)

        if self.remat != "none":
            layer = nn.remat(layer, policy=POLICIES[self.remat], prevent_cse=False)
        run = nn.scan(
            layer,
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True},
            in_axes=(0, 0, nn.broadcast),
            length=self.layers,
        )
        zeros = jnp.zeros(x.shape[:2], jnp.float32)
        mean = None if self.halting is None else jnp.zeros(x.shape, jnp.float32)
        carry = (x, mean, zeros, zeros, zeros)
        steps = jnp.arange(1, self.layers + 1)
        (last, mean, _, remainder, updates), (layers, attention, cache) = run(self, carry, cache, steps, context)
        hidden, extra = last, None
        if self.halting is not None:
            hidden = mean.astype(x.dtype)
            extra = {"ponder": remainder + updates, "updates": updates}
        return Encoded(self.final_norm(hidden), layers, attention, cache, extra)

    def _step(self, carry, cache, step, context):
        x, mean, total, remainder, updates = carry
        if self.signal == "sinusoids":
            waves = sinusoids(context.positions, x.shape[-1]) + sinusoids(step, x.shape[-1])
            x = x + waves.astype(x.dtype)
        p = None if self.halting is None else self.halting(x)
        x, attention, cache = self.block(x, context, cache)
        if p is None:
            return (x, mean, total, remainder, updates), attention, cache
        running = total < 1.0
        halts = running & (total + p > self.threshold)
        goes_on = running & ~halts
        rest = jnp.where(halts, 1.0 - total, 0.0)
        weight = jnp.where(goes_on, p, rest)
        kept = 1.0 if self.average == "sum" else 1.0 - weight[..., None]
        mean = weight[..., None] * x + kept * mean
        # A halted position stands at 1 exactly: a sum of floats might stay below and run again.
        total = jnp.where(halts, 1.0, total + jnp.where(goes_on, p, 0.0))
        return (x, mean, total, remainder + rest, updates + running), attention, cache


class DepthwiseConv(nn.Module):
    """Every feature convolved over its own sequence [B, L, D]; taps beyond a segment's border count as zero.

    reach: "both" sides of a token, or "left" of it only (decoders).
    """

    size: int
    reach: Literal["both", "left"] = "both"
    initializer: Any = TruncatedNormal()

    @nn.compact
    def __call__(self, x, context: Context):
        segments = context.visibility.k_segments
        if segments.shape[1] != x.shape[1]:
            raise ValueError("a convolution needs the whole row; decode without a cache")
        kernel = self.param("kernel", self.initializer, (self.size, x.shape[-1])).astype(x.dtype)
        right = self.size // 2 if self.reach == "both" else 0
        left, length, total = self.size - 1 - right, x.shape[1], 0.0
        ends = lambda a: jnp.pad(a, ((0, 0), (left, right)) + ((0, 0),) * (a.ndim - 2))
        wide, of = ends(x), ends(segments)
        for tap in range(self.size):
            same = (of[:, tap : tap + length] == segments)[..., None]
            total = total + jnp.where(same, wide[:, tap : tap + length] * kernel[tap], 0)
        return total


class ConvFeedForward(nn.Module):
    """A feed-forward whose dense layers are depthwise-separable convolutions (section 2.1, transition function)."""

    hidden: int
    sizes: tuple[int, int] = (3, 5)
    activation: Activation = "relu"
    reach: Literal["both", "left"] = "both"
    dropout: float = 0.0
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, context: Context):
        first, second = self.sizes
        conv = lambda size, name: DepthwiseConv(size, self.reach, self.initializer, name=name)
        dense = lambda size, name: Dense(size, initializer=self.initializer, precision=self.precision, name=name)
        h = activate(self.activation, dense(self.hidden, "up")(conv(first, "up_taps")(x, context)))
        h = Dropout(self.dropout)(h, context)
        return dense(x.shape[-1], "down")(conv(second, "down_taps")(h, context))
