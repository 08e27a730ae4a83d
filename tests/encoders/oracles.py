"""Families in the `transformers` library with random weights, the catalogue's records in their
sizes, and the weights."""

import dataclasses
import math

import numpy as np

from ptm_jax import systems
from ptm_jax.convert import checkpoint, engine
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import family_of
from ptm_jax.convert.table import Line
from ptm_jax.core.paths import flatten
from ptm_jax.core.spec import respell
from ptm_jax.core.towers import abstract
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.transformer.xl import TransformerXL
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import Buckets
from ptm_jax.nn.blocks import FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.layers import Dense

try:  # without them the records are still collected, and what their marks claim is known
    import torch
    import transformers
except ModuleNotFoundError:
    torch = transformers = None

VOCAB = Vocab(size=61, pad=0)
HEADS, HIDDEN, LIMIT = 3, 40, 20
RECORDS = {
    "t5": ("t5_base", "main"),
    "t5v11": ("t5_1_1_base", "main"),
    "xlnet": ("xlnet_base", "main"),
    "bart": ("bart_base", "main"),
    "pegasus": ("pegasus_large", "main"),
    "albert": ("albert_base_v2", "main"),
    "ctrl": ("ctrl", "main"),
    "electra": ("electra_base", "main"),
    "electra_generator": ("electra_base", "generator"),
    "megatron_bert": ("megatron_bert_336m", "main"),
    "unilm": ("unilm_base", "main"),
}
WIDTH = {"electra_generator": 12}  # others 24
TABLE = {"albert": 10}  # width of the token table; others 24


def oracle(family, seed=0):
    """A small random model of `transformers`, eager attention, no dropout.

    Configured as the published checkpoint, but for what its authors' code does otherwise: XLNet's
    GELU is the tanh form (zihangdai/xlnet, modeling.py) and Megatron-LM's norms have 1e-5
    (--layernorm-epsilon).
    """
    torch.manual_seed(seed)
    t, eager = transformers, dict(vocab_size=61, pad_token_id=0, attn_implementation="eager")
    pair = dict(
        d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN, decoder_ffn_dim=HIDDEN, max_position_embeddings=LIMIT, **eager,
    )  # fmt: skip
    t5 = dict(
        d_model=24, d_kv=6, d_ff=HIDDEN, num_layers=2, num_heads=HEADS,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12, **eager,
    )  # fmt: skip
    bert = dict(
        hidden_size=WIDTH.get(family, 24), num_hidden_layers=2, num_attention_heads=HEADS,
        intermediate_size=HIDDEN, max_position_embeddings=LIMIT, **eager,
    )  # fmt: skip
    narrow = dict(embedding_size=TABLE.get(family, 24), **bert)
    xlnet = dict(
        vocab_size=61,
        d_model=24,
        n_layer=2,
        n_head=HEADS,
        d_inner=HIDDEN,
        ff_activation="gelu_new",
        reuse_len=5,
    )
    ctrl = dict(n_positions=LIMIT, n_embd=24, dff=HIDDEN, n_layer=2, n_head=HEADS, **eager)
    model = {
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(feed_forward_proj="relu", **t5)),
        "t5v11": lambda: _untied(
            t.T5ForConditionalGeneration(t.T5Config(feed_forward_proj="gated-gelu", **t5))
        ),
        "xlnet": lambda: t.XLNetLMHeadModel(t.XLNetConfig(**xlnet)),
        "bart": lambda: t.BartForConditionalGeneration(t.BartConfig(**pair)),
        "pegasus": lambda: t.PegasusForConditionalGeneration(
            t.PegasusConfig(scale_embedding=True, activation_function="relu", **pair)
        ),
        "albert": lambda: t.AlbertForPreTraining(t.AlbertConfig(**narrow)),
        "ctrl": lambda: t.CTRLLMHeadModel(t.CTRLConfig(**ctrl)),
        "electra": lambda: t.ElectraForPreTraining(t.ElectraConfig(**narrow)),
        "electra_generator": lambda: t.ElectraForMaskedLM(t.ElectraConfig(**narrow)),
        "megatron_bert": lambda: t.MegatronBertForPreTraining(
            t.MegatronBertConfig(layer_norm_eps=1e-5, **bert)
        ),
        "unilm": lambda: t.BertForPreTraining(t.BertConfig(type_vocab_size=6, **bert)),
    }[family]()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if family == "pegasus" and "embed_positions" in name:
                continue  # sinusoids
            norm = ("norm" in name.lower() or ".ln." in name) and name.endswith("weight")
            p.copy_(torch.randn_like(p) * 0.2 + float(norm))
    return model.eval()


def _untied(model):
    """T5 1.1's own table for the output; the configuration of 5.x would untie the decoder's input
    as well."""
    model.config.scale_decoder_outputs = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def record(family):
    """The tower of the catalogue that a family is compared with, at its own size."""
    system, tower = RECORDS[family]
    return systems.get(system).towers[tower]


def ours(family):
    """The record with nothing but sizes changed; a factor that is a power of the width stays that
    power of it."""
    module, width, old = record(family), WIDTH.get(family, 24), set()
    respell(module, Attention, lambda a: old.add(a.width) or a)

    def power(factor):
        return width ** (0.5 * round(2 * math.log(factor, *old)))

    def change(**words):
        return lambda part: dataclasses.replace(part, **words)

    edits = {
        Vocab: lambda vocab: VOCAB,
        Attention: lambda a: dataclasses.replace(
            a, heads=HEADS, width=width, head_width=a.head_width and 6
        ),
        FeedForward: change(hidden=HIDDEN),
        Dense: change(features=width),
        LearnedPositions: lambda p: dataclasses.replace(p, size=LIMIT + p.offset),
        Buckets: change(heads=HEADS, buckets=8, farthest=12),
        Embeddings: lambda e: dataclasses.replace(
            e, width=TABLE.get(family, 24), scale=power(e.scale)
        ),
        LMHead: lambda h: dataclasses.replace(h, scale=power(h.scale)),
        Stack: change(layers=2),
        TransformerXL: change(memory=4),
    }
    for kind, edit in edits.items():
        module = respell(module, kind, edit)
    return module


def tree(family, model, tensors):
    """`tree_of` of a family."""
    return tree_of(ours(family), model, tensors)


def tree_of(tower, model, tensors):
    """{path: array} of our tower from {name: tensor} of a model (its parameters, or their
    gradients), by the tables that checkpoints are read with."""
    config = Config(model.config.to_dict())
    known = family_of(config)
    shapes = flatten(abstract({"main": tower}, checkpoint.example(None))["main"])
    # Megatron's BERT learned the order of sentences under the name of the next one.
    lines = (
        *known.lines(config, type(model).__name__),
        Line("heads_sop/dense", "cls.seq_relationship", "dense"),
    )
    leaves, rest = engine.leaves({path: leaf.shape for path, leaf in shapes.items()}, lines)
    assert not rest, rest
    found = {}
    for path, leaf in leaves.items():
        arrays = [tensors[_there(name, known, tensors)].detach().numpy() for name in leaf.names]
        parts = [leaf.line.read(array, leaf.part, leaf.inner) for array in arrays]
        found[path] = np.stack(parts).reshape(leaf.shape) if leaf.line.depth else parts[0]
    return found


def _there(name, known, tensors):
    """The name of a tensor, or of another that holds the same."""
    return next(
        other
        for other in (name, *known.fill.get(name, ()), known.ties.get(name))
        if other in tensors
    )
