"""Checkpoints with `pruned_heads`, {layer: [numbers of removed heads]} (Transformers below 5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.family import Family
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.uneven import UnevenStack, blocks_of, stack_of, with_heads

FIELD = "pruned_heads"


def prunable(family: Family) -> Family:
    """Returns a family whose encoder is one stack `encoder/stack`, with `pruned_heads` in its configs.

    A removed head has no tensor, and the other heads of its layer keep their order. So a config only has to name as many
    heads as are gone; an exported one names the last."""

    def build(config: Config, architecture: str) -> System:
        removed = _removed(config)
        system = family.build(config, architecture)
        return system if not removed else _changed(system, lambda stack: _apart(stack, removed, config))

    def lines(config: Config, architecture: str) -> tuple[Line, ...]:
        found = family.lines(config, architecture)
        if not _removed(config):
            return found
        stack = build(config, architecture).towers["main"].encoder.stack
        if isinstance(stack, Stack):
            return found
        return tuple(part for line in found for part in _split(line, stack.layers))

    def fields(system: System) -> dict[str, Any]:
        stack = system.towers["main"].encoder.stack
        found = [block.attention for block in blocks_of(stack) if isinstance(block, Block)]
        removed = {
            str(i): list(range(one.heads, one.width // one.each[1])) for i, one in enumerate(found) if type(one) is Attention
        }
        removed = {layer: heads for layer, heads in removed.items() if heads}
        return family.config(system) if not removed else {**family.config(_changed(system, _whole)), FIELD: removed}

    return dataclasses.replace(family, build=build, lines=lines, config=fields)


def _removed(config: Config) -> Mapping[int, set[int]]:
    found = config(FIELD, dict, {})
    try:
        removed = {int(layer): {int(head) for head in heads} for layer, heads in found.items()}
    except (TypeError, ValueError):
        raise UserError(f"{config.file}: {FIELD} is {found!r}; it must be {{layer: [heads]}}") from None
    return {layer: heads for layer, heads in removed.items() if heads}


def _changed(system: System, change: Any) -> System:
    main = system.towers["main"]
    encoder = dataclasses.replace(main.encoder, stack=change(main.encoder.stack))
    return dataclasses.replace(system, towers={**system.towers, "main": dataclasses.replace(main, encoder=encoder)})


def _apart(stack: Stack, removed: Mapping[int, set[int]], config: Config) -> UnevenStack | Stack:
    attention = stack.block.attention
    for layer, heads in removed.items():
        if not 0 <= layer < stack.layers or not heads < {*range(attention.heads)}:
            raise UserError(
                f"{config.file}: {FIELD} removes {sorted(heads)} of layer {layer}; it has {stack.layers} layers of "
                f"{attention.heads} heads, and each keeps one"
            )
    counts = [attention.heads - len(removed.get(layer, ())) for layer in range(stack.layers)]
    return stack_of([dataclasses.replace(stack.block, attention=with_heads(attention, count)) for count in counts], stack)


def _whole(stack: Stack | UnevenStack) -> Stack:
    """The stack before heads were removed."""
    full = lambda one: with_heads(one, one.width // one.each[1])
    found = stack_of([dataclasses.replace(block, attention=full(block.attention)) for block in blocks_of(stack)], stack)
    if isinstance(found, UnevenStack):
        raise UserError("its layers differ in more than heads")
    return found


def _split(line: Line, layers: int) -> list[Line]:
    """The lines of each layer for a line of the stack."""
    start = "encoder/stack/block/"
    if not line.ours.startswith(start) or "{i}" not in line.theirs:
        return [line]
    rest = line.ours.removeprefix(start)
    each = lambda i: {"ours": f"encoder/stack/blocks_{i}/{rest}", "theirs": line.theirs.replace("{i}", str(i))}
    return [dataclasses.replace(line, **each(i)) for i in range(layers)]
