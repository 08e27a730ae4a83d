"""The compiled training step, in as many micro-batches as the memory of the devices needs.

The update does not depend on the number of micro-batches (`training.steps.step`), so a batch that
does not fit is split, and a line on stderr has the number. It is kept in the checkpoints: a resumed
run rounds as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Recipe
from ptm_jax.mesh import rules
from ptm_jax.training.hosts import devices
from ptm_jax.training.logs import console

SHARE = 0.9
"""The share of the free memory that a step may take."""


def compiled(
    step: Callable[[int], Any], arguments: Sequence[Any], parts: Sequence[int], room: float | None
) -> tuple[Any, int]:
    """Returns (the compiled step, its number of micro-batches).

    step   number of micro-batches -> jitted step; arguments: its state, batch and seed
    parts  the numbers that are possible, ascending: the first that fits is taken, or the last
    room   bytes that the step may use on a device besides state and batch; None: unknown
    """
    least, batch_rows = parts[0], len(arguments[1]["rows"])
    while True:
        more = [number for number in parts if number > least]
        try:
            made = step(least).lower(*arguments).compile()
            need = _need(made)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or not more:
                raise
            made, need = None, math.inf  # a compiler that refuses what does not fit, as the TPU's
        if not more or made is not None and (need is None or room is None or need <= room):
            break
        times = 2 if made is None else math.ceil(need / max(room, need / parts[-1]))
        least = next((number for number in more if number >= least * times), more[-1])
    if least > parts[0]:
        fits = "" if room is None or need <= room else f", which still needs {need / 1e9:.1f} GB"
        console.say(
            f"a batch of {batch_rows} rows does not fit the {(room or 0) / 1e9:.1f} GB that "
            "are free: the same update is "
            f"computed in {least} micro-batches of {batch_rows // least} rows "
            f"(recipe.accumulate={least}){fits}"
        )
    return made, least


def parts_of(recipe: Recipe, rows: int, stored: int | None, readings: int, mesh: Mesh) -> list[int]:
    """Returns the possible numbers of micro-batches of a batch of `rows`.
    They begin at the recipe's number, or at the number `kept` in a checkpoint."""
    first = max(recipe.accumulate, stored or 1)
    if (
        readings > 1 or jax.process_count() > 1
    ):  # examples of several rows are not split; processes must agree
        return [recipe.accumulate]
    return [
        n
        for n in range(1, rows + 1)
        if rows % n == 0 and n >= first and (n == first or _shared(rows // n, mesh))
    ]


def room_of(mesh: Mesh) -> float | None:
    """Returns the bytes that a step may take on each device of a mesh, or None if unknown."""
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    free = [devices.free_memory(device) for device in local]
    shared = len(local) if local[0].platform == "cpu" else 1
    return None if None in free else SHARE * min(free) / shared


def _need(made: Any) -> float | None:
    analysis = made.memory_analysis()
    if analysis is None:
        return None
    return (
        analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    )


def _shared(rows: int, mesh: Mesh) -> bool:
    try:
        rules.check_batch(rows, mesh)
    except UserError:
        return False
    return True
