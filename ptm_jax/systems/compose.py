"""Any task on any encoder: the task of one system, the encoder of another.

compose("transformer_xl_mini", "electra_mini")     # replaced token detection on a Transformer-XL
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core import spec
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import System, Tie, refusal
from ptm_jax.core.towers import abstract
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.orders import MaskMixture
from ptm_jax.corruptions.prefix import SingleStream
from ptm_jax.data.examples import Contiguous
from ptm_jax.encoders.model import Model
from ptm_jax.objectives.base import corruption_says
from ptm_jax.objectives.seq2seq import Seq2Seq


def compose(encoder: System, task: System, *, name: str = "") -> System:
    """`task` on the encoder of the system `encoder`, which keeps its recipe and its adaptations.

    From `task` come tokenizer, vocabulary, examples, corruption, objective, heads and further towers (ELECTRA's
    generator). What follows from the parts is done here, so that a composition is a line:

    - a sequence-to-sequence task on a single network becomes one row, source before target (`SingleStream`)
    - an encoder with a memory reads contiguous rows that go on; where a task cuts rows otherwise it has none
    - UniLM's kinds of mask go without types of their own where the encoder has fewer than six
    - ties for which the other encoder has no parameter, or one of another shape, are left out

    What cannot work is told by `core.system.refusal` and never compiled.
    """
    network = spec.respell(encoder.towers["main"].encoder, Vocab, _vocab(task))
    corruption, examples = task.corruption, task.examples
    if isinstance(task.objective, Seq2Seq) and network.sees != "decoder" and not corruption_says(task, "single_stream"):
        corruption = SingleStream(part=corruption)
    if getattr(getattr(network, "embed", None), "types", 0) < 6:
        corruption = spec.respell(corruption, MaskMixture, lambda mixture: dataclasses.replace(mixture, types=False))
    if getattr(network, "memory", 0):
        if isinstance(examples, Contiguous):
            examples = dataclasses.replace(examples, continuing=True)
        else:
            network = dataclasses.replace(network, memory=0)
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
        ties=_kept(task.ties, towers),
    )


def matrix(encoders: dict[str, System], tasks: dict[str, System]) -> dict[tuple[str, str], str | None]:
    """{(encoder, task): why it cannot work, or None where it does}; nothing is compiled."""
    return {
        (row, column): refusal(encoder if encoder is task else compose(encoder, task))
        for row, encoder in encoders.items()
        for column, task in tasks.items()
    }


def _vocab(system: System) -> Vocab:
    found: list[Vocab] = []
    spec.respell(system.towers["main"], Vocab, lambda vocab: found.append(vocab) or vocab)
    return found[0]


def _kept(ties: tuple[Tie, ...], towers: dict[str, Any]) -> tuple[Tie, ...]:
    """The ties both of whose ends are there and have one shape."""
    if not ties:
        return ()
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    shapes = {path: leaf.shape for path, leaf in flatten(abstract(towers, {"input_ids": ids})).items()}
    return tuple(tie for tie in ties if shapes.get(tie.path, 0) == shapes.get(tie.source, 1))
