"""The survey's catalogue of systems.

from ptm_jax import systems
systems.get("bert_tiny")
systems.get("albert_mini+spanbert_mini")    # SpanBERT's task on ALBERT's encoder

Nothing is built at import. Each module of this package has a function `systems()` that yields its
systems. `order.ORDER` lists the modules and their systems in catalogue order. Modules that it does
not list come last, sorted by name.
"""

from __future__ import annotations

import functools
from typing import Any

from ptm_jax.core.registry import catalogue, made, modules
from ptm_jax.systems.survey.order import ORDER

for _module, _names in ORDER.items():
    catalogue.declare(f"{__name__}.{_module}", _names.split())


def get(name: str) -> Any:
    """Returns the System `name`. "a+b" combines the encoder of a with the task of b.

    Raises UserError for an unknown name and suggests the closest match.
    """
    encoder, joint, task = name.partition("+")
    if joint:
        from ptm_jax.systems.survey.compose import compose

        return compose(get(encoder), get(task))
    if name not in catalogue:
        _add_unlisted()
    return catalogue.get(name)


def names() -> tuple[str, ...]:
    """Returns all names in catalogue order."""
    _add_unlisted()
    return catalogue.names()


@functools.cache
def _add_unlisted() -> None:
    """Registers the systems of modules that `order.ORDER` does not list."""
    for module in modules(__name__):
        if module.removeprefix(f"{__name__}.") not in ORDER:
            for system in made(module).values():
                catalogue.register(
                    system.name, functools.partial(made(module).__getitem__, system.name), module
                )
