"""Augmentation by pre-trained models: masked words filled by label and context (CBERT: Wu et al.
2019, arXiv 1812.06705); texts generated after their label and first words (GPT-2), or reconstructed
under their label (BART: Kumar et al. 2020, arXiv 2003.02245).

A function returns one new text for each text, with the same label.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.adapt.parameters.freezing import Restart
from ptm_jax.convert import checkpoint
from ptm_jax.convert.family import family_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import Experiment
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.labels import LabelTypes
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.encoders.model import Model
from ptm_jax.inference import inputs
from ptm_jax.nn.embeddings.parts import Types, exchanged
from ptm_jax.objectives.text.language import MLM
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.training.start.init_models import Initial

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


SEPARATOR = " SEP "
"""Separator between a label and its text (Kumar et al.)."""


def conditional(
    task: str, init: str | os.PathLike, data: Sequence[str], *, epochs: int = 10, batch: int = 32,
    length: int = 64,
    lr: float = 5e-5, rate: float = 0.15,
) -> Experiment:  # fmt: skip
    """A published BERT, trained to predict masked words from context and label (CBERT).
    Section 3.3.

    With more classes than the model has token types, the vectors of types are drawn anew, as there.
    Raises UserError.
    """
    examples = catalogue.get(task).examples.settled(data)
    model = Initial("", os.fspath(init))
    if not model.published:
        raise UserError(f"{init} is no published checkpoint; conditional BERT begins with one")
    system, _ = checkpoint.record_of(model.config, family_of(model.config).pretraining)
    tower, classes = system.towers["main"], examples.outputs
    if "mlm" not in tower.heads or not tower.encoder.types or classes < 2:
        raise UserError(
            f"{init} with {task}: a head for masked words, vectors of types and a task with "
            "classes are needed"
        )
    encoder, adapt = tower.encoder, ()
    if encoder.embed.types < classes:
        embed = encoder.embed
        embed = dataclasses.replace(embed, parts=exchanged(embed.parts, Types(classes)))
        encoder = dataclasses.replace(encoder, embed=embed)
        adapt = (Restart(fresh=r"/embed/type$"),)
    steps = math.ceil(examples.count(data) / batch) * epochs
    system = dataclasses.replace(
        system,
        name=f"conditional_{task}",
        towers={"main": Model(encoder=encoder, heads={"mlm": tower.heads["mlm"]})},
        ties=(),
        examples=examples,
        corruption=Chain(parts=(LabelTypes(), TokenMasking(vocab=encoder.embed.vocab, rate=rate))),
        objective=MLM(),
        adapt=adapt,
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=batch, length=length),),
            lr=lr,
            optimizer=AdamW(),
            schedule=Constant(),
        ),
    )
    return Experiment(system=system, data=tuple(data), init=os.fspath(init))


def filled(
    model: Pretrained, texts: Sequence[str], labels: Sequence[int], *, share: float = 0.15,
    top: int = 0, seed: int = 0, batch: int = 32,
) -> list[str]:  # fmt: skip
    """Replaces a share of the tokens of each text by samples from a conditional model.

    At least one is replaced. `top` restricts the samples to the most probable tokens (0: all).
    """
    if len(texts) != len(labels) or not 0 < share <= 1:
        raise UserError(
            f"{len(texts)} texts, {len(labels)} labels, share {share}; give one label each, "
            "a share in (0, 1]"
        )
    rng, rows = np.random.default_rng(seed), model.ids_of(texts)
    new_texts = [""] * len(rows)
    for chosen, ids, mask in inputs.padded_batches(rows, batch, model.vocab.pad):
        free = (mask > 0) & ~np.isin(ids, model.vocab.specials)
        hide = _hidden(rng, free, share)
        types = np.where(mask > 0, np.asarray(labels)[chosen][:, None], 0)
        scores = (
            model(np.where(hide, model.vocab.mask, ids), mask, types)
            .logits[hide]
            .astype(np.float64)
        )
        scores[:, list(model.vocab.specials)] = -np.inf
        if top:
            scores[scores < np.sort(scores, -1)[:, -top][:, None]] = -np.inf
        drawn = (scores + rng.gumbel(size=scores.shape)).argmax(-1)
        new = ids.copy()
        new[hide] = drawn
        for place, row in enumerate(chosen):
            new_texts[row] = model.tokenizer.decode(new[place][free[place]])
    return new_texts


def _hidden(rng: np.random.Generator, free: np.ndarray, share: float) -> np.ndarray:
    """[B, L] bool: round(share * free) places of each row, at least one where there are any."""
    order = np.where(free, rng.random(free.shape), 2.0).argsort(1).argsort(1)
    count = np.maximum(np.round(share * free.sum(1)), 1).astype(int)
    return free & (order < count[:, None])


def lines(texts: Sequence[str], labels: Sequence[str], separator: str = SEPARATOR) -> list[str]:
    """Returns documents to train the causal model of `written`: label, separator, text."""
    return [f"{label}{separator}{text}" for text, label in zip(texts, labels, strict=True)]


def written(
    model: Pretrained, texts: Sequence[str], labels: Sequence[str], *, words: int = 3,
    separator: str = SEPARATOR, seed: int = 0,
    **options: Any,
) -> list[str]:  # fmt: skip
    """Returns texts of a model that is trained on `lines` (GPT-2 with context).

    The label and the first `words` of each text are the prompt; `options` as in
    `Pretrained.generate`.
    """
    prompts = lines([" ".join(text.split()[:words]) for text in texts], labels, separator)
    settings = {"strategy": "sample", "max_new_tokens": 32} | options
    heads = [f"{label}{separator}" for label in labels]
    answers = model.generate(prompts, seed=seed, **settings)
    return [
        answer[len(head) :].strip() if answer.startswith(head) else answer
        for answer, head in zip(answers, heads, strict=True)
    ]


def rewritten(
    model: Pretrained, texts: Sequence[str], labels: Sequence[str], *, share: float = 0.4,
    span: bool = True, mask: str = "<mask>",
    separator: str = SEPARATOR, seed: int = 0, **options: Any,
) -> list[str]:  # fmt: skip
    """Texts of a denoising model (BART): after the label, `share` of the words are masked.
    A span gets one mask, or each word its own (section 3.3: 40% as a span, 20% as words)."""
    rng = np.random.default_rng(seed)
    noisy = [_noisy(rng, text.split(), share, span, mask) for text in texts]
    return model.generate(lines(noisy, labels, separator), seed=seed, **options)


def _noisy(rng: np.random.Generator, words: list[str], share: float, span: bool, mask: str) -> str:
    count = max(1, round(share * len(words)))
    if span:
        start = int(rng.integers(0, max(len(words) - count, 0) + 1))
        return " ".join([*words[:start], mask, *words[start + count :]])
    hidden = (
        set(rng.choice(len(words), min(count, len(words)), replace=False).tolist())
        if words
        else set()
    )
    return " ".join(mask if number in hidden else word for number, word in enumerate(words))
