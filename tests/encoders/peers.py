"""Families in the `transformers` library with random weights, the catalogue's records in their sizes, and the weights."""

import dataclasses
import math

import numpy as np

from ptm_jax import systems
from ptm_jax.core.spec import respell
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.xl import TransformerXL
from ptm_jax.nn.attention import Attention
from ptm_jax.nn.blocks import FeedForward, Stack
from ptm_jax.nn.embeddings import Embeddings, LearnedPositions
from ptm_jax.nn.heads import LMHead
from ptm_jax.nn.layers import Dense
from ptm_jax.nn.relative import Buckets

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
    "albert_groups": ("albert_base_v2", "main"),
    "ctrl": ("ctrl", "main"),
    "electra": ("electra_base", "main"),
    "electra_generator": ("electra_base", "generator"),
    "megatron_bert": ("megatron_bert_336m", "main"),
    "unilm": ("unilm_base", "main"),
}
FAMILIES = tuple(RECORDS)
LAYERS = {"albert": 4, "albert_groups": 4}
WIDTH = {"electra_generator": 12}  # others 24
TABLE = {"albert": 10, "albert_groups": 10}  # width of the token table; others 24


def oracle(family, seed=0):
    """A small random model of `transformers`, eager attention, no dropout.

    Configured as the published checkpoint, but for what its authors' code does otherwise: XLNet's GELU is the tanh form
    (zihangdai/xlnet, modeling.py) and Megatron-LM's norms have 1e-5 (--layernorm-epsilon).
    """
    torch.manual_seed(seed)
    t, eager = transformers, dict(vocab_size=61, pad_token_id=0, attn_implementation="eager")
    pair = dict(
        d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN, decoder_ffn_dim=HIDDEN, max_position_embeddings=LIMIT, **eager,
    )  # fmt: skip
    t5 = dict(
        d_model=24, d_kv=6, d_ff=HIDDEN, num_layers=2, num_heads=HEADS, relative_attention_num_buckets=8,
        relative_attention_max_distance=12, **eager,
    )  # fmt: skip
    bert = dict(
        hidden_size=WIDTH.get(family, 24), num_hidden_layers=LAYERS.get(family, 2), num_attention_heads=HEADS,
        intermediate_size=HIDDEN, max_position_embeddings=LIMIT, **eager,
    )  # fmt: skip
    narrow = dict(embedding_size=TABLE.get(family, 24), **bert)
    xlnet = dict(vocab_size=61, d_model=24, n_layer=2, n_head=HEADS, d_inner=HIDDEN, ff_activation="gelu_new", reuse_len=5)
    ctrl = dict(n_positions=LIMIT, n_embd=24, dff=HIDDEN, n_layer=2, n_head=HEADS, **eager)
    model = {
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(feed_forward_proj="relu", **t5)),
        "t5v11": lambda: _untied(t.T5ForConditionalGeneration(t.T5Config(feed_forward_proj="gated-gelu", **t5))),
        "xlnet": lambda: t.XLNetLMHeadModel(t.XLNetConfig(**xlnet)),
        "bart": lambda: t.BartForConditionalGeneration(t.BartConfig(**pair)),
        "pegasus": lambda: t.PegasusForConditionalGeneration(
            t.PegasusConfig(scale_embedding=True, activation_function="relu", **pair)
        ),
        "albert": lambda: t.AlbertForPreTraining(t.AlbertConfig(**narrow)),
        "albert_groups": lambda: t.AlbertForPreTraining(t.AlbertConfig(num_hidden_groups=2, **narrow)),
        "ctrl": lambda: t.CTRLLMHeadModel(t.CTRLConfig(**ctrl)),
        "electra": lambda: t.ElectraForPreTraining(t.ElectraConfig(**narrow)),
        "electra_generator": lambda: t.ElectraForMaskedLM(t.ElectraConfig(**narrow)),
        "megatron_bert": lambda: t.MegatronBertForPreTraining(t.MegatronBertConfig(layer_norm_eps=1e-5, **bert)),
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
    """T5 1.1's own table for the output; the configuration of 5.x would untie the decoder's input as well."""
    model.config.scale_decoder_outputs = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def record(family):
    """The tower of the catalogue that a family is compared with, at its own size."""
    system, tower = RECORDS[family]
    return systems.get(system).towers[tower]


