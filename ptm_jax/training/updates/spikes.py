"""Updates that are left out because their gradient is not finite or too large
(`core.recipe.SkipSpikes`).

The decision is a function of the gradient's norm and of the norms of the updates before it, inside
the step: it is the same on every device, and a resumed run repeats it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Recipe, SkipSpikes
from ptm_jax.core.types import Array, Loss, Params, Ratio

PART = "spikes"
"""The part of an optimizer's state: "norm" [], their mean, and "taken" [], the updates made."""

BARREN = 4
"""Updates left out, and none made, after which a run without `patience` ends."""
LESS = "with a lower recipe.lr, with recipe.clip, or in float32 (--set precision=float32)"


def settings_of(recipe: Recipe) -> SkipSpikes | None:
    """Returns the settings of a recipe that leaves updates out, or None."""
    return recipe.clip if isinstance(recipe.clip, SkipSpikes) else None


def begun(recipe: Recipe) -> dict[str, Any]:
    """Returns the part of the state before the first update."""
    if settings_of(recipe) is None:
        return {}
    return {PART: {"norm": jnp.zeros([]), "taken": jnp.zeros([], jnp.int32)}}


def decided(
    recipe: Recipe, grads: Params, state: Params
) -> tuple[Array | None, Array, dict[str, Any]]:
    """Returns (whether the update is made, its number for bias correction, the part of the state).

    The first is None if every update is made."""
    settings = settings_of(recipe)
    if settings is None:
        return None, (state["count"] + 1).astype(jnp.float32), {}
    live, after = judged(settings, optax.tree.norm(grads), state[PART])
    return live, after["taken"].astype(jnp.float32), {PART: after}


def both(made: Array | None, live: Array | None) -> Array | None:
    """Returns whether an update is made and its parameter is not frozen (None: always)."""
    if made is None or live is None:
        return live if made is None else made
    return made & live


def judged(settings: SkipSpikes, norm: Array, before: dict[str, Array]) -> tuple[Array, Any]:
    """Returns (whether an update is made, the part of the state after it)."""
    mean, taken = before["norm"], before["taken"]
    live = jnp.isfinite(norm)
    if settings.ratio is not None:
        live &= (taken < settings.after) | (norm <= settings.ratio * mean)
    share = jnp.maximum(1.0 - settings.memory, 1.0 / (taken + 1))
    after = {"norm": mean + share * (norm - mean), "taken": taken + 1}
    return live, jax.tree.map(lambda new, old: jnp.where(live, new, old), after, before)


def made(before: Params, after: Params) -> Array | None:
    """Returns whether the update between two states of the optimizer was made (None: always)."""
    if PART not in before:
        return None
    return after[PART]["taken"] > before[PART]["taken"]


def chosen(live: Array | None, new: Params, old: Params) -> Params:
    """Returns a tree `new` if the update was made (None: always), and `old` otherwise."""
    if live is None:
        return new
    return jax.tree.map(lambda a, b: jnp.where(live, a, b), new, old)


def measured(live: Array | None, metrics: Params, loss: Loss) -> dict[str, Any]:
    """Returns the metrics of a step. A step that is left out counts in "skipped" alone.

    Its tokens count: they are not read again."""
    metrics = {**loss.metrics, "loss": Ratio(loss.sum, loss.weight), **metrics}
    if live is None:
        return metrics
    norm, tokens = metrics.pop("grad_norm"), metrics.pop("tokens")
    metrics["grad_norm"] = Ratio(norm, jnp.ones_like(norm))
    nothing = jax.tree.map(jnp.zeros_like, metrics)
    skipped = 1.0 - live.astype(jnp.float32)
    return {**chosen(live, metrics, nothing), "tokens": tokens, "skipped": skipped}


def described(settings: SkipSpikes, skipped: int, steps: range) -> str:
    """Returns the remark on the updates that were left out among some steps."""
    larger = "" if settings.ratio is None else f", or above {settings.ratio:g} times its mean"
    were = "update was" if skipped == 1 else "updates were"
    return (
        f"{skipped} {were} left out in the steps {steps[0]} to {steps[-1]}: the norm of the "
        f"gradient is not finite{larger}"
    )


def is_stuck(settings: SkipSpikes, skipped: int, barren: int) -> bool:
    """Whether a run cannot go on as it is.

    skipped  updates that were left out since the last line of the log
    barren   updates that were left out since the last one that was made, if that is earlier
    """
    if settings.patience is None:
        return barren >= BARREN
    return max(skipped, barren) >= settings.patience


def check_return(
    settings: SkipSpikes, skipped: int, steps: range, last: int | None, before: int | None
) -> None:
    """Raises UserError if a run cannot return to its last checkpoint.

    last    step of that checkpoint, or None
    before  step of the checkpoint to which it returned the last time, or None
    """
    if settings.patience is None:
        why = "none is left"
    elif last is None:
        why = "there is no checkpoint yet"
    elif last == before:
        why = f"the run has already returned to step {last}"
    else:
        return
    raise UserError(
        f"{skipped} of the updates {steps[0]} to {steps[-1]} were left out, and {why}: start again "
        f"in another workdir {LESS}"
    )


def not_finite(name: str, done: int, last: int | None) -> UserError:
    """Returns the error of a metric that is NaN or infinite. `last` is the newest checkpoint."""
    remark = "" if last is None else f"; the checkpoint of step {last} is kept"
    return UserError(
        f"the {name} is not finite at step {done}{remark}: start again in another workdir {LESS}, "
        "or leave such updates out (--set recipe.clip='SkipSpikes()')"
    )
