"""Systems with a lexicon in their embeddings: SentiLR and SenseBERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core import spec
from ptm_jax.core.lexicons import PARTS, POLARITIES, SUPERSENSES
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System, Tie
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.lexical import AllowedSenses, LabelAwareMasking
from ptm_jax.corruptions.token import TokenMasking
from ptm_jax.nn.embeddings.lexical import Ratings, Senses, WordClass
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.lexical import VectorClasses
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.language import MLM
from ptm_jax.objectives.lexical import Rating, Supersenses, WordClassLoss
from ptm_jax.objectives.sentence_pairs import NSP
from ptm_jax.systems.masked import headed
from ptm_jax.systems.sentence_trees import GROUP
from ptm_jax.systems.transformers import BERT_UNCASED, ROBERTA, bert, miniature, roberta


def with_parts(parent: System, *parts: object) -> System:
    """Returns the system with further summands of its main tower's embeddings."""
    more = lambda embed: dataclasses.replace(embed, parts=(*embed.parts, *parts))
    return dataclasses.replace(parent, towers=spec.respell(parent.towers, Embeddings, more))


def tied(*names: str) -> tuple[Tie, ...]:
    """Returns the ties of heads of classes to the vectors of the same name in the embeddings."""
    return tuple(Tie(path=f"main/heads_{name}/vectors", source=f"main/encoder/embed/{name}") for name in names)


def sentilr(name: str, layers: int, width: int, heads: int) -> System:
    """SentiLR (Ke et al. 2020; SentiLARE in its last version): RoBERTa with vectors of parts of speech, of polarities and of
    the text's rating, which it also predicts; section 2.3.

    Rows 91 and 105. One epoch over 6.7 million Yelp reviews in batches of 400 with rate 5e-5, from RoBERTa (`--init`);
    thu-coai/SentiLARE, pretrain/post_pretrain.py. Deviations: classes come from the lexicon alone, by longest match, where
    the paper tags parts of speech with Stanford CoreNLP and weighs senses by the similarity of their glosses; documents are
    rows of full sentences; unlabelled text has no rating, and its loss is 0.
    """
    parent, init = roberta(name, layers, width, heads, lr=5e-5, warmup=1_675), Normal(0.02)
    classes = {"parts": len(PARTS), "polarities": len(POLARITIES), "ratings": 6}
    made = {which: VectorClasses(count, eps=1e-5, initializer=init) for which, count in classes.items()}
    parts = WordClass(len(PARTS), of="parts"), WordClass(len(POLARITIES), of="polarities"), Ratings(6)
    losses = MLM(), WordClassLoss(name="parts"), WordClassLoss(name="polarities"), Rating()
    return dataclasses.replace(
        with_parts(dataclasses.replace(parent, towers=headed(parent, **made)), *parts),
        paper="Ke et al. 2020, arXiv 1911.02493",
        section="4.1",
        group=GROUP,
        rows=(91, 105),
        corruption=LabelAwareMasking(vocab=ROBERTA),
        objective=Joint(parts=tuple((1.0, loss) for loss in losses)),
        ties=tied(*classes),
        recipe=Recipe(
            phases=(Phase(steps=16_750, batch=400, length=128),),
            lr=5e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=1_675),
            clip=1.0,
        ),
    )


def sensebert(name: str, layers: int, width: int, heads: int, vocab: Vocab = BERT_UNCASED) -> System:
    """SenseBERT (Levine et al. 2020): BERT with the supersenses of WordNet in its embeddings and as a second prediction for
    hidden words; section 3.

    Rows 92 and 103. Deviations: BERT's vocabulary, where the paper also takes one of 60,000 words; words of several pieces
    are matched as a whole; the recipe is BERT's.
    """
    parent = bert(name, layers, width, heads, vocab)
    head = VectorClasses(len(SUPERSENSES))
    return dataclasses.replace(
        with_parts(dataclasses.replace(parent, towers=headed(parent, senses=head)), Senses(len(SUPERSENSES))),
        paper="Levine et al. 2020, arXiv 1908.05646",
        section="4.1",
        group=GROUP,
        rows=(92, 103),
        corruption=Chain(parts=(AllowedSenses(), TokenMasking(vocab=vocab))),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP()), (1.0, Supersenses()))),
        ties=tied("senses"),
    )


def systems() -> Iterator[System]:
    yield sentilr("sentilr_base", 12, 768, 12)
    yield sensebert("sensebert_base", 12, 768, 12)
    yield sensebert("sensebert_large", 24, 1024, 16)
    small = (2, 128, 2)
    yield miniature(sentilr("", *small), "sentilr_mini", steps=400, lr=2e-3, std=0.08, length=64)
    mini = miniature(sensebert("", *small), "sensebert_mini", steps=800, lr=2e-3, std=0.08, length=64)
    yield dataclasses.replace(mini, objective=Joint(parts=((1.0, MLM()), (1.0, Supersenses()))))