def ours(family):
    """The record with nothing but sizes changed; a factor that is a power of the width stays that power of it."""
    module, width = record(family), WIDTH.get(family, 24)
    old = _width(module)
    power = lambda factor: width ** (0.5 * round(2 * math.log(factor, old)))
    change = lambda **words: lambda part: dataclasses.replace(part, **words)
    edits = {
        Vocab: lambda vocab: VOCAB,
        Attention: lambda a: dataclasses.replace(a, heads=HEADS, width=width, head_width=a.head_width and 6),
        FeedForward: change(hidden=HIDDEN),
        Dense: change(features=width),
        LearnedPositions: lambda p: dataclasses.replace(p, size=LIMIT + p.offset),
        Buckets: change(heads=HEADS, buckets=8, most=12),
        Embeddings: lambda e: dataclasses.replace(e, width=TABLE.get(family, 24), scale=power(e.scale)),
        LMHead: lambda h: dataclasses.replace(h, scale=power(h.scale)),
        Stack: change(layers=LAYERS.get(family, 2), groups=2 if family == "albert_groups" else 1),
        TransformerXL: change(memory=4),
    }
    for kind, edit in edits.items():
        module = respell(module, kind, edit)
    return module


def _width(module):
    """The width of a tower's stack."""
    found = []
    respell(module, Attention, lambda a: found.append(a.width) or a)
    assert len(set(found)) == 1
    return found[0]


class Names:
    """Collects {our path: array} from the oracle's {name: tensor}."""

    def __init__(self, tensors):
        self.get = lambda name: tensors[name].detach().numpy()
        self.found = {}

    def put(self, path, name, move=lambda x: x, layers=0):
        """One array, or the stack over layers where `name` has a place {i}."""
        if layers:
            self.found[path] = np.stack([move(self.get(name.format(i=i))) for i in range(layers)])
        else:
            self.found[path] = move(self.get(name.format(i=0)))

    def dense(self, path, name, bias=True, layers=0):
        self.put(f"{path}/kernel", f"{name}.weight", np.transpose, layers)
        if bias:
            self.put(f"{path}/bias", f"{name}.bias", layers=layers)

    def norm(self, path, name, bias=True, layers=0):
        self.put(f"{path}/scale", f"{name}.weight", layers=layers)
        if bias:
            self.put(f"{path}/bias", f"{name}.bias", layers=layers)

    def attention(self, path, names, bias=True, layers=0):
        """`names` of query, key, value and output."""
        for ours, name in zip(("query", "key", "value"), names, strict=False):
            self.put(f"{path}/{ours}/kernel", f"{name}.weight", lambda w: w.T.reshape(w.shape[1], HEADS, -1), layers)
            if bias:
                self.put(f"{path}/{ours}/bias", f"{name}.bias", lambda b: b.reshape(HEADS, -1), layers)
        self.put(f"{path}/out/kernel", f"{names[3]}.weight", lambda w: w.T.reshape(HEADS, -1, len(w)), layers)
        if bias:
            self.put(f"{path}/out/bias", f"{names[3]}.bias", layers=layers)


def tree(family, tensors):
    """{path: array} of our tree from {name: tensor} (parameters, or their gradients)."""
    names = Names(tensors)
    special = {"t5": _t5_names, "t5v11": _t5_names, "bart": _pair_names, "pegasus": _pair_names, "ctrl": _ctrl_names}
    special |= {"xlnet": _xlnet_names, "albert": _albert_names, "albert_groups": _albert_names}
    special.get(family, _bert_names)(family, names)
    return names.found


