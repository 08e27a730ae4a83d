"""The survey's catalogue of systems.

from ptm_jax import systems
systems.get("bert_tiny")
"""

from __future__ import annotations

from typing import Any


def get(name: str) -> Any:
    """The System of a name; an unknown one is a UserError with the closest match."""
    return _complete().get(name)


def names() -> tuple[str, ...]:
    """All names, in the order of the catalogue."""
    return _complete().names()


def _complete():
    from ptm_jax.core import registry

    registry.discover("ptm_jax.systems")
    return registry.catalogue
