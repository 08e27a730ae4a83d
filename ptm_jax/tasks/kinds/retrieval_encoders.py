"""Sparse encoders (`splade`) and late interaction (`colbert`), trained on groups of texts.

Both read the data of `contrast`, and are measured as it: by the rank of each positive text among
all held-out texts.
"""

from __future__ import annotations

from ptm_jax.nn.heads.retrieval.late_vectors import TokenVectors
from ptm_jax.nn.heads.retrieval.sparse_vector import SparseVector
from ptm_jax.objectives.sentences.base import HEAD
from ptm_jax.objectives.sentences.late_interaction import MaxSim
from ptm_jax.objectives.sentences.multiple_negatives import MultipleNegatives
from ptm_jax.objectives.sentences.similarities import Dot
from ptm_jax.objectives.sentences.sparsity import Sparse
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats.retrieval_groups import LateGroups, SparseGroups
from ptm_jax.tasks.kinds import sentence_encoders
from ptm_jax.tasks.kinds.base import Kind, register

_SHARED = {
    "head": HEAD,
    "of_sentences": True,
    "predict": sentence_encoders.predict,
    "measures": {"ranking": sentence_encoders.ranking},
    "lines": sentence_encoders.lines,
    "cells": sentence_encoders.cells,
}
SPARSE = register(
    Kind(
        examples=SparseGroups,
        new_head=lambda spec, sentence: SparseVector(),
        objective=lambda spec: Sparse(task=MultipleNegatives(scale=1.0, similarity=Dot())),
        **_SHARED,
    )
)
LATE = register(
    Kind(
        examples=LateGroups,
        new_head=lambda spec, sentence: TokenVectors(rows=spec.late),
        objective=lambda spec: MultipleNegatives(scale=1.0, similarity=MaxSim()),
        **_SHARED,
    )
)
catalogue.add(
    Task(
        name="splade", paper="any pairs, triplets or n-tuples of texts (Formal et al. 2021)",
        examples=SparseGroups(), metrics=("ranking",), batch=32, epochs=1.0, lr=2e-5,
    ),
    Task(
        name="colbert", paper="any pairs, triplets or n-tuples of texts (Khattab and Zaharia 2020)",
        examples=LateGroups(), metrics=("ranking",), batch=32, epochs=1.0, lr=1e-5,
    ),
)  # fmt: skip
