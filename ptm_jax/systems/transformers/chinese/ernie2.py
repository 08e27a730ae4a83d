"""ERNIE 2.0 of Baidu: seven tasks that join one after another, with an embedding of the task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.spec import override
from ptm_jax.core.system import ChangedPhase, System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.by_task import ByTask
from ptm_jax.corruptions.knowledge.capitals import Capitals
from ptm_jax.corruptions.knowledge.phrase_masking import KnowledgeMasking
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.columns import WithColumns
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.sentences.several_tasks import (
    DiscoursePairs,
    DistancePairs,
    Elsewhere,
    RelevancePairs,
    Reordered,
    SeveralTasks,
)
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings.parts import TaskTypes
from ptm_jax.nn.heads.pretraining import Detector
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead, Pooler
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.task_of_row import RowsOfTask, TokenFacts
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.statistics.connectives import ENGLISH, Connectives
from ptm_jax.systems.transformers.bert_gpt import BERT_CASED, bert, miniature
from ptm_jax.systems.transformers.bert_variants import WORDS
from ptm_jax.systems.transformers.chinese.ernie import SMALL_LEXICON

SENTENCES = ("reorder", "distance", "discourse", "relevance")
TASKS = ("masks", "capitals", "elsewhere", *SENTENCES)
"""The tasks in the order in which they join: words, structure, meaning."""


def continual(steps: int, batch: int, length: int) -> tuple[ChangedPhase, ...]:
    """Returns a phase for each task, in which it joins those before it with equal shares."""
    shares = (tuple(float(n <= last) for n in range(len(TASKS))) for last in range(len(TASKS)))
    return tuple(
        ChangedPhase(steps=steps, batch=batch, length=length, changes=(("examples.shares", some),))
        for some in shares
    )


def ernie2(
    name: str,
    layers: int,
    width: int,
    heads: int,
    *,
    vocab: Vocab = BERT_CASED,
    connectives: Connectives = Connectives(words=ENGLISH),
    segmenter: str | None = None,
) -> System:
    """ERNIE 2.0 (Sun et al. 2020): seven tasks in sequential continual multi-task learning.

    Row 130, sections 3.2 and 3.3. Words: knowledge masking, capitals, token-document relation;
    structure: sentence reordering (9 classes), distance (3); meaning: discourse relation, IR
    relevance (3). Each task joins those before it, and a row has an embedding of its task. Phrases
    and entities as in `ernie_base`; what stands for Baidu's search logs is in `RelevancePairs`. The
    vocabulary is cased, so that there are capitals to restore (BERT's uncased one in the released
    models). Batch and steps of each task were not checked.
    """
    parent = bert(name, layers, width, heads, vocab)
    core = parent.towers["main"].encoder
    core = override(core, {"embed.parts": (*core.embed.parts, TaskTypes(len(TASKS)))})
    classes = (Reordered().classes, 3, len(connectives.words) + 1, 3)
    scores = {one: Classifier(count) for one, count in zip(SENTENCES, classes, strict=True)}
    changed = KnowledgeMasking(vocab=vocab, level="entities"), Capitals(vocab=vocab)
    words = Annotated(examples=Packed(), fields=WORDS, segmenter=segmenter)
    parts = (
        MLM(),
        *(TokenFacts(label=label) for label in TASKS[1:3]),
        *(NSP(name=one, head=one) for one in SENTENCES),
    )
    return dataclasses.replace(
        parent,
        paper="Sun et al. 2020, arXiv 1907.12412",
        section="4.2.2",
        rows=(130,),
        towers={
            "main": Model(
                encoder=core,
                heads={
                    "mlm": MLMHead(vocab=vocab), "pool": Pooler(), "capitals": Detector(),
                    "elsewhere": Detector(), **scores,
                },
            )
        },
        examples=SeveralTasks(
            parts=(
                words, Packed(), WithColumns(columns=(Elsewhere(),)), Reordered(), DistancePairs(),
                DiscoursePairs(connectives=connectives), RelevancePairs(),
            ),
            shares=(1.0,) * len(TASKS),
        ),
        corruption=ByTask(parts=(*changed, *[None] * len(TASKS[2:]))),
        objective=Joint(
            parts=tuple((1.0, RowsOfTask(task=task, part=one)) for task, one in enumerate(parts))
        ),
        recipe=dataclasses.replace(parent.recipe, phases=continual(50_000, 256, 512)),
    )  # fmt: skip


def systems() -> Iterator[System]:
    yield ernie2("ernie_2_base", 12, 768, 12)
    yield ernie2("ernie_2_large", 24, 1024, 16)
    tiny = ernie2("", 2, 128, 2, connectives=Connectives(), segmenter="rjieba")
    mini = miniature(tiny, "ernie_2_mini", steps=350, lr=2e-3, std=0.08, length=64)
    masks = override(mini.corruption, {"parts.0.lexicon": SMALL_LEXICON})
    yield dataclasses.replace(
        mini,
        corruption=masks,
        recipe=dataclasses.replace(mini.recipe, phases=continual(50, 16, 64)),
    )
