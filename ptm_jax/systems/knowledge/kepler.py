"""Systems that learn triples of a graph as texts: LIBERT, KEPLER and KG-BERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.corruptions.knowledge.triples import EntityPairs, TripleText
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.knowledge.graphs import WithDescribedTriple
from ptm_jax.data.rows.knowledge.lexical_pairs import WithLexicalPairs
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.triples import Triples
from ptm_jax.nn.heads.knowledge.entities import Relations
from ptm_jax.nn.heads.vocabulary import Classifier, Pooler
from ptm_jax.nn.initializers import Uniform
from ptm_jax.objectives.joint import Joint, TaskMixing
from ptm_jax.objectives.knowledge.triples import KE, LRC, PairRelation, TripleTruth
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, bert, miniature, roberta
from ptm_jax.systems.transformers.bert_variants import headed

WIKIDATA5M = 822
"""Relations of Wikidata5m (Wang et al. 2021, Table 1)."""


def libert(name: str, layers: int, width: int, heads: int) -> System:
    """LIBERT (Lauscher et al. 2020): BERT with a third task; section 3.
    The task is whether two words are synonyms or hypernyms.

    Rows 90 and 104, trained from scratch with the settings of anlausch/LIBERT
    (code/poc_pretraining_libert.sh): 4 million steps of 16 rows of 128 tokens, half of them of
    pairs of words. Pairs come from a compiled graph of WordNet, and unrelated words are the nearest
    in fastText's space: `--set examples.graph.file=GRAPH
    examples.graph.vectors=wiki-news-300d-1M-subword.vec`. The pairs of the paper are WordNet's and
    Roget's, which are not published. Deviations: a step draws its task, where the original takes
    turns; a step has three pairs a row, 48, where the original's has 16; the pooled state has no
    dropout before the classifier, which has one output.
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
            parent.recipe,
            phases=(Phase(steps=4_000_000, batch=16, length=128),),
            lr=2e-5,
            schedule=Linear(warmup=1_000),
        ),
    )


def kepler(name: str, layers: int, width: int, heads: int) -> System:
    """KEPLER (Wang et al. 2021): RoBERTa with masked words and graph embeddings; section 3.
    Both have equal weight. The entities of the graph are encoded from their descriptions.

    Rows 88 and 101, KEPLER-Wiki, from RoBERTa (`--init`): gamma 4, one wrong head and one wrong
    tail for each triple, a table of the 822 relations, uniform in (gamma + 2) / width; 125,000
    steps at 6e-4, 10,000 of them warm-up, of 3 rows on each of 64 devices 49 times (the
    pre-training script of THU-KEG/KEPLER). Descriptions and triples are Wikidata5m's: `--set
    examples.graph.file=PATH examples.graph.texts=PATH`. The paper's variants:

        KEPLER-Rel        --set examples.texts=relations, texts of relations in addition to texts of
                          entities
        KEPLER-Cond       --set examples.texts=conditions
        KEPLER-OnlyDesc   --data descriptions:GRAPH, words are masked in the descriptions

    Deviations: the norm is the paper's, 1, where the code has 2, and the loss is not halved, as in
    the code (`objectives.knowledge.triples.KE`); descriptions are cut at 64 tokens, not at 512
    (`--set examples.graph.width=510`).
    """
    parent = roberta(name, layers, width, heads, lr=6e-4, warmup=10_000)
    relations = Relations(WIKIDATA5M, initializer=Uniform(6 / width))
    return dataclasses.replace(
        parent,
        paper="Wang et al. 2021, arXiv 1911.06136",
        section="4.1",
        group=GROUP,
        rows=(88, 101),
        towers=headed(parent, relations=relations),
        examples=WithDescribedTriple(examples=parent.examples),
        objective=Joint(parts=((1.0, MLM()), (1.0, KE(gamma=4.0)))),
        recipe=dataclasses.replace(
            parent.recipe, phases=(Phase(steps=125_000, batch=3 * 64 * 49, length=512),)
        ),
    )


def kgbert(name: str, layers: int, width: int, heads: int) -> System:
    """KG-BERT (Yao et al. 2019): BERT classifies the text of a triple as true or false.
    Section 3.2, KG-BERT(a).

    Row 107, with the settings of link prediction on WN18RR: 5 negatives, 5 epochs of 6 times 86,835
    triples in batches of 32, rate 5e-5, a tenth of the steps is warm-up, from BERT (`--init`);
    yao8839836/kg-bert, run_bert_link_prediction.py. Triples are classified with 1 negative in 3
    epochs (`--set corruption.negatives=1`). The graph is that of `--set
    corruption.graph.file=train.tsv corruption.graph.texts=entity2text.txt,relation2text.txt`, and
    `ptm evaluate RUN --task links` ranks entities. Rows stand for draws from the graph alone: their
    text is not read. Deviations: each of the three texts has its own limit of tokens, where the
    longest is cut first; one draw decides for each wrong triple whether head or tail is replaced,
    where the five of a triple share one.
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
        objective=TripleTruth(),
        recipe=Recipe(
            phases=(Phase(steps=81_400, batch=32, length=128),),
            lr=5e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=8_140),
            clip=1.0,
        ),
    )


def kgbert_relations(parent: System, relations: int, steps: int) -> System:
    """KG-BERT(b): BERT predicts the relation of two entities from their texts; section 3.2.

    Row 107, with the settings of FB15k: a softmax over 1,345 relations, 20 epochs of 483,142
    triples (yao8839836/kg-bert, run_bert_relation_prediction.py). `ptm evaluate RUN --task links`
    ranks relations.
    """
    main = parent.towers["main"]
    heads = {**main.heads, "nsp": Classifier(relations)}
    phases = (dataclasses.replace(parent.recipe.phases[0], steps=steps),)
    return dataclasses.replace(
        parent,
        towers={"main": dataclasses.replace(main, heads=heads)},
        corruption=EntityPairs(vocab=BERT_UNCASED),
        objective=PairRelation(),
        recipe=dataclasses.replace(
            parent.recipe, phases=phases, schedule=Linear(warmup=steps // 10)
        ),
    )


def systems() -> Iterator[System]:
    yield libert("libert_base", 12, 768, 12)
    yield kepler("kepler_base", 12, 768, 12)
    large = kgbert("kgbert_base", 12, 768, 12)
    yield large
    yield dataclasses.replace(
        kgbert_relations(large, 1_345, 20 * 483_142 // 32), name="kgbert_relations_base"
    )
    sizes = (2, 128, 2)
    mini = miniature(libert("", *sizes), "libert_mini", steps=150, lr=2e-3, std=0.08, length=64)
    pairs = WithLexicalPairs(examples=Packed(), batch=16)
    yield dataclasses.replace(
        mini, examples=pairs, objective=Joint(parts=((1.0, MLM()), (1.0, LRC())))
    )
    parent = kepler("", *sizes)
    parent = dataclasses.replace(
        parent, examples=dataclasses.replace(parent.examples, graph=Triples(width=8))
    )
    yield miniature(parent, "kepler_mini", steps=150, lr=2e-3, std=0.08, length=64)
    parent = dataclasses.replace(
        kgbert("", *sizes), corruption=TripleText(vocab=BERT_UNCASED, graph=Triples(width=6))
    )
    yield miniature(parent, "kgbert_mini", steps=200, lr=1e-3, std=0.08, batch=32, length=32)
    parent = dataclasses.replace(
        kgbert_relations(parent, 32, 1),
        corruption=EntityPairs(vocab=BERT_UNCASED, graph=Triples(width=6)),
    )
    yield miniature(
        parent, "kgbert_relations_mini", steps=200, lr=1e-3, std=0.08, batch=32, length=32
    )
