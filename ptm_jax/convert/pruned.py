"""Checkpoints whose layers lack attention heads.
The field `pruned_heads` of a config is {layer: [heads]}.

Transformers up to version 4 builds its layers without these heads (`prune_heads`); version 5 has
dropped the method and ignores the field, so that it cannot load such a file. The tensors of a layer
are smaller: [kept * K, D], not [H * K, D].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer import transformer
from ptm_jax.nn.uneven import blocks_of, is_uneven, missing_heads, stack_of, with_heads

FIELD = "pruned_heads"
READERS = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Families whose classes of Transformers 4 read the field."""
BLOCK = "encoder/stack/block/"


def smaller(system: System, config: Config) -> System:
    """Returns the system without the heads that the config names.
    Raises UserError for a field that names no head, or all heads of a layer, and for a family whose
    layers do not lose heads."""
    pruned = config(FIELD, dict, None)
    if not pruned or not any(pruned.values()):
        return system
    if config("model_type", str) not in READERS:
        raise UserError(
            f"{config.file}: {FIELD} is for {', '.join(READERS)}; remove it for whole layers"
        )
    stack = _stack(system)
    if is_uneven(stack) or not blocks_of(stack):
        raise UserError(
            f"{config.file}: {FIELD} is for layers with parameters of their own; remove it "
            "for whole layers"
        )
    heads, gone = stack.block.attention.heads, {}
    for layer, numbers in pruned.items():
        known = isinstance(numbers, list) and all(
            type(head) is int and 0 <= head < heads for head in numbers
        )
        if (
            not str(layer).isdecimal()
            or int(layer) >= stack.layers
            or not known
            or len(set(numbers)) == heads
        ):
            raise UserError(
                f"{config.file}: {FIELD} has {layer!r}: {numbers!r}; there are layers 0 to "
                f"{stack.layers - 1} of {heads} "
                "heads, of which one stays"
            )
        gone[int(layer)] = len(set(numbers))
    blocks = [_with(stack.block, heads - gone.get(number, 0)) for number in range(stack.layers)]
    return _with_stack(system, stack_of(blocks, stack))


def lines(table: tuple[Line, ...], system: System) -> tuple[Line, ...]:
    """Returns the rename table for a system whose layers differ: a line for each of them."""
    stack = _stack(system)
    if not is_uneven(stack):
        return table
    made: list[Line] = []
    for line in table:
        if not (line.ours + "/").startswith(BLOCK):
            made.append(line)
            continue
        for number in range(len(stack.blocks)):
            ours = line.ours.replace(BLOCK, f"encoder/stack/blocks_{number}/", 1)
            made.append(
                dataclasses.replace(line, ours=ours, theirs=line.theirs.replace("{i}", str(number)))
            )
    return tuple(made)


def whole(system: System) -> System | None:
    """Returns the system with all heads in every layer, where only heads are missing.
    None where none is."""
    stack = _stack(system)
    if not any(missing_heads(block) for block in blocks_of(stack)):
        return None
    blocks = [_with(each, each.attention.heads + missing_heads(each)) for each in blocks_of(stack)]
    full = stack_of(blocks, stack)
    return None if is_uneven(full) else _with_stack(system, full)


def field(system: System) -> Mapping[str, dict[str, list[int]]]:
    """Returns the field for a system with missing heads: the last ones.
    The place of a head is of no effect."""
    missing = {}
    for number, block in enumerate(blocks_of(_stack(system))):
        if gone := missing_heads(block):
            missing[str(number)] = list(range(block.attention.heads, block.attention.heads + gone))
    return {FIELD: missing}


def _stack(system: System) -> Any:
    return transformer.stack_of(system.towers["main"].encoder)


def _with(block: Any, heads: int) -> Any:
    return dataclasses.replace(block, attention=with_heads(block.attention, heads))


def _with_stack(system: System, stack: Any) -> System:
    main = system.towers["main"]
    main = dataclasses.replace(main, encoder=dataclasses.replace(main.encoder, stack=stack))
    return dataclasses.replace(system, towers={**system.towers, "main": main})
