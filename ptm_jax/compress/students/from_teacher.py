"""How a student is made from its teacher's network."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.networks import Network
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.embeddings.summed import has_free_width
from ptm_jax.nn.layers import Dropout
from ptm_jax.nn.stacks import has_free_sizes, stacks_of


class Student(slots.Slot):
    """The network of a student, and its first parameters."""

    def tower(self, teacher: Network) -> Any:
        """Returns the student's network. Raises ValueError if the teacher does not fit."""
        raise NotImplementedError

    def begin(self, params: Mapping[str, Any], teacher: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the first parameters of the student, from random ones and the teacher's."""
        return params


def stack_of(teacher: Network) -> Stack:
    """Returns the stack of a tower's layers.

    Raises ValueError where layers share parameters, or there is no stack.
    """
    encoder = slots.encoder_in(teacher)
    stack = None if encoder is None else stacks_of(encoder).get("stack")
    if stack is None or stack.levels != stack.layers:
        raise ValueError(
            f"{type(encoder).__name__} is no stack of layers with parameters of their own; "
            "give the student"
        )
    return stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class SomeLayers(Student):
    """The teacher with some of its layers and their parameters (DistilBERT: every second one; PKD:
    the first ones).

    keep    number of layers, or the numbers of the kept layers, from 1
    which   layers that a number selects: "even" spreads them up to the last, "first" takes the
            lowest, "last" the highest
    layout  "same": the teacher's; "distilbert": no vectors of sentence types, dropout only in the
            second branch, and a ReLU before the last layer of a new text head
    """

    keep: int | tuple[int, ...] = 6
    which: str = "even"
    layout: Literal["same", "distilbert"] = "same"

    def __post_init__(self):
        numbers = (self.keep,) if isinstance(self.keep, int) else self.keep
        if not numbers or min(numbers) < 1 or self.which not in ("even", "first", "last"):
            raise ValueError(
                f"keep is {self.keep}, which {self.which!r}; layers count from 1, and which "
                "is even, first or last"
            )

    def numbers(self, layers: int) -> tuple[int, ...]:
        """Returns the numbers of the layers that stay, from 1.

        Raises ValueError for more than there are.
        """
        if isinstance(self.keep, int):
            count, first = self.keep, range(1, self.keep + 1)
            even = [number * layers // count for number in first]
            numbers = {
                "even": even,
                "first": first,
                "last": [layers - count + number for number in first],
            }[self.which]
        else:
            count, numbers = max(self.keep), self.keep
        if count > layers:
            raise ValueError(
                f"keep is {self.keep}, and the teacher has {layers} layers; keep at most these"
            )
        return tuple(numbers)

    def tower(self, teacher: Network) -> Any:
        stack, encoder, heads = stack_of(teacher), teacher.encoder, dict(teacher.heads)
        stack = stack.clone(layers=len(self.numbers(stack.layers)))
        if self.layout == "same":
            return teacher.clone(encoder=encoder.clone(stack=stack))
        block, embed = stack.block, encoder.embed
        stack = stack.clone(block=block.clone(dropout=0.0, after_ffn=Dropout(block.dropout)))
        embed = embed.without_types()
        heads = {name: head for name, head in heads.items() if name not in ("pool", "nsp")}
        for name in heads.keys() & {"classify", "choose"}:
            heads[name] = heads[name].clone(summary=heads[name].summary.clone(activation="relu"))
        return teacher.clone(encoder=encoder.clone(stack=stack, embed=embed), heads=heads)

    def begin(self, params: Mapping[str, Any], teacher: Mapping[str, Any]) -> Mapping[str, Any]:
        mine, its = flatten(params), flatten(teacher)
        block = "encoder/stack/block/"
        layers = next(len(leaf) for path, leaf in its.items() if path.startswith(block))
        chosen = jnp.asarray([number - 1 for number in self.numbers(layers)])

        def begin(path):
            return its[path][chosen] if path.startswith(block) else jnp.copy(its[path])

        new = r"^heads_(classify|choose)/" if self.layout == "distilbert" else r"^$"
        known = {path for path in mine if path in its and not re.search(new, path)}
        return unflatten(
            {path: begin(path) if path in known else leaf for path, leaf in mine.items()}
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Narrow(Student):
    """The teacher's network in other sizes, with random parameters.

    It has the teacher's vocabulary, positions, kinds of layers and heads (TinyBERT: 4 layers of
    312, 12 heads, 1,200; MiniLM: 6 of 384, 12 heads, 1,536).
    """

    layers: int = 4
    width: int = 312
    heads: int = 12
    hidden: int = 1200

    def __post_init__(self):
        if min(self.layers, self.width, self.heads, self.hidden) < 1 or self.width % self.heads:
            raise ValueError(
                f"{self} has sizes below 1, or a width that is no multiple of its heads; "
                "correct them"
            )

    def tower(self, teacher: Network) -> Any:
        stack, encoder = stack_of(teacher), teacher.encoder
        block, embed = stack.block, encoder.embed
        if not has_free_sizes(block) or not has_free_width(embed):
            raise ValueError(
                f"the layers of a {type(block).__name__} have sizes of their own; give the "
                "student as begin=MODEL"
            )
        if self.width > block.attention.width or self.layers > stack.layers:
            raise ValueError(
                f"the student has {self.layers} layers of {self.width}, and the teacher "
                f"{stack.layers} of "
                f"{block.attention.width}; a student is no larger than its teacher"
            )
        attention = block.attention.clone(heads=self.heads, width=self.width, head_width=None)
        block = block.clone(attention=attention, ffn=block.ffn.clone(hidden=self.hidden))
        stack, embed = stack.clone(block=block, layers=self.layers), embed.clone(width=self.width)
        return teacher.clone(encoder=encoder.clone(stack=stack, embed=embed))
