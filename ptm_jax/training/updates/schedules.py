"""Learning-rate functions for the schedules of `core.recipe`.

Steps are counted from 0: `rate(k)` is the rate of the (k+1)-th update, for k = 0 ... total_steps -
1.
Two conventions hold for all schedules with a warm-up:

- The ramp is (k + 1) / warmup, so the first update has a nonzero rate and update `warmup` has the
  peak. BERT's optimization.py:create_optimizer uses global_step / num_warmup_steps: its first
  update has rate 0 and is wasted. The schedule here is one step earlier.
- The decay is a function of (k - warmup) / (total - warmup), which is 1 just after the last update,
  so no update is wasted on rate `end` = 0. BERT decays by k / total from the start of training, so
  its rate jumps down to 1 - warmup / total when the warm-up ends. Here the rate is continuous, as
  in fairseq and transformers.

The step may be a Python integer, a NumPy or a traced value; the rate is a float32 scalar.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.recipe import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    OneCycle,
    Schedule,
    SlantedTriangular,
    Staircase,
    WarmupStableDecay,
)

Rate = Callable[[Any], Any]


@functools.singledispatch
def build(schedule: Any, peak: float, total_steps: int) -> Rate:
    """Returns the function step -> learning rate of a schedule, its peak and number of updates."""
    raise TypeError(
        f"no schedule is known for {type(schedule).__name__}; register one with "
        "schedules.build.register"
    )


def stable_steps(schedule: Schedule, total_steps: int) -> int | None:
    """Returns the number of steps before a last decay, from which a longer run may go on.
    None for a schedule that has none."""
    if not isinstance(schedule, WarmupStableDecay):
        return None
    return min(_decay_begins(schedule, total_steps), total_steps)


def _decay_begins(schedule: WarmupStableDecay, total_steps: int) -> int:
    return max(total_steps - schedule.decay, schedule.warmup)


def _ramp(step, warmup: int):
    return jnp.minimum(1.0, (_float(step) + 1.0) / max(warmup, 1))


def _progress(step, warmup: int, total: int):
    """Returns the finished fraction of the decay, in [0, 1]."""
    return jnp.clip((_float(step) - warmup) / max(total - warmup, 1), 0.0, 1.0)


def _float(step):
    return jnp.asarray(step, jnp.float32)


@build.register
def _constant(schedule: Constant, peak: float, total_steps: int) -> Rate:
    return lambda step: peak * _ramp(step, schedule.warmup)


@build.register
def _decaying(schedule: Linear | Cosine, peak: float, total_steps: int) -> Rate:
    def rate(step):
        done = _progress(step, schedule.warmup, total_steps)
        left = 1.0 - done if isinstance(schedule, Linear) else 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        return peak * _ramp(step, schedule.warmup) * (schedule.end + (1.0 - schedule.end) * left)

    return rate


@build.register
def _stable(schedule: WarmupStableDecay, peak: float, total_steps: int) -> Rate:
    """The decay begins `decay` steps before the end, but not before the warm-up has ended."""
    begin = _decay_begins(schedule, total_steps)

    def rate(step):
        done = _progress(step, begin, total_steps)
        left = 1.0 - (jnp.sqrt(done) if schedule.shape == "sqrt" else done)
        return peak * _ramp(step, schedule.warmup) * (schedule.end + (1.0 - schedule.end) * left)

    return rate


@build.register
def _inverse_sqrt(schedule: InverseSqrt, peak: float, total_steps: int) -> Rate:
    """Vaswani et al. 2017, Eq. 3 with step_num = k + 1, in units of its peak d**-0.5 *
    warmup**-0.5."""
    warmup = max(schedule.warmup, 1)

    def rate(step):
        decay = jnp.sqrt(warmup / jnp.maximum(_float(step) + 1.0, warmup))
        return peak * decay * (_ramp(step, warmup) if schedule.ramp else 1.0)

    return rate


@build.register
def _slanted_triangular(schedule: SlantedTriangular, peak: float, total_steps: int) -> Rate:
    """Howard & Ruder 2018, Eq. 3 with t = k: the first update already has peak / ratio.

    The paper's descent divides by cut * (1 / cut_frac - 1), which equals total - cut up to the
    rounding of `cut`. This code uses total - cut, because on short runs the rounding makes the last
    rates negative.
    """
    cut = max(int(total_steps * schedule.cut), 1)

    def rate(step):
        t = _float(step)
        p = jnp.where(t < cut, t / cut, 1.0 - (t - cut) / max(total_steps - cut, 1))
        return peak * (1.0 + jnp.clip(p, 0.0, 1.0) * (schedule.ratio - 1.0)) / schedule.ratio

    return rate


@build.register
def _one_cycle(schedule: OneCycle, peak: float, total_steps: int) -> Rate:
    """fastai's annealing: the first update has peak / start, update cut * total the peak."""
    cut = max(int(total_steps * schedule.cut), 1)
    bottom, last = peak / schedule.start, peak / (schedule.start * schedule.end)

    def rate(step):
        up, left = (
            _float(step) / cut,
            jnp.maximum(total_steps - _float(step), 0.0) / max(total_steps - cut, 1),
        )
        part = jnp.sin(0.5 * jnp.pi * jnp.where(step < cut, up, left)) ** 2
        low = jnp.where(step < cut, bottom, last)
        return low + (peak - low) * part

    return rate


@build.register
def _staircase(schedule: Staircase, peak: float, total_steps: int) -> Rate:
    def rate(step):
        divisions = jnp.maximum((_float(step) - schedule.full) // schedule.every + 1.0, 0.0)
        return peak * (1.0 / schedule.divisor) ** divisions

    return rate
