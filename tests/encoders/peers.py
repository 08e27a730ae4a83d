"""Families in the `transformers` library with random weights, our small value of each, and those weights in our tree."""

import math

import numpy as np
import torch
import transformers

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.seq2seq import EncoderDecoder
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.encoders.xl import TransformerXL
from ptm_jax.nn.attention import Attention, CrossAttention
from ptm_jax.nn.blocks import Block, FeedForward, Recurrence, Stack
from ptm_jax.nn.embeddings import Embeddings, LearnedPositions, Sinusoids
from ptm_jax.nn.heads import LMHead, MLMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Dense, Identity, LayerNorm, RMSNorm
from ptm_jax.nn.relative import Buckets, ShiftedScores

VOCAB = Vocab(size=61, pad=0)
WIDTH, HEADS, HIDDEN, LIMIT, NARROW = 24, 3, 40, 20, 10
FAMILIES = ("t5", "t5v11", "xlnet", "bart", "pegasus", "albert", "albert_groups", "ctrl")
LAYERS = {"albert": 4, "albert_groups": 4}


def oracle(family, seed=0):
    """A small random model of `transformers`, eager attention, no dropout."""
    torch.manual_seed(seed)
    pair = dict(
        vocab_size=61, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=HIDDEN, decoder_ffn_dim=HIDDEN, max_position_embeddings=LIMIT,
        pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    t5 = dict(
        vocab_size=61, d_model=WIDTH, d_kv=6, d_ff=HIDDEN, num_layers=2, num_heads=HEADS, relative_attention_num_buckets=8,
        relative_attention_max_distance=12, pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    albert = dict(
        vocab_size=61, embedding_size=NARROW, hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=HEADS,
        intermediate_size=HIDDEN, max_position_embeddings=LIMIT, attn_implementation="eager",
    )  # fmt: skip
    t = transformers
    model = {
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(feed_forward_proj="relu", **t5)),
        "t5v11": lambda: _untied(t.T5ForConditionalGeneration(t.T5Config(**t5, feed_forward_proj="gated-gelu"))),
        "xlnet": lambda: t.XLNetLMHeadModel(
            t.XLNetConfig(vocab_size=61, d_model=WIDTH, n_layer=2, n_head=HEADS, d_inner=HIDDEN)
        ),
        "bart": lambda: t.BartForConditionalGeneration(t.BartConfig(**pair)),
        "pegasus": lambda: t.PegasusForConditionalGeneration(t.PegasusConfig(scale_embedding=True, **pair)),
        "albert": lambda: t.AlbertForMaskedLM(t.AlbertConfig(**albert)),
        "albert_groups": lambda: t.AlbertForMaskedLM(t.AlbertConfig(num_hidden_groups=2, **albert)),
        "ctrl": lambda: t.CTRLLMHeadModel(
            t.CTRLConfig(
                vocab_size=61,
                n_positions=LIMIT,
                n_embd=WIDTH,
                dff=HIDDEN,
                n_layer=2,
                n_head=HEADS,
                attn_implementation="eager",
            )
        ),
    }[family]()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if family == "pegasus" and "embed_positions" in name:
                continue  # sinusoids
            norm = "norm" in name.lower() and name.endswith("weight")
            p.copy_(torch.randn_like(p) * 0.2 + float(norm))
    return model.eval()


def _untied(model):
    """T5 1.1's own table for the output; the configuration of 5.x would untie the decoder's input as well."""
    model.config.scale_decoder_outputs = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def ours(family):
    """The same network as our value."""
    if family in ("t5", "t5v11"):
        return _t5(gated=family == "t5v11")
    if family in ("bart", "pegasus"):
        return _pair(family)
    norm = lambda eps: {"attention_norm": LayerNorm(eps), "ffn_norm": LayerNorm(eps)}
    heads = {"heads": HEADS, "width": WIDTH}
    if family == "xlnet":
        attention = Attention(bias=False, relative=ShiftedScores(segments=True), **heads)
        stack = Stack(block=Recurrence(Block(attention=attention, ffn=FeedForward(HIDDEN), **norm(1e-12))), layers=2)
        embed = Embeddings(vocab=VOCAB, width=WIDTH)
        encoder = TransformerXL(embed=embed, stack=stack, memory=4, direction="bidirectional", query=Normal())
        return Model(encoder=encoder, heads={"lm": LMHead(bias=True)})
    if family == "ctrl":
        block = Block(attention=Attention(**heads), ffn=FeedForward(HIDDEN, "relu"), norm="pre", **norm(1e-6))
        embed = Embeddings(vocab=VOCAB, width=WIDTH, scale=math.sqrt(WIDTH), position=Sinusoids())
        stack = Stack(block=block, layers=2, final_norm=LayerNorm(1e-6))
        return Model(encoder=Transformer(embed=embed, stack=stack, direction="causal"), heads={"lm": LMHead(bias=True)})
    block = Block(attention=Attention(**heads), ffn=FeedForward(HIDDEN, "gelu_tanh"), **norm(1e-12))
    embed = Embeddings(
        vocab=VOCAB, width=NARROW, types=2, position=LearnedPositions(LIMIT), norm=LayerNorm(1e-12), project=Dense(WIDTH)
    )
    stack = Stack(block=block, layers=4, share=True, groups=2 if family == "albert_groups" else 1)
    return Model(encoder=Transformer(embed=embed, stack=stack), heads={"lm": MLMHead(vocab=VOCAB, activation="gelu_tanh")})


def _t5(gated):
    def half(decoder):
        attention = Attention(heads=HEADS, width=WIDTH, head_width=6, bias=False, scale=1.0)
        cross = {"cross": CrossAttention(attention, norm="pre", attention_norm=RMSNorm())} if decoder else {}
        ffn = FeedForward(HIDDEN, "gelu_tanh" if gated else "relu", gated=gated, bias=False)
        block = Block(attention=attention, ffn=ffn, norm="pre", attention_norm=RMSNorm(), ffn_norm=RMSNorm(), **cross)
        return Transformer(
            embed=Embeddings(vocab=VOCAB, width=WIDTH, given=decoder),
            stack=Stack(block=block, layers=2, final_norm=RMSNorm()),
            direction="causal" if decoder else "bidirectional",
            relative=Buckets(HEADS, 8, 12, both_ways=not decoder),
        )

    head = LMHead(vocab=VOCAB, tied=False) if gated else LMHead(scale=WIDTH**-0.5)
    return Model(encoder=EncoderDecoder(half(False), half(True)), heads={"lm": head})


def _pair(family):
    pegasus = family == "pegasus"
    norm, eps = "pre" if pegasus else "post", LayerNorm(1e-5)

    def half(decoder):
        attention = Attention(heads=HEADS, width=WIDTH)
        cross = {"cross": CrossAttention(attention, norm=norm, attention_norm=eps)} if decoder else {}
        block = Block(attention=attention, ffn=FeedForward(HIDDEN), norm=norm, attention_norm=eps, ffn_norm=eps, **cross)
        embed = Embeddings(
            vocab=VOCAB,
            width=WIDTH,
            given=decoder,
            position=Sinusoids() if pegasus else LearnedPositions(LIMIT + 2, offset=2),
            norm=Identity() if pegasus else eps,
            scale=math.sqrt(WIDTH) if pegasus else 1.0,
        )
        stack = Stack(block=block, layers=2, final_norm=eps if pegasus else Identity())
        return Transformer(embed=embed, stack=stack, direction="causal" if decoder else "bidirectional")

    return Model(encoder=EncoderDecoder(half(False), half(True)), heads={"lm": LMHead()})


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
        self.put(f"{path}/out/kernel", f"{names[3]}.weight", lambda w: w.T.reshape(HEADS, -1, WIDTH), layers)
        if bias:
            self.put(f"{path}/out/bias", f"{names[3]}.bias", layers=layers)


def tree(family, tensors):
    """{path: array} of our tree from {name: tensor} (parameters, or their gradients)."""
    names = Names(tensors)
    special = {"t5": _t5_names, "t5v11": _t5_names, "bart": _pair_names, "pegasus": _pair_names}
    special.get(family, _other_names)(family, names)
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


def _other_names(family, n):
    if family == "xlnet":
        _xlnet_names(n)
    elif family == "ctrl":
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
    else:
        _albert_names(n, 2 if family == "albert_groups" else 0)


def _xlnet_names(n):
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


def _albert_names(n, layers):
    for ours_, theirs in (("token", "word"), ("position/table", "position"), ("type", "token_type")):
        n.put(f"encoder/embed/{ours_}", f"albert.embeddings.{theirs}_embeddings.weight")
    n.norm("encoder/embed/norm", "albert.embeddings.LayerNorm")
    n.dense("encoder/embed/project", "albert.encoder.embedding_hidden_mapping_in")
    block, layer = "encoder/stack/block", "albert.encoder.albert_layer_groups.{i}.albert_layers.0"
    n.attention(f"{block}/attention", [f"{layer}.attention.{x}" for x in ("query", "key", "value", "dense")], layers=layers)
    n.norm(f"{block}/attention_norm", f"{layer}.attention.LayerNorm", layers=layers)
    n.dense(f"{block}/ffn/up", f"{layer}.ffn", layers=layers)
    n.dense(f"{block}/ffn/down", f"{layer}.ffn_output", layers=layers)
    n.norm(f"{block}/ffn_norm", f"{layer}.full_layer_layer_norm", layers=layers)
    n.dense("heads_lm/dense", "predictions.dense")
    n.norm("heads_lm/norm", "predictions.LayerNorm")
    n.put("heads_lm/bias", "predictions.bias")
