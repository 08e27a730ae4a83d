"""K-BERT: triples of a graph as branches of the sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core import spec
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.knowledge.sentence_trees import TreeTransformer
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.knowledge.lexicons import Branches
from ptm_jax.systems.transformers.bert_gpt import BERT_CHINESE, BERT_UNCASED, bert, miniature

GROUP = "Knowledge-enriched models"


def kbert(
    name: str,
    layers: int,
    width: int,
    heads: int,
    vocab: Vocab = BERT_CHINESE,
    *,
    longest: int = 16,
) -> System:
    """K-BERT (Liu et al. 2020): a BERT whose rows are sentence trees; section 3.
    A mention has at most two triples.

    Row 100. It has BERT's parameters and pre-training. The paper starts from Google's Chinese BERT
    and adds its graphs when fine-tuning, in 5 epochs of batches of 32 (of 16 for tags) with rate
    2e-5 and rows of 256 tokens (autoliuweijie/K-BERT):

        ptm train --init bert-base-chinese --task chnsenticorp --data DIR --adapt sentence_trees \\
            --set system.adapt.0.branches.file=HowNet.spo --epochs 5 --batch 32 --lr 2e-5 \\
            --length 256

    Deviations: names are found by longest match over token ids, where the original looks up the
    words of a segmenter, in which names of the graph are words; rows have 64 more slots for
    branches, where there a row of 256 is cut; a branch has at most 16 tokens (HowNet's and the
    medical graph's have 9 at most); a name's triples are the first of the file, there any; masked
    names have no branches.
    """
    parent = bert(name, layers, width, heads, vocab)

    def trees(part):
        return TreeTransformer(
            **spec.values_of(part), branches=Branches(count=2, width=longest), room=64
        )

    return dataclasses.replace(
        parent,
        paper="Liu et al. 2020, arXiv 1909.07606",
        section="4.1",
        group=GROUP,
        rows=(100,),
        towers=spec.respell(parent.towers, Transformer, trees),
    )


def systems() -> Iterator[System]:
    yield kbert("kbert_base", 12, 768, 12)
    small = spec.with_field(kbert("", 2, 128, 2, BERT_UNCASED, longest=8), "room", 16)
    yield miniature(small, "kbert_mini", steps=400, lr=2e-3, std=0.08, length=64)
