"""A vector for each token of a text (ColBERT), and the rows of queries and documents."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Dense, Module
from ptm_jax.objectives.sentences.base import HEAD
from ptm_jax.objectives.sentences.similarities import unit

COUNTED = "counted"
"""Field [B, L] int32 of a batch: 1 for the tokens whose vectors count."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateRows:
    """How the tokens of queries and documents stand in a row (Khattab and Zaharia 2020, arXiv
    2004.12832, sections 3.2 and 3.4; the defaults are those of the released ColBERTv2).

    query_marker, document_marker   tokens after the first special one; "": none
    query_length     tokens of a query, with the special ones; a longer query is cut
    document_length  tokens of a document at most; None: the length of the rows
    expands          whether mask tokens fill a query up to its length; their vectors count
    attends          whether other tokens attend to these mask tokens
    skipped          tokens of a document whose vectors do not count, each a piece of the vocabulary
    """

    query_marker: str = "[unused0]"
    document_marker: str = "[unused1]"
    query_length: int = 32
    document_length: int | None = None
    expands: bool = True
    attends: bool = False
    skipped: tuple[str, ...] = tuple(string.punctuation)

    def __post_init__(self):
        object.__setattr__(self, "skipped", tuple(self.skipped))
        if self.query_length < 4 or (self.document_length or 4) < 4:
            raise ValueError(
                f"query_length is {self.query_length} and document_length {self.document_length}; "
                "a row needs at least 4 tokens"
            )


class TokenVectors(slots.Head, Module):
    """Returns {"tokens": [B, L, F] float32 of length 1, "real": [B, L] float32, 1 for the tokens
    that count}.

    A token counts where the field `counted` of the batch is 1; without the field, where it is no
    padding. `rows` defines the rows of texts.
    """

    features: int = 128
    rows: LateRows = LateRows()
    initializer: object = TruncatedNormal()
    precision: Precision = Precision()

    def __post_init__(self):
        if self.features < 1:
            raise ValueError(f"features is {self.features}; it must be at least 1")
        super().__post_init__()

    def reads(self, encoded, batch):
        return encoded.hidden, batch[COUNTED] if COUNTED in batch else segments_of(batch)

    @nn.compact
    def __call__(self, hidden, counted=None, *, table=None, context=None):
        options = {"initializer": self.initializer, "precision": self.precision}
        states = Dense(self.features, bias=False, name="project", **options)(hidden)
        counted = jnp.ones(hidden.shape[:2]) if counted is None else counted
        real = (counted > 0).astype(jnp.float32)
        return {"tokens": unit(states.astype(jnp.float32)) * real[..., None], "real": real}


def token_head(heads: Mapping[str, slots.Head]) -> TokenVectors | None:
    """Returns the head of token vectors of a tower, or None."""
    head = heads.get(HEAD)
    return head if isinstance(head, TokenVectors) else None
