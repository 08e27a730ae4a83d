"""The evaluations of this package that are no downstream tasks (`runs.evaluations`)."""

from __future__ import annotations

from ptm_jax.runs.evaluations import Evaluation
from ptm_jax.tasks import (
    attention_tests,
    bilingual,
    clustering,
    completion,
    layer_retrieval,
    properties,
    searching,
    vocabulary_overlap,
    wordsets,
)
from ptm_jax.tasks.clozes import (
    commonsense,
    human_answers,
    minimal_pairs,
    pronoun_choice,
    relation_induction,
    stored_facts,
    verb_forms,
)


def kinds() -> tuple[Evaluation, ...]:
    """Returns the evaluations of word vectors, graphs, searches, clusters and attention, and cloze
    tests."""
    pairs = minimal_pairs, verb_forms, pronoun_choice
    clozes = *pairs, human_answers, stored_facts, commonsense, relation_induction
    modules = wordsets, properties, bilingual, completion, searching, clustering, attention_tests
    modules = *modules, layer_retrieval, vocabulary_overlap, *clozes
    return tuple(evaluation for module in modules for evaluation in module.EVALUATIONS)
