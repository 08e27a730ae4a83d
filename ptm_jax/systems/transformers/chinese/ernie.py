"""ERNIE 1.0 of Baidu: masks of characters, phrases and entities, and its dialogues."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Linear, Recipe
from ptm_jax.core.system import ChangedPhase, System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.knowledge.phrase_masking import KnowledgeMasking, KnowledgeUnits
from ptm_jax.corruptions.masking.units import Masking
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.sentences.dialogues import Dialogues
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.knowledge.from_text.ngram_lexicon import NGramLexicon
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead, Pooler
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.bert_gpt import bert, miniature
from ptm_jax.systems.transformers.bert_variants import WORDS, headed

# PaddlePaddle/ERNIE, config/vocab.txt of version 1.
ERNIE = Vocab(size=18000, pad=0, cls=1, sep=2, mask=3, unk=17963)
SMALL_LEXICON = NGramLexicon(size=2048, least=5)


def stages(level: str, steps: int, batch: int, length: int) -> tuple[ChangedPhase, ...]:
    """Returns a phase each for characters, phrases and entities; `level` is the level's path."""
    return tuple(
        ChangedPhase(
            steps=steps, batch=batch, length=length, changes=((level, name),) * (name != "entities")
        )
        for name in ("characters", "phrases", "entities")
    )


def ernie(name: str, layers: int = 12, width: int = 768, heads: int = 12) -> System:
    """ERNIE 1.0 (Sun et al. 2019): BERT that masks characters, then phrases, then entities.

    Row 129; ReLU, 513 positions, 18,000 pieces and the draw of masks as released (the default;
    `ernie_base_published` masks whole units by a budget, as the paper describes). The shares of the
    three stages are not published and are equal here; batch, rate and warm-up are those of the
    released script (8,192 tokens on each of eight devices). Baidu's phrases and entities are not
    public: here phrases are the words of a segmenter, and entities the n-grams of a lexicon that is
    counted in the text (`NGramLexicon`).
    """
    parent = bert(name, layers, width, heads, ERNIE)
    core = transformer(
        vocab=ERNIE, layers=layers, width=width, heads=heads, positions=LearnedPositions(513),
        types=2, activation="relu",
    )  # fmt: skip
    words = {
        "mlm": MLMHead(vocab=ERNIE, activation="relu"), "pool": Pooler(), "nsp": Classifier(2),
    }  # fmt: skip
    return dataclasses.replace(
        parent,
        paper="Sun et al. 2019, arXiv 1904.09223",
        section="4.2.2",
        rows=(129,),
        towers={"main": Model(encoder=core, heads=words)},
        tokenizer=dataclasses.replace(parent.tokenizer, lowercase=True),
        examples=Annotated(examples=parent.examples, fields=WORDS, segmenter="rjieba"),
        corruption=KnowledgeMasking(vocab=ERNIE, level="entities"),
        recipe=Recipe(
            phases=stages("corruption.level", 333_334, 128, 512),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
            schedule=Linear(warmup=5000),
            clip=1.0,
        ),
    )


def published(parent: System, name: str) -> System:
    """Returns an ERNIE that masks whole units until 15% of a row is used (section 3.2)."""
    phases = tuple(
        dataclasses.replace(
            phase, changes=tuple(("corruption.units.level", level) for _, level in phase.changes)
        )
        for phase in parent.recipe.phases
    )
    units = KnowledgeUnits(level="entities", lexicon=parent.corruption.lexicon)
    return dataclasses.replace(
        parent,
        name=name,
        corruption=Masking(vocab=parent.corruption.vocab, units=units),
        recipe=dataclasses.replace(parent.recipe, phases=phases),
    )


def dialogue(parent: System, name: str) -> System:
    """Returns an ERNIE that reads dialogues: masks, and whether a row is real (section 3.3)."""
    return dataclasses.replace(
        parent, name=name, examples=dataclasses.replace(parent.examples, examples=Dialogues())
    )


def small(parent: System, name: str, steps: int = 100) -> System:
    """Returns a miniature with `steps` steps in each stage."""
    made = miniature(parent, name, steps=3 * steps, lr=2e-3, std=0.08, length=64)
    return dataclasses.replace(
        made,
        corruption=dataclasses.replace(made.corruption, lexicon=SMALL_LEXICON),
        recipe=dataclasses.replace(made.recipe, phases=stages("corruption.level", steps, 16, 64)),
    )


def systems() -> Iterator[System]:
    base = ernie("ernie_base")
    yield base
    yield published(base, "ernie_base_published")
    yield dialogue(base, "ernie_base_dialogue")
    tiny = ernie("", 2, 128, 2)
    text = dataclasses.replace(
        tiny,
        towers=headed(tiny, ("pool", "nsp")),
        examples=dataclasses.replace(tiny.examples, examples=Packed()),
        objective=MLM(),
    )
    yield small(text, "ernie_mini")
