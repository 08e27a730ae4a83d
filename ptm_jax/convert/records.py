"""Shared parts of the families' records: task heads from a config, their objective, the other slots of a parent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.nn.heads.tasks import ChoiceHead, SequenceHead, SpanHead, TokenHead
from ptm_jax.objectives.downstream import AnswerBeams, AnswerSpan, Choosing, Classification, Tagging
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.language import LM, MLM
from ptm_jax.objectives.sentence_pairs import NSP

PROBLEMS = {"single_label_classification": "classes", "regression": "number", "multi_label_classification": "labels"}
"""Maps `problem_type` of a config to `Classification.kind`."""


def task_heads(config: Config, summary: Any, init: Any, dropout: float | None = None) -> dict[str, Any]:
    """Returns the four task heads of a config: `classify`, `choose`, `tag`, `span`."""
    if dropout is None:
        dropout = config("classifier_dropout", float, None)
    if dropout is None:
        dropout = config("hidden_dropout_prob", float, 0.1)
    classes = config.labels
    return {
        "classify": SequenceHead(classes, summary, dropout=dropout, initializer=init),
        "choose": ChoiceHead(config.positive("num_choices", 2), summary, dropout=dropout, initializer=init),
        "tag": TokenHead(classes, dropout=dropout, initializer=init),
        "span": SpanHead(initializer=init),
    }


def task_fields(heads: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config.json that describe the task heads."""
    fields: dict[str, Any] = {}
    for name in ("classify", "tag"):
        if name in heads:
            classes = heads[name].classes
            fields["id2label"] = {str(i): f"LABEL_{i}" for i in range(classes)}
            fields["label2id"] = {f"LABEL_{i}": i for i in range(classes)}
            fields["classifier_dropout"] = heads[name].dropout
    if "choose" in heads:
        fields["classifier_dropout"] = heads["choose"].dropout
        fields["num_choices"] = heads["choose"].choices
    return fields


def tied(heads: Mapping[str, Any], *names: str) -> bool:
    """Returns whether the named vocabulary heads share the encoder's token table; True if there are none."""
    return all(heads[name].shares_table for name in names if name in heads)


def special_ids(vocab: Vocab, *names: str) -> dict[str, int | None]:
    """Returns fields of a config.json: {"pad_token_id": id, ...}."""
    return {f"{name}_token_id": vocab.id(name) for name in names}


def objective_of(heads: Mapping[str, Any], parent: Any = None, kind: str | None = None) -> Any:
    """Returns the objective that trains the heads of a checkpoint; `parent` for the bare model."""
    if "classify" in heads:
        return Classification(kind=kind or ("number" if heads["classify"].outputs == 1 else "classes"))
    if "choose" in heads and "lm" in heads:  # Radford et al. 2018, Eq. 5
        return Joint(parts=((1.0, Choosing()), (0.5, LM())))
    for name, task in (("choose", Choosing()), ("tag", Tagging()), ("span", AnswerSpan()), ("answer", AnswerBeams())):
        if name in heads:
            return task
    if "mlm" in heads and "nsp" in heads:
        return Joint(parts=((1.0, MLM()), (1.0, NSP())))
    if "nsp" in heads:
        return NSP()
    if "mlm" in heads:
        return MLM()
    if "lm" in heads:
        return LM()
    return parent


def adopted(parent: System, tower: Any, objective: Any, **slots: Any) -> System:
    """Returns the record of a published checkpoint: the parent's with another tower and the objective of the heads."""
    tasks = isinstance(objective, Classification | Choosing | Tagging | AnswerSpan | AnswerBeams)
    corruption = None if tasks or isinstance(objective, LM | NSP) else parent.corruption
    return dataclasses.replace(
        parent, towers={"main": tower}, objective=objective or parent.objective, corruption=corruption, **slots
    )
