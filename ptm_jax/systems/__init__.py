"""The survey's catalogue of systems.

from ptm_jax import systems
systems.get("bert_tiny")
systems.get("albert_mini+spanbert_mini")    # SpanBERT's task on ALBERT's encoder
"""

from __future__ import annotations

from typing import Any


def get(name: str) -> Any:
    """The System of a name, or of two joined by "+": the encoder of the first, the task of the second.

    An unknown name is a UserError with the closest match.
    """
    encoder, joint, task = name.partition("+")
    if not joint:
        return _complete().get(name)
    from ptm_jax.systems.compose import compose

    return compose(get(encoder), get(task))


def names() -> tuple[str, ...]:
    """All names, in the order of the catalogue."""
    return _complete().names()


def _complete():
    from ptm_jax.core import registry

    registry.discover("ptm_jax.systems")
    return registry.catalogue
