"""Systems that learn triples of a graph as texts: LIBERT, KEPLER and KG-BERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.triples import Triples
from ptm_jax.corruptions.triples import TripleText
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.graphs import WithDescribedTriple
from ptm_jax.data.rows.lexical_pairs import WithLexicalPairs
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.entities import Relations
from ptm_jax.nn.heads.vocabulary import Classifier, Pooler
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.joint import Joint, TaskMixing
from ptm_jax.objectives.language import MLM
from ptm_jax.objectives.sentence_pairs import NSP
from ptm_jax.objectives.triples import KE, LRC
from ptm_jax.systems.masked import headed
from ptm_jax.systems.sentence_trees import GROUP
from ptm_jax.systems.transformers import BERT_UNCASED, bert, miniature, roberta

WIKIDATA5M = 822
"""Relations of Wikidata5m (Wang et al. 2021, Table 1)."""


def libert(name: str, layers: int, width: int, heads: int) -> System:
    """LIBERT (Lauscher et al. 2020): BERT with a third task, whether two words are synonyms or hypernyms; section 3.

    Rows 90 and 104, trained from scratch with the settings of anlausch/LIBERT (code/poc_pretraining_libert.sh): 4 million
    steps of 16 rows of 128 tokens, half of them of pairs of words. Pairs are those of a compiled graph of WordNet, and
    unrelated words are the nearest in fastText's space: `--set examples.graph.file=GRAPH
    examples.graph.vectors=wiki-news-300d-1M-subword.vec`. The pairs of the paper are WordNet's and Roget's, which are not
    published.
    Deviations: a step draws its task, where the original takes turns; a step has three pairs a row, 48, where the original's
    has 16; the pooled state has no dropout before the classifier, which has one output.
    """
    parent = bert(name, layers, width, heads)
    words = Joint(parts=((1.0, MLM()), (1.0, NSP())))
    return dataclasses.replace(
        parent,
        paper="Lauscher et al. 2020, arXiv 1909.02339",
        section="4.1",
        group=GROUP,
        rows=(90, 104),
        towers=headed(parent, lrc=Classifier(1)),
        examples=WithLexicalPairs(examples=parent.examples),
        objective=TaskMixing(tasks=(LRC(), words), rates=(1.0, 1.0)),
        recipe=dataclasses.replace(
            parent.recipe, phases=(Phase(steps=4_000_000, batch=16, length=128),), lr=2e-5, schedule=Linear(warmup=1_000)
        ),
    )


def kepler(name: str, layers: int, width: int, heads: int) -> System:
    """KEPLER (Wang et al. 2021): RoBERTa with masked words and, with equal weight, embeddings of a graph whose entities are
    encoded from their descriptions; section 3.

    Rows 88 and 101, the variant Wiki with gamma 4 and one negative, from RoBERTa (`--init`). Descriptions and triples are
    Wikidata5m's: `--set examples.graph.file=PATH examples.graph.texts=PATH`. The rate and the batch of
    the recipe are RoBERTa's with 1e-4 and 125,000 steps; they were not compared with the paper's.
    """
    parent = roberta(name, layers, width, heads, lr=1e-4, warmup=12_500)
    relations = Relations(WIKIDATA5M, initializer=Normal(0.02))
    return dataclasses.replace(
        parent,
        paper="Wang et al. 2021, arXiv 1911.06136",
        section="4.1",
        group=GROUP,
        rows=(88, 101),
        towers=headed(parent, relations=relations),
        examples=WithDescribedTriple(examples=parent.examples),
        objective=Joint(parts=((1.0, MLM()), (1.0, KE(gamma=4.0)))),
        recipe=dataclasses.replace(parent.recipe, phases=(Phase(steps=125_000, batch=8192, length=512),)),
    )


def kgbert(name: str, layers: int, width: int, heads: int) -> System:
    """KG-BERT (Yao et al. 2019): BERT classifies the text of a triple as true or false; section 3.2.

    Row 107, with the settings of link prediction on WN18RR: 5 negatives, 5 epochs of 6 times 86,835 triples in batches of
    32, rate 5e-5, from BERT (`--init`). Rows stand for draws from the graph alone: their text is not read. Deviations: each
    of the three texts has its own limit of tokens, where the longest is cut first; negatives are uniform, and true ones
    among them are not left out.
    """
    parent = bert(name, layers, width, heads)
    encoder = parent.towers["main"].encoder
    return dataclasses.replace(
        parent,
        paper="Yao et al. 2019, arXiv 1909.03193",
        section="4.1",
        group=GROUP,
        rows=(107,),
        towers={"main": Model(encoder=encoder, heads={"pool": Pooler(), "nsp": Classifier(2)})},
        examples=Packed(),
        corruption=TripleText(vocab=BERT_UNCASED, negatives=5),
        objective=NSP(label="triple_label", name="triple"),
        recipe=Recipe(
            phases=(Phase(steps=81_400, batch=32, length=128),),
            lr=5e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=8_140),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield libert("libert_base", 12, 768, 12)
    yield kepler("kepler_base", 12, 768, 12)
    yield kgbert("kgbert_base", 12, 768, 12)
    sizes = (2, 128, 2)
    mini = miniature(libert("", *sizes), "libert_mini", steps=150, lr=2e-3, std=0.08, length=64)
    pairs = WithLexicalPairs(examples=Packed(), batch=16)
    yield dataclasses.replace(mini, examples=pairs, objective=Joint(parts=((1.0, MLM()), (1.0, LRC()))))
    parent = kepler("", *sizes)
    parent = dataclasses.replace(parent, examples=dataclasses.replace(parent.examples, graph=Triples(width=8)))
    yield miniature(parent, "kepler_mini", steps=150, lr=2e-3, std=0.08, length=64)
    parent = dataclasses.replace(kgbert("", *sizes), corruption=TripleText(vocab=BERT_UNCASED, graph=Triples(width=6)))
    yield miniature(parent, "kgbert_mini", steps=200, lr=1e-3, std=0.08, batch=32, length=32)
