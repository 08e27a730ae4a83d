"""The Universal Transformer (Dehghani et al. 2019): one block over T steps, halted per position,
and its feed-forward."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import Remat
from ptm_jax.core.types import Encoded
from ptm_jax.nn.attention.relative import sinusoids
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import (
    Activation,
    Context,
    Dense,
    Dropout,
    Identity,
    Module,
    activate,
    recomputed,
)


class Halting(Module):
    """Returns the probability [B, L] float32 that a position halts. `start` is the initial bias."""

    logical_axes = {"kernel": (None,), "bias": ()}

    start: float = 1.0
    initializer: Any = TruncatedNormal()

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", self.initializer, x.shape[-1:])
        bias = self.param("bias", nn.initializers.constant(self.start), ())
        return jax.nn.sigmoid(x.astype(jnp.float32) @ kernel + bias)


class AdaptiveStack(slots.Layered, Module):
    """One block, applied at most `layers` times to x plus sinusoids.

    The sinusoids are of position and step (section 2.1, Eq. 6).

    With a `halting` module every position halts on its own (Graves 2016, section 2; appendix C):
    after the step at which the sum of its probabilities passes `threshold`, or after the last step.
    `average="interpolate"` computes s + w (new - s) (appendix C), "sum" Graves' mean-field sum of w
    new. The state of a halted position still changes, as in appendix C, with weight 0; other
    positions see it. `halting=None`: all positions take T steps, and the last state is the result.

    `Encoded.extra` has "updates" [B, L], the steps taken, and "ponder" [B, L], the steps plus the
    remainder; the mean of "ponder" over tokens is the cost. If the sum has not passed the threshold
    at the last step, the remainder is 0.
    """

    block: nn.Module
    layers: int
    halting: nn.Module | None = Halting()
    threshold: float = 0.99
    average: Literal["interpolate", "sum"] = "interpolate"
    signal: Literal["sinusoids", "none"] = "sinusoids"
    remat: Remat = "none"
    final_norm: nn.Module = Identity()

    levels = 1

    def level_of(self, path: str) -> int:
        del path
        return 1

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        def layer(self, carry, cache, step, context):
            carry, attention, cache = self._step(carry, cache, step, context)
            return carry, (carry[0], attention, cache)

        layer = recomputed(layer, self.remat, nn.remat)
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
        (last, mean, _, remainder, updates), (layers, attention, cache) = run(
            self, carry, cache, steps, context
        )
        hidden, extra = last, None
        if self.halting is not None:
            hidden = mean.astype(x.dtype)
            extra = {"ponder": remainder + updates, "updates": updates}
        return Encoded(self.final_norm(hidden), layers, attention, cache=cache, extra=extra)

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
        last_share = jnp.where(halts, 1.0 - total, 0.0)
        weight = jnp.where(goes_on, p, last_share)
        decay = 1.0 if self.average == "sum" else 1.0 - weight[..., None]
        mean = weight[..., None] * x + decay * mean
        # The total of a halted position is set to 1: a sum of floats might stay below, and the
        # position would run again.
        total = jnp.where(halts, 1.0, total + jnp.where(goes_on, p, 0.0))
        return (x, mean, total, remainder + last_share, updates + running), attention, cache


def halts(stack: slots.Layered) -> bool:
    """Returns whether a stack applies another number of layers to each token."""
    return isinstance(stack, AdaptiveStack) and stack.halting is not None


class DepthwiseConv(Module):
    """Convolves every feature along the sequence [B, L, D] separately.

    Taps beyond a segment's border count as zero.

    reach: "both" sides of a token, or only the "left" side (decoders).
    """

    logical_axes = {"kernel": (None, "width")}

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

        def ends(a):
            return jnp.pad(a, ((0, 0), (left, right)) + ((0, 0),) * (a.ndim - 2))

        wide, of = ends(x), ends(segments)
        for tap in range(self.size):
            same = (of[:, tap : tap + length] == segments)[..., None]
            total = total + jnp.where(same, wide[:, tap : tap + length] * kernel[tap], 0)
        return total


class ConvFeedForward(Module):
    """A feed-forward layer of two depthwise-separable convolutions.

    Section 2.1, transition function.
    """

    logical_axes = {
        "up/kernel": ("width", "hidden"),
        "up/bias": ("hidden",),
        "down/kernel": ("hidden", "width"),
        "down/bias": ("width",),
    }

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

        def conv(size, name):
            return DepthwiseConv(size, self.reach, self.initializer, name=name)

        def dense(size, name):
            return Dense(size, initializer=self.initializer, precision=self.precision, name=name)

        h = activate(self.activation, dense(self.hidden, "up")(conv(first, "up_taps")(x, context)))
        h = Dropout(self.dropout)(h, context)
        return dense(x.shape[-1], "down")(conv(second, "down_taps")(h, context))
