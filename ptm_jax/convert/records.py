"""Shared parts of the families' records: vocabulary and task heads from a config, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptm_jax.convert.config import Config
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.seq2seq import is_pair
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import ChoiceHead, SequenceHead, SpanHead, TokenHead
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import Initializer
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.tasks.downstream import (
    AnswerBeams,
    AnswerSpan,
    Choosing,
    Classification,
    Tagging,
)
from ptm_jax.objectives.text.language import LM, MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.objectives.text.seq2seq import Seq2Seq

if TYPE_CHECKING:
    from ptm_jax.core.slots import Objective


PROBLEMS = {
    "single_label_classification": "classes",
    "regression": "number",
    "multi_label_classification": "labels",
}
"""Maps `problem_type` of a config to `Classification.kind`."""


def ends(config: Config, name: str, default: int | None) -> int | None:
    """Returns a special id of a config; the first one of a list."""
    value = config(name, None, default)
    return Config({name: value[0] if isinstance(value, list) and value else value}, config.file)(
        name, int, default
    )


def all_ends(config: Config, name: str) -> tuple[int, ...]:
    """Returns the special ids of a config: a list of ids, one id, or none.
    Raises UserError for another value."""
    value = config(name, None, None)
    several = value if isinstance(value, list) else [value]
    numbers = (Config({name: one}, config.file)(name, int, None) for one in several)
    return tuple(dict.fromkeys(number for number in numbers if number is not None))


def vocab_of(config: Config, *size: int, **specials: int | None) -> Vocab:
    """Returns the vocabulary of a config: `size` and `specials` are the defaults.
    The ids of a tokenizer override them."""
    ids = {name: ends(config, f"{name}_token_id", default) for name, default in specials.items()}
    return Vocab(size=config.positive("vocab_size", *size), **ids)


def special_ids(vocab: Vocab, *names: str) -> dict[str, int | None]:
    """Returns fields of a config.json: {"pad_token_id": id, ...}."""
    return {f"{name}_token_id": vocab.id(name) for name in names}


def mlm_head(config: Config, core: Any, **fields: Any) -> MLMHead:
    """Returns BERT's vocabulary head for an encoder."""
    eps, tied = config("layer_norm_eps", float, 1e-12), config("tie_word_embeddings", bool, True)
    return MLMHead(
        **{
            "vocab": core.embed.vocab,
            "eps": eps,
            "tied": tied,
            "initializer": core.embed.initializer,
            **fields,
        }
    )


def task_dropout(config: Config) -> float:
    """Returns the dropout of BERT's task heads: `classifier_dropout` or `hidden_dropout_prob`."""
    rate = config("classifier_dropout", float, None)
    return config("hidden_dropout_prob", float, 0.1) if rate is None else rate


def task_heads(
    config: Config, summary: Summary, init: Initializer, dropout: float | None = None
) -> dict[str, Any]:
    """Returns the four task heads of a config: `classify`, `choose`, `tag`, `span` (`dropout`:
    `task_dropout`)."""
    dropout = task_dropout(config) if dropout is None else dropout
    return {
        "classify": SequenceHead(config.labels, summary, dropout=dropout, initializer=init),
        "choose": ChoiceHead(
            config.positive("num_choices", 2), summary, dropout=dropout, initializer=init
        ),
        "tag": TokenHead(config.labels, dropout=dropout, initializer=init),
        "span": SpanHead(initializer=init),
    }


def pair_heads(config: Config, init: Initializer, eos: int | None) -> dict[str, Any]:
    """Returns the task heads of an encoder-decoder.
    The summary of a text is the decoder's state at its last `eos`."""
    rate = config("classifier_dropout", float, 0.0)
    return task_heads(
        config, Summary(at="eos", eos=eos, dropout=rate, initializer=init), init, rate
    )


def label_fields(classes: int, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the fields of a config.json that name the classes of a head.
    Default: LABEL_0, LABEL_1, ..."""
    names = {
        str(i): label for i, label in enumerate(labels or [f"LABEL_{i}" for i in range(classes)])
    }
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}


def task_fields(heads: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config.json that describe the task heads."""
    fields: dict[str, Any] = {}
    for name in ("classify", "tag"):
        if name in heads:
            fields |= label_fields(heads[name].classes) | {
                "classifier_dropout": heads[name].dropout
            }
    if "choose" in heads:
        fields |= {
            "classifier_dropout": heads["choose"].dropout,
            "num_choices": heads["choose"].choices,
        }
    return fields


def tied(heads: Mapping[str, Any], *names: str) -> bool:
    """Returns whether the named vocabulary heads share the encoder's token table.
    True if there are none."""
    return all(heads[name].shares_table for name in names if name in heads)


def _objective_of(config: Config, core: Any, heads: Mapping[str, Any], parent: Any) -> Any:
    """Returns the objective that trains the heads of a checkpoint; `parent` for the bare model."""
    if "classify" in heads:
        kind = PROBLEMS.get(config("problem_type", str, ""))
        return Classification(
            kind=kind or ("number" if heads["classify"].classes == 1 else "classes")
        )
    if "choose" in heads and "lm" in heads:  # Radford et al. 2018, Eq. 5
        return Joint(parts=((1.0, Choosing()), (0.5, LM())))
    if "mlm" in heads and "nsp" in heads:
        return Joint(parts=((1.0, MLM()), (1.0, NSP())))
    objectives = {
        "choose": Choosing(),
        "tag": Tagging(),
        "span": AnswerSpan(),
        "answer": AnswerBeams(),
        "nsp": NSP(),
    }
    objectives |= {"mlm": MLM(), "lm": Seq2Seq() if is_pair(core) else LM()}
    return next((objective for name, objective in objectives.items() if name in heads), parent)


def record_with(
    config: Config,
    parent: System,
    core: Any,
    heads: Mapping[str, Any],
    names: Iterable[str],
    *,
    objective: Objective | None = None,
    **slots: Any,
) -> System:
    """Returns the record of a published checkpoint.

    The parent's with an encoder, the named of its family's heads, and the objective that trains
    these (None: by `_objective_of`).
    """
    heads = {name: heads[name] for name in names}
    objective = objective or _objective_of(config, core, heads, parent.objective)
    tasks = isinstance(objective, Classification | Choosing | Tagging | AnswerSpan | AnswerBeams)
    slots = {
        "corruption": None if tasks or isinstance(objective, LM | NSP) else parent.corruption,
        **slots,
    }
    return dataclasses.replace(
        parent, towers={"main": Model(encoder=core, heads=heads)}, objective=objective, **slots
    )
