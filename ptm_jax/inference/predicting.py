"""The uses of models that `ptm predict` knows."""

from __future__ import annotations

from ptm_jax.inference.saliency import keywords
from ptm_jax.inference.spans import named_entities
from ptm_jax.inference.text import (
    answering,
    classifying,
    filling,
    generating,
    ranking,
    tags,
)
from ptm_jax.inference.uses import Use
from ptm_jax.inference.words import word_uses


def kinds() -> tuple[Use, ...]:
    """Returns all uses, in the order of the help."""
    files = (
        filling, generating, classifying, keywords, tags, named_entities, answering, ranking,
        word_uses,
    )  # fmt: skip
    return tuple(use for file in files for use in file.USES)
