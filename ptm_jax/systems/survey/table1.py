"""Tasks of the survey's Table 1 that belong to no system here, on a small encoder.
BiLM, contrast, ranking, noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptm_jax.core.system import System
from ptm_jax.corruptions.masking.noisywords import NoisyPairs, NoisyWords
from ptm_jax.corruptions.views import ReplacedWord, TwoCrops
from ptm_jax.data.rows.examples import Packed
from ptm_jax.nn.heads.pretraining import Detector, Score
from ptm_jax.nn.heads.vocabulary import Classifier, Pooler
from ptm_jax.objectives.text.contrastive import InfoNCE, PairwiseRanking
from ptm_jax.objectives.text.detection import AddedWords
from ptm_jax.objectives.text.language import BiLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.transformers import cloze
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, bert, miniature

if TYPE_CHECKING:
    from ptm_jax.core.slots import Objective


SMALL = (2, 128, 2)


def on_bert(
    name: str,
    paper: str,
    row: int,
    corruption: Any,
    objective: Objective,
    *,
    heads: dict[str, Any],
    **training,
) -> System:
    """Returns a miniature BERT with another task."""
    parent = bert("", *SMALL)
    tower = parent.towers["main"].clone(heads=heads)
    slots = {
        "towers": {"main": tower},
        "examples": Packed(),
        "corruption": corruption,
        "objective": objective,
    }
    system = dataclasses.replace(parent, paper=paper, rows=(row,), **slots)
    return miniature(system, name, **training)


def systems() -> Iterator[System]:
    yield dataclasses.replace(
        miniature(cloze.cloze("", 2, 128, 2, 2, steps=1), "bilm_mini", steps=120, lr=2e-3),
        paper="Peters et al. 2018, NAACL (task)",
        rows=(69,),
        objective=BiLM(),
    )
    yield on_bert(
        "contrast_mini",
        "van den Oord et al. 2018, arXiv 1807.03748 (task)",
        76,
        TwoCrops(vocab=BERT_UNCASED),
        InfoNCE(temperature=0.1, similarity="cosine", both_ways=True),
        heads={"pool": Pooler()},
        steps=150,
        lr=5e-4,
        std=0.08,
    )
    yield on_bert(
        "ranking_mini",
        "Collobert et al. 2011, JMLR 12 (task)",
        77,
        ReplacedWord(vocab=BERT_UNCASED),
        PairwiseRanking(),
        heads={"pool": Pooler(), "score": Score()},
        steps=300,
        lr=5e-4,
        std=0.08,
        length=16,
        batch=64,
    )
    noisy = "Wang et al. 2020, arXiv 1908.05378"
    yield on_bert(
        "noisywords_mini",
        noisy,
        94,
        NoisyWords(vocab=BERT_UNCASED),
        AddedWords(),
        heads={"noise": Detector()},
        steps=300,
        lr=1e-3,
        std=0.08,
    )
    yield on_bert(
        "noisypairs_mini",
        noisy,
        94,
        NoisyPairs(vocab=BERT_UNCASED),
        NSP(label="pair_label", name="original"),
        heads={"pool": Pooler(), "nsp": Classifier(2)},
        steps=180,
        lr=5e-4,
        std=0.08,
    )