def _t5_names(family, n):
    n.put("encoder/encoder/embed/token", "shared.weight")
    for half in ("encoder", "decoder"):
        path, block, last = f"encoder/{half}", f"encoder/{half}/stack/block", 2 if half == "decoder" else 1
        layer = f"{half}.block.{{i}}.layer"
        bias = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        n.put(f"{path}/relative/table", bias)
        n.attention(f"{block}/attention", [f"{layer}.0.SelfAttention.{x}" for x in "qkvo"], False, 2)
        n.norm(f"{block}/attention_norm", f"{layer}.0.layer_norm", False, 2)
        if half == "decoder":
            n.attention(f"{block}/cross/attention", [f"{layer}.1.EncDecAttention.{x}" for x in "qkvo"], False, 2)
            n.norm(f"{block}/cross/attention_norm", f"{layer}.1.layer_norm", False, 2)
        ffn = {"up": "wi_0", "gate": "wi_1", "down": "wo"} if family == "t5v11" else {"up": "wi", "down": "wo"}
        for ours_, theirs in ffn.items():
            n.dense(f"{block}/ffn/{ours_}", f"{layer}.{last}.DenseReluDense.{theirs}", False, 2)
        n.norm(f"{block}/ffn_norm", f"{layer}.{last}.layer_norm", False, 2)
        n.norm(f"{path}/stack/final_norm", f"{half}.final_layer_norm", False)
    if family == "t5v11":
        n.put("heads_lm/table", "lm_head.weight")


def _pair_names(family, n):
    n.put("encoder/encoder/embed/token", "model.shared.weight")
    for half in ("encoder", "decoder"):
        path, block, layer = f"encoder/{half}", f"encoder/{half}/stack/block", f"model.{half}.layers.{{i}}"
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        n.attention(f"{block}/attention", [f"{layer}.self_attn.{x}" for x in parts], layers=2)
        n.norm(f"{block}/attention_norm", f"{layer}.self_attn_layer_norm", layers=2)
        if half == "decoder":
            n.attention(f"{block}/cross/attention", [f"{layer}.encoder_attn.{x}" for x in parts], layers=2)
            n.norm(f"{block}/cross/attention_norm", f"{layer}.encoder_attn_layer_norm", layers=2)
        n.dense(f"{block}/ffn/up", f"{layer}.fc1", layers=2)
        n.dense(f"{block}/ffn/down", f"{layer}.fc2", layers=2)
        n.norm(f"{block}/ffn_norm", f"{layer}.final_layer_norm", layers=2)
        if family == "bart":
            n.put(f"{path}/embed/position/table", f"model.{half}.embed_positions.weight")
            n.norm(f"{path}/embed/norm", f"model.{half}.layernorm_embedding")
        else:
            n.norm(f"{path}/stack/final_norm", f"model.{half}.layer_norm")


def _ctrl_names(family, n):
    block, layer = "encoder/stack/block", "transformer.h.{i}"
    n.put("encoder/embed/token", "transformer.w.weight")
    parts = [f"{layer}.multi_head_attention.{x}" for x in ("Wq", "Wk", "Wv", "dense")]
    n.attention(f"{block}/attention", parts, layers=2)
    n.dense(f"{block}/ffn/up", f"{layer}.ffn.0", layers=2)
    n.dense(f"{block}/ffn/down", f"{layer}.ffn.2", layers=2)
    n.norm(f"{block}/attention_norm", f"{layer}.layernorm1", layers=2)
    n.norm(f"{block}/ffn_norm", f"{layer}.layernorm2", layers=2)
    n.norm("encoder/stack/final_norm", "transformer.layernorm")
    n.put("heads_lm/bias", "lm_head.bias")


def _xlnet_names(family, n):
    block, layer = "encoder/stack/block/block", "transformer.layer.{i}"
    n.put("encoder/embed/token", "transformer.word_embedding.weight")
    n.put("encoder/query", "transformer.mask_emb", lambda x: x.reshape(-1))
    attention, relative = f"{layer}.rel_attn", f"{block}/attention/relative"
    for ours_, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("relative/position", "r")):
        n.put(f"{block}/attention/{ours_}/kernel", f"{attention}.{theirs}", layers=2)
    n.put(f"{block}/attention/out/kernel", f"{attention}.o", lambda x: x.transpose(1, 2, 0), 2)
    for ours_, theirs in (("u", "r_w_bias"), ("v", "r_r_bias"), ("type_bias", "r_s_bias"), ("type", "seg_embed")):
        n.put(f"{relative}/{ours_}", f"{attention}.{theirs}", layers=2)
    n.norm(f"{block}/attention_norm", f"{attention}.layer_norm", layers=2)
    n.dense(f"{block}/ffn/up", f"{layer}.ff.layer_1", layers=2)
    n.dense(f"{block}/ffn/down", f"{layer}.ff.layer_2", layers=2)
    n.norm(f"{block}/ffn_norm", f"{layer}.ff.layer_norm", layers=2)
    n.put("heads_lm/bias", "lm_loss.bias")


