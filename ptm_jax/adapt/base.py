"""What the adaptations share: which tower and which part of a network a parameter belongs to."""

from __future__ import annotations

import re

HEADS = r"/(heads|readers)_\w+/"
"""Parameters above the encoder: heads, and what reads its layers for them."""

NORMS = r"(^|/|_)norm/(scale|bias)$"
"""Parameters of normalisation."""


def tower_of(path: str) -> str:
    """The tower of a parameter: what an adaptation keeps beside the towers, as 'lora/main/...', is of the tower it names."""
    first, _, rest = path.partition("/")
    return rest.partition("/")[0] if first == "lora" else first


def is_head(path: str) -> bool:
    """Whether a parameter lies above the encoder."""
    return re.search(HEADS, path) is not None
