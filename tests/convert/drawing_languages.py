"""Drawn configs of the encoders of many languages and of translation: every field that changes the
arithmetic of a class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import drawing
import numpy as np
import peers
import repairs
from drawing import ACTS, ALL, EPS, Draw, Fields, flags, one

from ptm_jax.core import towers
from ptm_jax.objectives.text.language import MLM

VOCAB, LENGTH = 61, 16
SIDES = "right", "left", "none"
WAVES = tuple(
    f"{root}{side}.embed_positions.weight"
    for root in ("", "model.")
    for side in ("encoder", "decoder")
)


def xlm(draw: Draw) -> Fields:
    heads = one(draw, 1, 2, 3)
    return dict(
        emb_dim=heads * one(draw, 4, 6),
        n_heads=heads,
        n_layers=one(draw, 1, 2),
        n_langs=one(draw, 1, 2, 4),
        max_position_embeddings=int(draw.integers(16, 30)),
        embed_init_std=0.1,
        layer_norm_eps=one(draw, *EPS),
        summary_type=one(draw, "first", "last", "cls_index", "mean"),
        summary_activation=one(draw, None, "tanh", "relu"),
        pad_index=2,
        pad_token_id=2,
        **flags(draw, "gelu_activation", "use_lang_emb", "sinusoidal_embeddings", "causal"),
        **flags(draw, "tie_word_embeddings"),
    )


def flaubert(draw: Draw) -> Fields:
    fields = xlm(draw) | flags(draw, "pre_norm") | {"layerdrop": one(draw, 0.0, 0.2)}
    del fields["sinusoidal_embeddings"]
    return fields


def bert(draw: Draw) -> Fields:
    fields = drawing.bert(draw) | {"num_hidden_layers": one(draw, 1, 2)}
    return fields | flags(draw, "tie_word_embeddings")


def roberta(draw: Draw) -> Fields:
    pad = one(draw, 0, 1, 4)
    return bert(draw) | dict(
        pad_token_id=pad, bos_token_id=2, eos_token_id=3, classifier_dropout=one(draw, None, 0.3)
    )


def ernie(draw: Draw) -> Fields:
    return bert(draw) | flags(draw, "use_task_id") | dict(task_type_vocab_size=4, pad_token_id=0)


def xmod(draw: Draw) -> Fields:
    names = ["en_XX", "de_DE", "sw", "zh_CN"][: one(draw, 1, 2, 4)]
    return (
        roberta(draw)
        | flags(draw, "pre_norm", "adapter_layer_norm", "adapter_reuse_layer_norm")
        | flags(draw, "ln_before_adapter")
        | dict(
            languages=names,
            default_language=one(draw, *names),
            adapter_reduction_factor=one(draw, 1, 2, 3),
        )
    )


def pair(draw: Draw) -> Fields:
    fields = dict(
        d_model=one(draw, 12, 24),
        max_position_embeddings=int(draw.integers(18, 40)),
        activation_function=one(draw, *ACTS),
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **flags(draw, "scale_embedding", "tie_word_embeddings"),
    )
    for side in ("encoder", "decoder"):
        fields |= {
            f"{side}_layers": int(draw.integers(1, 3)),
            f"{side}_ffn_dim": int(draw.integers(5, 30)),
            f"{side}_attention_heads": one(draw, 1, 2, 3, 4),
            f"{side}_layerdrop": one(draw, 0.0, 0.1),
        }
    return fields


def m2m(draw: Draw) -> Fields:
    return pair(draw) | {"d_model": one(draw, 12, 24), "decoder_start_token_id": one(draw, 2, 5)}


def marian(draw: Draw) -> Fields:
    last = VOCAB - 1
    specials = dict(pad_token_id=last, decoder_start_token_id=last, eos_token_id=0)
    return pair(draw) | specials | {"tie_word_embeddings": True, "bos_token_id": None}


def langs(draw: Draw, fields: Fields) -> Fields:
    shape = peers.ROWS, LENGTH
    return {"langs": draw.integers(0, fields["n_langs"], shape).astype(np.int32)}


def lang_ids(draw: Draw, fields: Fields) -> Fields:
    return {"lang_ids": draw.integers(0, len(fields["languages"]), peers.ROWS).astype(np.int32)}


def task_ids(draw: Draw, fields: Fields) -> Fields:
    return {"task_type_ids": draw.integers(0, 4, (peers.ROWS, LENGTH)).astype(np.int32)}


XLM_TASKS = {
    "WithLMHeadModel": "mlm",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForMultipleChoice": "choose",
    "ForQuestionAnsweringSimple": "span",
}
PAIR_TASKS = {
    "ForConditionalGeneration": "lm",
    "ForSequenceClassification": "classify",
    "ForQuestionAnswering": "span",
}


@dataclasses.dataclass(frozen=True)
class Family:
    """The fields and classes of a family, and the inputs that it alone reads. `eos` ends the rows
    of an encoder-decoder; None: the family has one half. `tested`: number of configs that the tests
    draw."""

    fields: Callable[[Draw], Fields]
    tasks: Mapping[str, str]
    inputs: Callable[[Draw, Fields], Fields] = lambda draw, fields: {}
    tested: int = 6
    eos: int | None = None
    unused: tuple[str, ...] = ()


CAUSAL = ALL | {"ForCausalLM": "lm"}
FAMILIES = {
    "XLM": Family(xlm, XLM_TASKS, langs, tested=5),
    "Flaubert": Family(flaubert, XLM_TASKS, langs, tested=5),
    "Camembert": Family(roberta, CAUSAL),
    "XLMRoberta": Family(roberta, CAUSAL),
    "XLMRobertaXL": Family(roberta, CAUSAL),
    "Xmod": Family(xmod, ALL, lang_ids),
    "Ernie": Family(ernie, CAUSAL, task_ids),
    "MBart": Family(pair, PAIR_TASKS, tested=3, eos=2),
    "M2M100": Family(m2m, {"ForConditionalGeneration": "lm"}, tested=3, eos=2),
    "Marian": Family(marian, {"MTModel": "lm"}, tested=3, eos=0, unused=WAVES),
}


@dataclasses.dataclass
class Drawn:
    """A drawn config of a family with one of its classes, by turns, and inputs."""

    config: Any
    case: peers.Case
    inputs: dict
    unused: tuple[str, ...]


def drawn(prefix: str, number: int) -> Drawn:
    """Returns config `number` of a family."""
    family = FAMILIES[prefix]
    draw = np.random.default_rng([number, *map(ord, prefix)])
    name, task = [*family.tasks.items()][number % len(family.tasks)]
    fields = family.fields(draw) | dict(vocab_size=VOCAB, num_labels=one(draw, 2, 3, 5))
    fields |= {"is_decoder": True} if name == "ForCausalLM" else {}
    fields |= {"num_labels": 2} if task == "span" else {}
    side = one(draw, *SIDES)
    if "summary_type" in fields:
        # A summary of the last token reads the last slot there, and a causal XLM padding before it.
        last = "none" if fields["causal"] else "left"
        sides = {"first": "right", "mean": "none", "last": last, "cls_index": last}
        side = sides[fields["summary_type"]]
    inputs = texts(draw, fields, "right" if family.eos is not None else side)
    inputs |= family.inputs(draw, fields)
    case = peers.Case(prefix + name, (task,))
    if "summary_type" in fields and task == "mlm":
        case = dataclasses.replace(case, objective=MLM(head="mlm"))
    if "lang_ids" in inputs and task == "choose":  # its class takes the language of the config
        number = fields["languages"].index(fields["default_language"])
        inputs["lang_ids"] = np.full(peers.ROWS, number, np.int32)
        case = dataclasses.replace(case, without=("lang_ids",))
    if family.eos is not None:
        seed = int(draw.integers(1000))
        inputs = peers.paired(inputs, VOCAB, LENGTH, eos=family.eos, seed=seed)
    unused = family.unused
    if not fields.get("tie_word_embeddings", True):
        unused += ("shared.weight", "model.shared.weight", "lm_head.bias", "cls.predictions.bias")
    config = getattr(peers.transformers, f"{prefix}Config")
    return Drawn(config(attn_implementation="eager", **fields), case, inputs, unused)


def texts(draw: Draw, fields: Fields, side: str) -> dict:
    """Returns inputs and labels; padding has the config's id, ids from 6 are words."""
    types, classes = max(fields.get("type_vocab_size", 2), 1), fields["num_labels"]
    seed = int(draw.integers(2**31))
    given = peers.drawn(
        VOCAB - 1,
        LENGTH,
        side="right" if side == "none" else side,
        types=types,
        classes=classes,
        seed=seed,
        least=6,
    )
    if side == "none":
        for name in ("input_ids", "words"):
            more = draw.integers(6, VOCAB - 1, given[name].shape)
            given[name] = np.where(given[name] > 0, given[name], more).astype(np.int32)
        given["attention_mask"] = np.ones_like(given["attention_mask"])
    if "type_vocab_size" not in fields:
        del given["token_type_ids"]
    mask = given["attention_mask"] > 0
    ids = np.where(mask, given["input_ids"], fields["pad_token_id"])
    given["input_ids"] = ids.astype(np.int32)
    before = np.pad(mask[:, :-1], ((0, 0), (1, 0)))  # padding predicts no token
    given["lm_labels"] = np.where(mask & before, given["input_ids"], peers.IGNORED)
    return given


def compare(prefix: str, number: int, folder: Any, monkeypatch: Any) -> None:
    """Raises an error where config `number` of a family differs from Transformers."""
    one_of = drawn(prefix, number)
    if prefix == "Flaubert" and one_of.config.pre_norm:
        repairs.runnable(monkeypatch)
    monkeypatch.setattr(towers, "abstract", peers.cached(towers.abstract))
    peers.compare(folder, one_of.config, [one_of.case], one_of.inputs, unused=one_of.unused)
