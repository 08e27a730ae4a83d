"""What a probe is asked, and its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.tasks.probes.probe_data import Sentence

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a model.

    by      "labels": linear probes of `label`; "structural": trees
    data    training and held-out sentences; of one file every fifth sentence is held out
    bits    whether the labels' description length is measured
    rank    of the structural probes; None: the width of the states
    """

    by: str
    data: tuple[str, ...]
    label: str = "upos"
    bits: bool = False
    rank: int | None = None
    batch: int = 32
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Figures of the layers.

    layers     {figure: its values [N+1]}; layer 0 has the embeddings
    baselines  {name: value}, of no layer or of all layers together
    counts     {name: number} of sentences, words and labels
    """

    layers: Mapping[str, np.ndarray]
    baselines: Mapping[str, float]
    counts: Mapping[str, int]


class Part(NamedTuple):
    """Sentences, and the states [words, N+1, D] of their words in a model."""

    model: Pretrained
    sentences: Sequence[Sentence]
    states: np.ndarray
