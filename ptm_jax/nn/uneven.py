"""A stack of blocks of different sizes, as structured pruning leaves them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots, spec
from ptm_jax.core.types import Encoded, Params
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.layers import Context, Identity, Module
from ptm_jax.nn.parallel import gathered


class UnevenStack(slots.Layered, Module):
    """Layers with their own numbers of heads and hidden units.

    The parameters are `blocks_0/...`, `blocks_1/...`.

    Returns `Encoded` as `Stack` does. In the probabilities [N, B, H, L, L] H is the maximal number
    of heads; heads that a layer lacks are 0. It keeps no cache: a model that decodes needs layers
    of one size.
    """

    blocks: tuple[Block, ...]
    final_norm: nn.Module = Identity()

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @property
    def levels(self) -> int:
        return len(self.blocks)

    def level_of(self, path: str) -> int:
        match = re.match(r"blocks_(\d+)/", path)
        return self.levels if match is None else int(match[1]) + 1

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        if cache is not None:
            raise ValueError(
                "layers of different sizes keep no cache; decode with the model before heads "
                "were removed"
            )
        outputs, attention = [], []
        for block in self.blocks:
            x, probabilities, _ = block(x, context)
            outputs.append(x)
            attention.append(probabilities)
        hidden = jax.tree.map(gathered, self.final_norm(x))
        return Encoded(hidden, jnp.stack(outputs), _stacked(attention))


def is_uneven(stack: slots.Layered | None) -> bool:
    """Returns whether the layers of a stack may differ in size."""
    return isinstance(stack, UnevenStack)


def is_separate(stack: slots.Layered | None) -> bool:
    """Returns whether every layer of a stack is a block with parameters of its own."""
    return isinstance(stack, UnevenStack) or (isinstance(stack, Stack) and stack.alike)


def blocks_of(stack: slots.Layered | None) -> tuple[Block, ...]:
    """Returns the blocks of the layers of a stack; () of a stack that is not made of blocks."""
    if isinstance(stack, UnevenStack):
        return stack.blocks
    return (stack.block,) * stack.layers if isinstance(stack, Stack) else ()


def layers_of(stack: Stack | UnevenStack, params: Params) -> list[Params]:
    """Returns the parameters of each layer of a stack (`is_separate`) from the stack's."""
    if isinstance(stack, UnevenStack):
        return [params[f"blocks_{number}"] for number in range(stack.layers)]
    return [
        jax.tree.map(lambda leaf, number=number: np.asarray(leaf[number]), params["block"])
        for number in range(stack.layers)
    ]


def of_layers(stack: Stack | UnevenStack, layers: Sequence[Params]) -> dict[str, Params]:
    """Returns the parameters of a stack from each layer's: the inverse of `layers_of`."""
    if isinstance(stack, UnevenStack):
        return {f"blocks_{number}": layer for number, layer in enumerate(layers)}
    return {"block": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}


def stack_of(blocks: Sequence[Block], like: Stack | UnevenStack) -> Stack | UnevenStack:
    """Returns a stack of these blocks, with the other fields of `like`; a `Stack` if equal."""
    if any(spec.differences(blocks[0], other) for other in blocks[1:]):
        return UnevenStack(blocks=tuple(blocks), final_norm=like.final_norm)
    if isinstance(like, Stack):
        return dataclasses.replace(like, block=blocks[0], layers=len(blocks))
    return Stack(block=blocks[0], layers=len(blocks), final_norm=like.final_norm)


def with_heads(attention: Attention, heads: int) -> Attention:
    """Returns the attention with another number of heads of the same width."""
    each = attention.each[1]
    return dataclasses.replace(
        attention, heads=heads, head_width=None if heads * each == attention.width else each
    )


def missing_heads(block: nn.Module) -> int:
    """Returns the number of heads that a block lacks for its width; 0 for another kind of block."""
    attention = block.attention if isinstance(block, Block) else None
    if type(attention) is not Attention or attention.width % attention.each[1]:
        return 0
    return max(0, attention.width // attention.each[1] - attention.heads)


def _stacked(attention):
    if any(part is None for part in attention):
        return None
    heads = max(part.shape[1] for part in attention)
    return jnp.stack(
        [jnp.pad(part, ((0, 0), (0, heads - part.shape[1]), (0, 0), (0, 0))) for part in attention]
    )
