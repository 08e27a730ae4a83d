"""Drawn configs of today's encoders: every field that changes the arithmetic of a class, and fields
that are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

ACTS = ("gelu", "relu", "gelu_new", "silu", "tanh", "gelu_fast", "quick_gelu", "relu2", "mish")
EPS = (1e-12, 1e-5, 1e-3)
FLAG = (True, False)
KINDS = ("sliding_attention", "full_attention")
HEADS = (1, 2, 3, 5)
Draw = np.random.Generator
Fields = dict[str, Any]


def one(draw: Draw, *values: Any) -> Any:
    """Returns one of some values, as it is."""
    return values[int(draw.integers(len(values)))]


def sizes(draw: Draw, each: tuple[int, ...] = (4, 6, 10)) -> Fields:
    heads = one(draw, *HEADS)
    return dict(
        hidden_size=heads * one(draw, *each),
        num_attention_heads=heads,
        num_hidden_layers=int(draw.integers(1, 6)),
        intermediate_size=int(draw.integers(5, 40)),
    )


def flags(draw: Draw, *names: str) -> Fields:
    return {name: bool(draw.integers(2)) for name in names}


def theta(draw: Draw) -> Fields:
    return {"rope_type": "default", "rope_theta": one(draw, 50.0, 1000.0, 250_000.0)}


def pattern(draw: Draw, layers: int) -> Fields:
    """Every n-th layer is full, at any offset; each kind has its theta."""
    every = int(draw.integers(1, 5))
    phase = int(draw.integers(every))
    return dict(
        layer_types=[KINDS[i % every == phase] for i in range(layers)],
        rope_parameters={kind: theta(draw) for kind in KINDS},
    )


def modernbert(draw: Draw) -> Fields:
    words = sizes(draw) | {"num_hidden_layers": int(draw.integers(1, 8))}
    names = "norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias"
    return (
        words
        | pattern(draw, words["num_hidden_layers"])
        | flags(draw, *names, "tie_word_embeddings")
        | dict(
            local_attention=one(draw, 2, 4, 7, 12, 40),
            hidden_activation=one(draw, *ACTS),
            classifier_activation=one(draw, *ACTS),
            classifier_pooling=one(draw, "cls", "mean"),
            norm_eps=one(draw, *EPS[1:]),
            **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
            **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
        )
    )


def decoder(draw: Draw) -> Fields:
    words = modernbert(draw) | {"local_attention": one(draw, 4, 7, 10, 40)}
    del words["classifier_pooling"]
    return words


def llama(draw: Draw) -> Fields:
    shared = one(draw, 1, 2, 3)
    heads = shared * one(draw, 1, 2, 3)
    words = sizes(draw) | dict(
        hidden_size=heads * one(draw, 4, 5, 6),
        num_attention_heads=heads,
        num_key_value_heads=shared,
        head_dim=one(draw, 4, 6, 10),
        rope_parameters=theta(draw),
        hidden_act=one(draw, *ACTS),
        rms_norm_eps=one(draw, *EPS[1:]),
        max_position_embeddings=int(draw.integers(24, 40)),
        bos_token_id=1,
        eos_token_id=2,
    )
    return words | flags(draw, "attention_bias", "mlp_bias", "tie_word_embeddings")


def eurobert(draw: Draw) -> Fields:
    pooling = one(draw, "late", "bos", "mean")
    return llama(draw) | dict(classifier_pooling=pooling, mask_token_id=3)


def ultrabert(draw: Draw) -> Fields:
    words = llama(draw)
    return (
        words
        | pattern(draw, words["num_hidden_layers"])
        | dict(
            sliding_window=one(draw, 1, 3, 8, 40),
            prediction_head_size=one(draw, 5, 30),
            classifier_pooling=one(draw, "cls", "mean"),
        )
    )


def bert(draw: Draw, each: tuple[int, ...] = (4, 6, 10)) -> Fields:
    return sizes(draw, each) | dict(
        type_vocab_size=int(draw.integers(1, 4)),
        hidden_act=one(draw, *ACTS),
        layer_norm_eps=one(draw, *EPS),
        max_position_embeddings=int(draw.integers(26, 40)),
    )


def rotary_bert(draw: Draw) -> Fields:
    return bert(draw) | {"rope_parameters": theta(draw)} | flags(draw, "tie_word_embeddings")


def nomic(draw: Draw) -> Fields:
    return rotary_bert(draw) | {"head_dim": one(draw, None, 4, 8)}


def gte(draw: Draw) -> Fields:
    return rotary_bert(draw) | {"type_vocab_size": int(draw.integers(0, 4))}


def esm(draw: Draw) -> Fields:
    rotary = bool(draw.integers(2))
    names = "token_dropout", "emb_layer_norm_before", "tie_word_embeddings"
    return (
        sizes(draw, (4, 6, 10) if rotary else (3, 4, 5))
        | dict(
            position_embedding_type="rotary" if rotary else "absolute",
            rope_theta=one(draw, 50.0, 20_000.0),
            max_position_embeddings=int(draw.integers(26, 40)),
            layer_norm_eps=one(draw, *EPS),
            mask_token_id=5,
        )
        | flags(draw, *names)
    )


def roformer(draw: Draw) -> Fields:
    return (
        bert(draw)
        | dict(
            embedding_size=one(draw, 6, 12, 18),
            summary_type=one(draw, "last", "first", "mean"),
            summary_activation=one(draw, "", "tanh"),
        )
        | flags(draw, "rotary_value", "tie_word_embeddings", "summary_use_proj")
    )


def deberta(draw: Draw, second: bool = False) -> Fields:
    words = sizes(draw, (4, 5, 8)) | dict(
        num_hidden_layers=int(draw.integers(1, 4)),
        max_position_embeddings=int(draw.integers(24, 40)),
        max_relative_positions=one(draw, -1, 6, 15),
        type_vocab_size=int(draw.integers(0, 3)),
        pos_att_type=one(draw, ["c2p"], ["p2c"], ["c2p", "p2c"], ["p2c", "c2p"], []),
        hidden_act=one(draw, *ACTS),
        pooler_hidden_act=one(draw, *ACTS),
        layer_norm_eps=one(draw, *EPS[1:]),
    )
    names = "position_biased_input", "legacy", "tie_word_embeddings"
    words |= flags(draw, *names) | {"relative_attention": bool(draw.integers(4))}
    if second:
        norm = "none"  # Transformers stores a norm that it does not use without distances
        if words["relative_attention"]:
            norm = one(draw, "none", "layer_norm")
        groups = [n for n in (1, 2, 3, 4) if words["hidden_size"] % n == 0]
        words |= flags(draw, "share_att_key") | dict(
            pos_att_type=one(
                draw, words["pos_att_type"], "C2P|p2c", "none", ["none", "p2c", "p2c"]
            ),
            norm_rel_ebd=norm,
            conv_kernel_size=one(draw, 0, 3, 5),
            conv_groups=one(draw, *groups),
            conv_act=one(draw, *ACTS),
            position_buckets=one(draw, -1, 4, 7),
        )
    return words


def second_deberta(draw: Draw) -> Fields:
    return deberta(draw, second=True)


def neobert(draw: Draw) -> Fields:
    return sizes(draw) | dict(
        hidden_act=one(draw, "SwiGLU", "swiglu"),
        max_length=int(draw.integers(24, 40)),
        norm_eps=one(draw, *EPS[1:]),
    )


TASKS = {
    "ForMaskedLM": "mlm",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
}
SPANS = TASKS | {"ForQuestionAnswering": "span"}
ALL = SPANS | {"ForMultipleChoice": "choose"}
SCALED = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
SCALED_ANGLES = {"rope_parameters": SCALED}, {"rope_parameters": SCALED | {"rope_type": "dynamic"}}
SCALED_KINDS = {"rope_parameters": dict.fromkeys(KINDS, SCALED)}
APERIODIC = {
    "num_hidden_layers": 4,
    "layer_types": [KINDS[1], KINDS[1], KINDS[0], KINDS[1]],
}
ODD = {"hidden_size": 15, "num_attention_heads": 3}
UNEVEN = (
    {"hidden_size": 10, "num_attention_heads": 3, "head_dim": None, "num_key_value_heads": None},
)
"""Sizes that a class of Transformers refuses too."""


@dataclasses.dataclass(frozen=True)
class Family:
    """The fields and classes of a family in Transformers.

    `refused` are fields that its class computes, or stores, and that we refuse. `window` is the
    field that has the size of a window, `default` the number of sentence types.
    """

    fields: Callable[[Draw], Fields]
    tasks: Mapping[str, str]
    refused: tuple[Fields, ...] = ()
    window: str = ""
    types: bool = True


FAMILIES = {
    "ModernBert": Family(
        modernbert, ALL, (ODD, APERIODIC, SCALED_KINDS, *UNEVEN), "local_attention", False
    ),
    "ModernBertDecoder": Family(
        decoder,
        {"ForCausalLM": "lm", "ForSequenceClassification": "classify"},
        (ODD, APERIODIC, {"local_attention": 2}, *UNEVEN),
        "local_attention",
        False,
    ),
    "Ultrabert": Family(
        ultrabert, SPANS, ({"head_dim": 5}, APERIODIC, *UNEVEN), "sliding_window", False
    ),
    "EuroBert": Family(eurobert, TASKS, ({"head_dim": 5}, *SCALED_ANGLES, *UNEVEN), types=False),
    "NomicBert": Family(nomic, TASKS, (ODD | {"head_dim": 5}, *SCALED_ANGLES, *UNEVEN)),
    "Gte": Family(gte, TASKS, (ODD, *SCALED_ANGLES, *UNEVEN)),
    "JinaEmbeddingsV3": Family(rotary_bert, SPANS, (ODD, *SCALED_ANGLES, *UNEVEN)),
    "Esm": Family(
        esm,
        TASKS,
        (ODD | {"position_embedding_type": "rotary"}, {"is_decoder": True}, *UNEVEN),
        types=False,
    ),
    "RoFormer": Family(
        roformer, ALL, (ODD, {"is_decoder": True, "add_cross_attention": True}, *UNEVEN)
    ),
    "Deberta": Family(deberta, SPANS, ({"talking_head": True}, {"pos_att_type": "none"}, *UNEVEN)),
    "DebertaV2": Family(second_deberta, ALL, ({"conv_kernel_size": 3, "conv_groups": 7}, *UNEVEN)),
    "NeoBert": Family(
        neobert,
        {"LMHead": "mlm", "ForSequenceClassification": "classify"},
        (ODD, {"ngpt": True}, {"rms_norm": False}, {"rope": False}, {"hidden_act": "gelu"}),
        types=False,
    ),
}
