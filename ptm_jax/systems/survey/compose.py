"""Combines the encoder of one system with the task of another.

compose("transformer_xl_mini", "electra_mini")     # replaced token detection on a Transformer-XL
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core import slots, spec
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import System, Tie, refusal
from ptm_jax.core.towers import abstract
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.orders import MaskMixture
from ptm_jax.corruptions.masking.source_target import SingleStream
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.mentions import Lexicon
from ptm_jax.objectives.base import corruptions_of
from ptm_jax.objectives.text.seq2seq import Seq2Seq


def compose(encoder: System, task: System, *, name: str = "") -> System:
    """Returns a system with encoder, recipe and adaptations of `encoder` and the task of `task`.

    From `task` come the tokenizer, vocabulary, examples, corruption, objective, heads and further
    towers (ELECTRA's generator). These adjustments are made:

    - a sequence-to-sequence task on a single network puts source and target into one row
      (`SingleStream`)
    - an encoder with memory reads contiguous rows that continue across batches; with other examples
      its memory is removed
    - UniLM's mask kinds get no token types of their own if the encoder has fewer than six
    - a tie is dropped if the encoder lacks its parameter or has it in another shape

    For an impossible composition, `core.system.refusal` returns the reason; nothing is compiled.
    """
    made = _untied(encoder, task, name)
    return made if refusal(made) else dataclasses.replace(made, ties=_kept(task.ties, made.towers))


def _untied(encoder: System, task: System, name: str = "") -> System:
    """Returns the composition without ties, which need the shapes of all parameters and which no
    refusal reads."""
    network = spec.respell(encoder.towers["main"].encoder, Vocab, _vocab(task))
    corruption, examples = task.corruption, task.examples
    one_row = any(isinstance(part, slots.OneRow) for part in corruptions_of(task))
    if isinstance(task.objective, Seq2Seq) and network.direction != "decoder" and not one_row:
        corruption = SingleStream(part=corruption)
    if network.types < 6:
        corruption = spec.respell(
            corruption, MaskMixture, lambda mixture: dataclasses.replace(mixture, types=False)
        )
    if network.carries:
        if isinstance(examples, Contiguous):
            examples = dataclasses.replace(examples, continuing=True)
        else:
            network = network.without_memory()
    towers = {**task.towers, "main": Model(encoder=network, heads=task.towers["main"].heads)}
    return dataclasses.replace(
        encoder,
        name=name or f"{encoder.name}+{task.name}",
        paper=encoder.paper if encoder.paper == task.paper else f"{encoder.paper}; {task.paper}",
        rows=tuple(sorted({*encoder.rows, *task.rows})),
        towers=towers,
        tokenizer=task.tokenizer,
        examples=examples,
        corruption=corruption,
        objective=task.objective,
        ties=(),
    )


def matrix(
    encoders: dict[str, System], tasks: dict[str, System]
) -> dict[tuple[str, str], str | None]:
    """Returns {(encoder, task): the refusal, or None if the pair works}. Nothing is compiled."""
    return {
        (row, column): refusal(encoder if encoder is task else _untied(encoder, task))
        for row, encoder in encoders.items()
        for column, task in tasks.items()
    }


def _vocab(system: System) -> Vocab:
    vocabs: list[Vocab] = []
    spec.respell(system.towers["main"], Vocab, lambda vocab: vocabs.append(vocab) or vocab)
    return vocabs[0]


def _kept(ties: tuple[Tie, ...], towers: dict[str, Any]) -> tuple[Tie, ...]:
    """Returns the ties between two existing parameters of the same shape."""
    if not ties:
        return ()
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    towers = spec.respell(
        towers, Lexicon, lambda lexicon: lexicon.filled(lexicon.stand_in(Vocab(size=64)))
    )
    shapes = {
        path: leaf.shape for path, leaf in flatten(abstract(towers, {"input_ids": ids})).items()
    }
    return tuple(tie for tie in ties if shapes.get(tie.path, 0) == shapes.get(tie.source, 1))
