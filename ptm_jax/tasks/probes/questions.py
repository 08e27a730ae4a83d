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

    by      "labels": linear probes of `label`; "structural": trees; "spans": edge probes;
            "phrases": clusters; "sentences": SentEval's tasks; "roles": tensor products;
            "constituency": phrases without training; "attention": linear probes of the weights
            between words; "senses": senses of words
    data    training and held-out sentences; of one file every fifth sentence is held out
    label   of words or spans; empty: the usual one of the file's format
    bits    whether the labels' description length is measured
    hidden  width of a hidden layer of the probes of labels and sentences; 0: they are linear
    pool    state of a sentence: "mean" of its words, or that of its "first" token
    rank    of the structural probes and of the map of senses; None: the width of the states
    bias    of constituents, towards trees that branch to the right
    memory  GB that the layers of a batch may take, and all states if the cache is off
    """

    by: str
    data: tuple[str, ...]
    label: str = ""
    bits: bool = False
    hidden: int = 0
    pool: str = "mean"
    rank: int | None = None
    bias: float = 0.0
    batch: int = 32
    memory: float = 4.0
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Figures of the layers.

    layers     {figure: its values [N+1], from layer `first` on}; layer 0 has the embeddings
    baselines  {name: value}, of no layer or of all layers together
    counts     {name: number} of sentences, words and labels
    label      that of the question, or of the file's format
    heads      {figure: its values [N, H]} of the heads of attention
    first      1 for figures of attention, else 0
    """

    layers: Mapping[str, np.ndarray]
    baselines: Mapping[str, float]
    counts: Mapping[str, int]
    label: str = ""
    heads: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    first: int = 0


class Part(NamedTuple):
    """Sentences, and the states [words, N+1, D] of their words in a model."""

    model: Pretrained
    sentences: Sequence[Sentence]
    states: np.ndarray
