"""Rows of a text with its tokens from last to first.
A left-to-right language model of them is a backward one."""

from __future__ import annotations

import dataclasses
import operator

import numpy as np

from ptm_jax.core import slots
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows.examples import Around, Contiguous, Fields, Spec


def is_backward(examples: slots.Examples) -> bool:
    """Returns whether rows hold the tokens of a text in reverse."""
    return isinstance(examples, Backward)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backward(Around):
    """The rows that `examples` cut from each block with its tokens in reverse.
    Howard and Ruder 2018, section 3.3.

    A task turns the encoder of such a model (`encoders.encoder_traits.Reversible`), and reads its
    texts as they are. The blocks themselves stay in the order of the text: a state that is carried
    from a block to the next meets another text.
    """

    examples: slots.Examples = Contiguous()

    spells = property(operator.attrgetter("examples.spells"))
    table = property(operator.attrgetter("examples.table"))

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields of `examples`. Raises UserError as they do."""
        return self.examples.spec(length, vocab)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...] of `examples`."""
        turned = {name: vars(block)[name][::-1] for name in ("tokens", "sentences", "documents")}
        block = dataclasses.replace(block, **turned, continued=np.zeros_like(block.continued))
        return self.examples.rows(block, length=length, vocab=vocab, rng=rng)
