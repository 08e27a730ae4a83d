"""The scanned stacks of a network, and whether the sizes of their blocks may change."""

from __future__ import annotations

from typing import Any

import flax.linen as nn

from ptm_jax.core import slots, spec
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack


def has_free_sizes(block: nn.Module) -> bool:
    """Returns whether a block is one of plain attention and a feed-forward layer, of any sizes."""
    return (
        isinstance(block, Block)
        and isinstance(block.attention, Attention)
        and isinstance(block.ffn, FeedForward)
    )


def stacks_in(value: Any) -> dict[str, Stack]:
    """Returns {path: stack} of every scanned stack inside a tower, an encoder or a system."""
    return {path: part for path, part in spec.walk(value) if isinstance(part, Stack)}


def stacks_of(encoder: slots.Encoder) -> dict[str, Stack]:
    """Returns {path inside the encoder: stack} of its scanned stacks, from the input up."""
    return {path: part for path, part in encoder.stacks.items() if isinstance(part, Stack)}
