"""Maximal update parametrisation: a narrow and a wide model have the same best learning rate.

Yang et al. 2022, arXiv 2203.03466, Table 8 for Adam, which allows a tied table. With m = width /
base width:

    embeddings, biases, gains   initial scale and rate as at the base width
    matrices of the stack       standard deviation / sqrt(m), rate / m
    logits                      the features are divided by m
    attention                   scores are divided by K instead of sqrt(K), equal at the base's head
                                width (Definition 4.1)

A system at the base width is unchanged. Deviations: Adam's epsilon and the decoupled decay (rate
times decay) are not adjusted; queries keep their initial scale (the paper's Appendix D.2 suggests
zero).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Adamax, AdamW
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import FeedForward
from ptm_jax.nn.heads.vocabulary import LMHead, WordHead
from ptm_jax.nn.initializers import FanIn, Initializer, Normal, TruncatedNormal

MATRICES = r"/stack/.*/kernel$"
"""Paths of the matrices whose both sides grow with the width."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MuP:
    """The parametrisation, by the sizes of the model whose rate and scales are known.

    width, head_width  D and K of that model
    """

    width: int
    head_width: int

    def of(self, system: System) -> System:
        """The system with its initial scales, multipliers and rates by path for its own width.

        Raises UserError for an optimizer that is not Adam's, and for a head without a multiplier of
        its features."""
        if not isinstance(system.recipe.optimizer, AdamW | Adamax):
            raise UserError(
                "muP's table is Adam's; the optimizer is "
                f"{type(system.recipe.optimizer).__name__}: choose AdamW"
            )
        parts = [part for _, part in spec.walk(system.towers)]
        if odd := [
            part for part in parts if isinstance(part, WordHead) and not isinstance(part, LMHead)
        ]:
            raise UserError(
                f"{type(odd[0]).__name__} does not scale its features, as muP asks; choose a "
                "system with an LMHead"
            )
        widths = {part.width for part in parts if isinstance(part, Attention)}
        if len(widths) != 1:
            raise UserError(
                f"{system.name or 'the system'} has {len(widths)} widths of attention; muP "
                "is for one"
            )
        m = widths.pop() / self.width
        towers = respell(system.towers, Attention, self._attention(m))
        towers = respell(towers, FeedForward, lambda part: _narrowed(part, m))
        towers = respell(
            towers, LMHead, lambda head: dataclasses.replace(head, scale=head.scale / m)
        )
        rules = () if m == 1 else ((MATRICES, 1 / m),)
        recipe = dataclasses.replace(system.recipe, lr_rules=(*rules, *system.recipe.lr_rules))
        return dataclasses.replace(system, towers=towers, recipe=recipe)

    def _attention(self, m: float):
        def change(part: Attention) -> Attention:
            head_width = part.each[1]
            before = head_width**-0.5 if part.scale is None else part.scale
            scale = (
                part.scale
                if head_width == self.head_width
                else before * (self.head_width / head_width) ** 0.5
            )
            return dataclasses.replace(_narrowed(part, m), scale=scale)

        return change


def _narrowed(part: Any, m: float) -> Any:
    """A layer whose initial matrices have a standard deviation sqrt(m) times smaller."""
    scaled = {name: _scaled(vars(part)[name], m) for name in ("initializer", "out_init")}
    return dataclasses.replace(part, **scaled)


def _scaled(initializer: Initializer | None, m: float) -> Any:
    if initializer is None or isinstance(initializer, FanIn):  # divided by the fan-in already
        return initializer
    if isinstance(initializer, Normal | TruncatedNormal):
        return dataclasses.replace(initializer, std=initializer.std * m**-0.5)
    raise UserError(
        "muP scales Normal, TruncatedNormal and FanIn; the initializer is "
        f"{type(initializer).__name__}"
    )
