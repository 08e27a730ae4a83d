"""LAMA-UHN: facts without those that a name gives away (Poerner et al. 2020, section 2).

`string` leaves out a fact whose answer is a part of its subject's name, in any case. `uhn` also
asks the model for each word of a person's name, "Jean is a common name in the following language:
[MASK].", and leaves out a fact whose answer is among the first three. The published files have the
names that bert-base-cased knows; these are the names that the evaluated model knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.tasks.clozes.fact_data import Fact
from ptm_jax.tasks.clozes.prompt_ensembles import relation_of

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

TOP = 3
KINDS = {
    "P19": "city", "P20": "city", "place_of_birth": "city", "place_of_death": "city",
    "P27": "country", "P103": "language", "P1412": "language",
}  # fmt: skip
"""{relation of persons: the kind of its objects}."""


def filtered(
    model: Pretrained, relation: str, facts: Sequence[Fact], *, names: bool = True, batch: int = 64
) -> tuple[list[Fact], Counter[str]]:
    """Returns the facts that no name gives away, and the numbers of others by reason."""
    unlike = [fact for fact in facts if fact.answer.lower() not in fact.subject.lower()]
    left = Counter({"facts left out: the subject has the answer in it": len(facts) - len(unlike)})
    kind = KINDS.get(relation_of(relation)) if names else None
    if kind is None:
        return unlike, left
    words = sorted({word for fact in unlike for word in fact.subject.split()})
    texts = [f"{word} is a common name in the following {kind}: [MASK]." for word in words]
    rows = cloze_scores.at_masks(model, texts, batch)
    first = {
        word: np.argpartition(-row, TOP - 1)[:TOP].tolist()
        for word, row in zip(words, rows, strict=True)
    }
    unlinked = [
        fact
        for fact in unlike
        for index in [cloze_scores.token_of(model, fact.answer)]
        if not any(index in first[word] for word in fact.subject.split())
    ]
    left["facts left out: a name of the subject suggests the answer"] = len(unlike) - len(unlinked)
    return unlinked, left
