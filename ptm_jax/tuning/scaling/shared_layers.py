"""Parameters against operations where layers share parameters.
ALBERT's patterns; Lan et al. 2020, Table 4."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from ptm_jax.convert.checkpoint import example
from ptm_jax.core import slots, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import count
from ptm_jax.core.spec import respell
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.stacks import stacks_of
from ptm_jax.training.steps.flops import flops

if TYPE_CHECKING:
    from ptm_jax.core.system import System


PATTERNS: dict[str, dict[str, Any]] = {
    "none": {},
    "attention": {"shared": "^attention/"},
    "feed-forward": {"shared": "^ffn/"},
    "two groups": {"share": True, "groups": 2},
    "all": {"share": True},
}
"""{what layers share: fields of `Stack`}."""


class Shared(NamedTuple):
    """A pattern, the encoder's parameters, and the operations of its forward pass on one row."""

    pattern: str
    parameters: int
    operations: float


def report(system: System, length: int = 128, tower: str = "main") -> list[Shared]:
    """Returns parameters and operations of an encoder under each of `PATTERNS`.
    A row has `length` tokens.

    Nothing is computed but shapes. Raises UserError for an encoder without a `Stack`."""
    table, plain = [], {"share": False, "groups": 1, "cycle": 1, "shared": None}
    row = {name: jax.ShapeDtypeStruct((1, length), "int32") for name in example(system)}
    for name, fields in PATTERNS.items():
        # Operations are counted of the definition, because a kernel shows none.
        network = respell(
            respell(
                system.towers[tower],
                slots.Kernel,
                lambda part: dataclasses.replace(part, impl="reference"),
            ),
            Stack,
            lambda stack, pattern=fields: dataclasses.replace(stack, **{**plain, **pattern}),
        )
        stacks = list(stacks_of(network.encoder).values())
        if not stacks:
            raise UserError(
                f"{system.name} has no stack of layers that could share; take a Transformer"
            )
        if any(stack.layers % stack.groups for stack in stacks):
            continue
        params = towers.abstract({tower: network}, row)

        def work(params, rows, network=network):
            return towers.bind({tower: network}, params)[tower](rows).hidden

        table.append(Shared(name, count(params[tower]["encoder"]), flops(work, params, row)))
    return table
