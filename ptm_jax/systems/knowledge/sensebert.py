"""Systems with a lexicon in their embeddings: SentiLR and SenseBERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core import spec
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System, Tie
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.knowledge.lexical import (
    AllowedSenses,
    LabelAwareMasking,
    SingleSenseMasking,
)
from ptm_jax.data.rows.examples import FullSentences
from ptm_jax.data.rows.rated import Rated
from ptm_jax.knowledge.english_words import SUPERSENSES
from ptm_jax.knowledge.sense_attention import SenseAttention
from ptm_jax.knowledge.supersenses import VocabularySenses
from ptm_jax.knowledge.word_classes import PARTS, POLARITIES
from ptm_jax.nn.embeddings.lexical import Ratings, Senses, WordClass
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.knowledge.lexical import VectorClasses
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.knowledge.lexical import Rating, Supersenses, WordClassLoss
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, ROBERTA, bert, miniature, roberta
from ptm_jax.systems.transformers.bert_variants import headed

SENSEBERT = dataclasses.replace(BERT_UNCASED, size=60_522)
"""BERT's words and 30,000 more (Levine et al. 2020, section 3.4)."""


def with_parts(parent: System, *parts: object) -> System:
    """Returns the system with further summands of its main tower's embeddings."""

    def more(embed):
        return dataclasses.replace(embed, parts=(*embed.parts, *parts))

    return dataclasses.replace(parent, towers=spec.respell(parent.towers, Embeddings, more))


def tied(*names: str) -> tuple[Tie, ...]:
    """Returns the ties of heads of classes to the vectors of the same name in the embeddings."""
    return tuple(
        Tie(path=f"main/heads_{name}/vectors", source=f"main/encoder/embed/{name}")
        for name in names
    )


def sentilr(name: str, layers: int, width: int, heads: int) -> System:
    """SentiLR (Ke et al. 2020): RoBERTa with sentiment vectors; section 2.3.
    It has vectors of parts of speech, of polarities and of the text's rating, and also predicts
    them. Its last version is SentiLARE.

    Rows 91 and 105. One epoch over 6.7 million Yelp reviews in batches of 400 with rate 5e-5, from
    RoBERTa (`--init`); thu-coai/SentiLARE, pretrain/post_pretrain.py. A word gets the polarity of
    its sense in the text with `spec.respell(system, WordClasses,
    SenseAttention(file="SentiWordNet_3.0.0.txt", vectors=PATH))`. Deviations: the part of speech is
    a word's most frequent one, by longest match over token ids, where the original tags texts with
    Stanford CoreNLP; texts and glosses are compared by means of word vectors, not by Sentence-BERT;
    words are not lemmatised; a random word is one of the vocabulary, not of another review. A
    review begins with its rating, 1 to 5, and a text without one is only read and predicted
    (`data.rows.rated`).
    """
    parent, init = roberta(name, layers, width, heads, lr=5e-5, warmup=1_675), Normal(0.02)
    classes = {"parts": len(PARTS), "polarities": len(POLARITIES), "ratings": 6}
    made = {
        which: VectorClasses(count, eps=1e-5, initializer=init) for which, count in classes.items()
    }
    words, sizes = SenseAttention(), (("parts", len(PARTS)), ("polarities", len(POLARITIES)))
    parts = (
        *(WordClass(size, classes=classes, lexicon=words) for classes, size in sizes),
        Ratings(6),
    )
    losses = MLM(), WordClassLoss(name="parts"), WordClassLoss(name="polarities"), Rating()
    return dataclasses.replace(
        with_parts(dataclasses.replace(parent, towers=headed(parent, **made)), *parts),
        paper="Ke et al. 2020, arXiv 1911.02493",
        section="4.1",
        group=GROUP,
        rows=(91, 105),
        examples=Rated(),
        corruption=LabelAwareMasking(vocab=ROBERTA, lexicon=words),
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


def sensebert(name: str, layers: int, width: int, heads: int, vocab: Vocab = SENSEBERT) -> System:
    """SenseBERT (Levine et al. 2020): BERT with the supersenses of WordNet; section 3.
    They are in its embeddings, and are a second prediction for hidden words.

    Rows 92 and 103, with 60,000 words, from scratch with BERT's recipe. Supersenses are those of
    WordNet's index.sense or of a compiled graph: `spec.respell(system, VocabularySenses,
    VocabularySenses(file=PATH, exceptions=FOLDER))`. With `sensebert(..., vocab=BERT_UNCASED)` it
    has BERT's 30,522 words. Deviations: the paper adds the 30,000 most frequent words of Wikipedia
    to BERT's vocabulary, where the tokenizer is trained here; supersenses are predicted after
    BERT's transformation, as words are. Words of several pieces have no supersenses, as in the
    published models; the paper's other way, a prediction from the mean of their states (section
    3.4), is not here.
    """
    parent = bert(name, layers, width, heads, vocab)
    head, words = VectorClasses(len(SUPERSENSES)), VocabularySenses()
    senses = Senses(len(SUPERSENSES), lexicon=words, combine="sum")
    return dataclasses.replace(
        with_parts(dataclasses.replace(parent, towers=headed(parent, senses=head)), senses),
        paper="Levine et al. 2020, arXiv 1908.05646",
        section="4.1",
        group=GROUP,
        rows=(92, 103),
        tokenizer=dataclasses.replace(parent.tokenizer, lowercase=True),
        corruption=Chain(parts=(AllowedSenses(lexicon=words), SingleSenseMasking(vocab=vocab))),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP()), (1.0, Supersenses()))),
        ties=tied("senses"),
    )


def systems() -> Iterator[System]:
    yield sentilr("sentilr_base", 12, 768, 12)
    yield sensebert("sensebert_base", 12, 768, 12)
    yield sensebert("sensebert_large", 24, 1024, 16)
    small = (2, 128, 2)
    mini = dataclasses.replace(sentilr("", *small), examples=FullSentences())
    yield miniature(mini, "sentilr_mini", steps=400, lr=2e-3, std=0.08, length=64)
    mini = miniature(
        sensebert("", *small), "sensebert_mini", steps=800, lr=2e-3, std=0.08, length=64
    )
    yield dataclasses.replace(mini, objective=Joint(parts=((1.0, MLM()), (1.0, Supersenses()))))
