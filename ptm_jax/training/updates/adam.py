"""The rules of AdamW, StableAdamW and LAMB for a tensor."""

from __future__ import annotations

import math

import jax.numpy as jnp

from ptm_jax.core.recipe import LAMB, AdamW, StableAdamW
from ptm_jax.kernels.moments import Adam, Inputs, direction, moved, summed, updated
from ptm_jax.training.updates.tensor_rules import Rule, bias, zeros


def rule(spec: AdamW | StableAdamW | LAMB) -> Rule:
    """Returns the rule for a tensor.

    Kingma & Ba 2015, Algorithm 1, and Loshchilov & Hutter 2019, Algorithm 2, the decay scaled by
    the learning rate as in BERT and torch. LAMB: You et al. 2020, Algorithm 2 with phi(z) = z; the
    ratio is 1 where either norm is 0. StableAdamW: Wortsman et al. 2023, Algorithm 2, which divides
    the rate of a tensor, and thus its decay."""
    corrects = not isinstance(spec, AdamW) or spec.bias_correction

    def settings(decay, t) -> Adam:
        first, second = (bias(b, t) if corrects else 1.0 for b in (spec.b1, spec.b2))
        return Adam(spec.b1, spec.b2, spec.eps, spec.weight_decay * decay, first, second)

    def place(g, param, moments, *, factor, decay, axes, t, rate):
        arrays = Inputs(g, param, moments["mu"], moments["nu"])
        after = updated(settings(decay, t), arrays, rate, factor)
        return None if after is None else (after.param, {"mu": after.mu, "nu": after.nu})

    def update(g, param, moments, *, decay, axes, t, rate):
        adam = settings(decay, t)
        arrays = Inputs(g, param, moments["mu"], moments["nu"])
        if isinstance(spec, LAMB):
            mu, nu, squares = summed("direction", adam, arrays, axes)
            size, length = map(jnp.sqrt, squares)
            proper = (size > 0) & (length > 0)
            ratio = jnp.where(proper, size / jnp.where(proper, length, 1.0), 1.0)
            return ratio * direction(adam, param, mu, nu), {"mu": mu, "nu": nu}
        if isinstance(spec, StableAdamW):
            mu, nu, (total,) = summed("share", adam, arrays, axes)
            rms = jnp.sqrt(total / math.prod(param.shape[axis] for axis in axes))
            slow = direction(adam, param, mu, nu) / jnp.maximum(1.0, rms)
            return slow, {"mu": mu, "nu": nu}
        mu, nu = moved(adam, arrays)
        return direction(adam, param, mu, nu), {"mu": mu, "nu": nu}

    plain = Rule(zeros("mu", "nu"), update)
    return plain._replace(place=place) if isinstance(spec, AdamW) else plain