def _tables(n, root, norm=True):
    """Embeddings of BERT and its kin."""
    for ours_, theirs in (("token", "word"), ("position/table", "position"), ("type", "token_type")):
        n.put(f"encoder/embed/{ours_}", f"{root}.embeddings.{theirs}_embeddings.weight")
    if norm:
        n.norm("encoder/embed/norm", f"{root}.embeddings.LayerNorm")


def _albert_names(family, n):
    layers = 2 if family == "albert_groups" else 0
    _tables(n, "albert")
    n.dense("encoder/embed/project", "albert.encoder.embedding_hidden_mapping_in")
    block, layer = "encoder/stack/block", "albert.encoder.albert_layer_groups.{i}.albert_layers.0"
    n.attention(f"{block}/attention", [f"{layer}.attention.{x}" for x in ("query", "key", "value", "dense")], layers=layers)
    n.norm(f"{block}/attention_norm", f"{layer}.attention.LayerNorm", layers=layers)
    n.dense(f"{block}/ffn/up", f"{layer}.ffn", layers=layers)
    n.dense(f"{block}/ffn/down", f"{layer}.ffn_output", layers=layers)
    n.norm(f"{block}/ffn_norm", f"{layer}.full_layer_layer_norm", layers=layers)
    n.dense("heads_mlm/dense", "predictions.dense")
    n.norm("heads_mlm/norm", "predictions.LayerNorm")
    n.put("heads_mlm/bias", "predictions.bias")
    n.dense("heads_pool/dense", "albert.pooler")
    n.dense("heads_sop/dense", "sop_classifier.classifier")


def _bert_names(family, n):
    """BERT's layers: UniLM, ELECTRA's two towers, and Megatron's with norms at other places."""
    root, pre = "electra" if family.startswith("electra") else "bert", family == "megatron_bert"
    _tables(n, root, norm=not pre)
    block, layer = "encoder/stack/block", f"{root}.encoder.layer.{{i}}"
    parts = [f"{layer}.attention.{x}" for x in ("self.query", "self.key", "self.value", "output.dense")]
    n.attention(f"{block}/attention", parts, layers=2)
    n.norm(f"{block}/attention_norm", f"{layer}.attention.{'ln' if pre else 'output.LayerNorm'}", layers=2)
    n.dense(f"{block}/ffn/up", f"{layer}.intermediate.dense", layers=2)
    n.dense(f"{block}/ffn/down", f"{layer}.output.dense", layers=2)
    n.norm(f"{block}/ffn_norm", f"{layer}.{'ln' if pre else 'output.LayerNorm'}", layers=2)
    if pre:
        n.norm("encoder/stack/final_norm", "bert.encoder.ln")
    if root == "bert":
        n.dense("heads_mlm/dense", "cls.predictions.transform.dense")
        n.norm("heads_mlm/norm", "cls.predictions.transform.LayerNorm")
        n.put("heads_mlm/bias", "cls.predictions.bias")
        n.dense("heads_pool/dense", "bert.pooler.dense")
        n.dense("heads_sop/dense" if pre else "heads_nsp/dense", "cls.seq_relationship")
    elif family == "electra":
        n.dense("heads_rtd/dense", "discriminator_predictions.dense")
        n.dense("heads_rtd/score", "discriminator_predictions.dense_prediction")
    else:
        n.dense("encoder/embed/project", "electra.embeddings_project")
        n.dense("heads_mlm/dense", "generator_predictions.dense")
        n.norm("heads_mlm/norm", "generator_predictions.LayerNorm")
        n.put("heads_mlm/bias", "generator_lm_head.bias")
