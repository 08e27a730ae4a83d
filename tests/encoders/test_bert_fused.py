"""BERT-fused translation: outputs and gradients of its definition in torch, drop-net, decoding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt.modules.bert_in_layers import BertFused
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import adapted
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Visibility, Vocab
from ptm_jax.encoders.model import Model, distinct
from ptm_jax.encoders.transformer.bert_fused import fused
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.inference.decoding.decode import decode
from ptm_jax.inference.decoding.settings import Generation
from ptm_jax.nn.attention.fused_attention import FusedAttention
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.systems import get
from ptm_jax.systems.sequence_to_sequence.bart import hiding, seq2seq

WORDS, PIECES = Vocab(size=20, pad=1, eos=2, bos=0), Vocab(size=30, pad=0)
DRAW = Normal(0.4)


def pair():
    places = LearnedPositions(12, initializer=DRAW)
    return seq2seq(
        vocab=WORDS, layers=2, width=8, heads=2, positions=places, dropout=0.0,
        attention_dropout=0.0, initializer=DRAW,
    )  # fmt: skip


def bert():
    places = LearnedPositions(12, initializer=DRAW)
    return transformer(
        vocab=PIECES, layers=1, width=6, heads=2, positions=places, dropout=0.0, initializer=DRAW
    )


def batch():
    draw = np.random.default_rng(0)
    segments = np.array([[1] * 5, [1] * 3 + [0] * 2], np.int32)
    pieces = np.array([[1] * 4 + [0] * 2, [1] * 6], np.int32)
    target = np.array([[1] * 4, [1] * 3 + [0]], np.int32)
    return {
        "input_ids": draw.integers(3, 20, (2, 5)).astype(np.int32) * segments,
        "segment_ids": segments,
        "bert_input_ids": draw.integers(1, 30, (2, 6)).astype(np.int32) * pieces,
        "bert_segment_ids": pieces,
        "decoder_input_ids": draw.integers(3, 20, (2, 4)).astype(np.int32) * target,
        "decoder_segment_ids": target,
    }


def made(module, seed=1):
    """Returns parameters of a module with every number drawn anew, in float32."""
    shapes = jax.eval_shape(lambda key: module.init(key, batch()), jax.random.key(0))["params"]
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: draw.normal(0, 0.4, leaf.shape).astype(np.float32), shapes)


class Definition:
    """Zhu et al. 2020, Eqs. 5 to 7, in torch, with the norms after the sums."""

    def __init__(self, torch, weights):
        self.torch, self.weights = torch, weights

    def attention(self, p, x, source, seen):
        def heads(name, inputs):
            return self.torch.einsum("bld,dhk->blhk", inputs, p[name]["kernel"]) + p[name]["bias"]

        q, k, v = heads("query", x), heads("key", source), heads("value", source)
        scores = self.torch.einsum("bqhk,bmhk->bhqm", q, k) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen[:, None], -1e30).softmax(-1)
        mixed = self.torch.einsum("bhqm,bmhk->bqhk", weights, v)
        return self.torch.einsum("bqhk,hkd->bqd", mixed, p["out"]["kernel"]) + p["out"]["bias"]

    def norm(self, p, x):
        p = p.get("norm", p)
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], p["scale"], p["bias"], 1e-5)

    def fused(self, p, x, source, seen, *, beside, besides):
        first, second = self.weights
        return first * self.attention(p, x, source, seen) + second * self.attention(
            p["other"], x, beside, besides
        )

    def ffn(self, p, x):
        x = x @ p["up"]["kernel"] + p["up"]["bias"]
        return self.torch.nn.functional.gelu(x) @ p["down"]["kernel"] + p["down"]["bias"]

    def embedded(self, p, table, ids):
        places = p["position"]["table"][: ids.shape[1]]
        return self.norm(p["norm"], table[ids] + places)

    def __call__(self, p, fields, states):
        encoder, decoder = p["encoder"], p["decoder"]
        source = fields["segment_ids"] > 0
        pieces, count = fields["bert_segment_ids"] > 0, fields["decoder_input_ids"].shape[1]
        beside = {"beside": states}
        table = encoder["embed"]["token"]
        x = self.embedded(encoder["embed"], table, fields["input_ids"])
        for layer in range(2):
            block = at(encoder["stack"]["block"], layer)
            seen = source[:, None].expand(-1, x.shape[1], -1)
            besides = pieces[:, None].expand(-1, x.shape[1], -1)
            branch = self.fused(block["attention"], x, x, seen, **beside, besides=besides)
            x = self.norm(block["attention_norm"], x + branch)
            x = self.norm(block["ffn_norm"], x + self.ffn(block["ffn"], x))
        y = self.embedded(decoder["embed"], table, fields["decoder_input_ids"])
        past = self.torch.ones(count, count).tril().bool()
        seen = past[None] & (fields["decoder_segment_ids"] > 0)[:, None]
        across = source[:, None].expand(-1, count, -1)
        besides = pieces[:, None].expand(-1, count, -1)
        for layer in range(2):
            block = at(decoder["stack"]["block"], layer)
            y = self.norm(
                block["attention_norm"], y + self.attention(block["attention"], y, y, seen)
            )
            cross = block["cross"]
            branch = self.fused(cross["attention"], y, x, across, **beside, besides=besides)
            y = self.norm(cross["attention_norm"], y + branch)
            y = self.norm(block["ffn_norm"], y + self.ffn(block["ffn"], y))
        return y


def at(tree, layer):
    return jax.tree.map(lambda leaf: leaf[layer], tree)


@pytest.mark.full
@pytest.mark.status("bert_fused", "built")
@pytest.mark.status("bert_fused", "matches")
@pytest.mark.parametrize("weights", [(0.5, 0.5), (1.0, 1.0)])
def test_outputs_and_gradients_are_those_of_the_definition(weights):
    """(1.0, 1.0): as released, without its flag."""
    torch = pytest.importorskip("torch")
    module = distinct(fused(pair(), bert(), weights=weights))
    params, fields = made(module), batch()
    real = fields["decoder_segment_ids"] > 0
    factors = np.random.default_rng(5).normal(size=(2, 4, 8)).astype(np.float32) * real[..., None]

    def loss(params):
        hidden = module.apply({"params": params}, fields).hidden
        return (hidden * factors).sum(), hidden

    (_, hidden), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    inputs = {name.removeprefix("bert_"): fields[name] for name in fields if "bert_" in name}
    states = np.asarray(bert().apply({"params": params["bert"]}, inputs).hidden)
    theirs = jax.tree.map(lambda leaf: torch.tensor(leaf, requires_grad=True), params)
    ids = {name: torch.tensor(value).long() for name, value in fields.items()}
    wanted = Definition(torch, weights)(theirs, ids, torch.tensor(states))
    assert np.allclose(hidden[real], wanted.detach().numpy()[real], atol=1e-5)
    (wanted * torch.tensor(factors)).sum().backward()
    for path, leaf in flatten(theirs).items():
        mine = flatten(gradients)[path]
        if path.startswith("bert/"):
            assert not np.any(mine)  # frozen
        else:
            assert np.allclose(mine, leaf.grad.numpy(), atol=2e-5), path


@pytest.mark.full
def test_the_parameters_of_the_translation_model_keep_their_paths():
    modules = pair(), fused(pair(), bert())
    plain, more = (flatten(made(distinct(module))) for module in modules)
    assert {path: leaf.shape for path, leaf in plain.items()}.items() <= {
        path: leaf.shape for path, leaf in more.items()
    }.items()
    beyond = set(more) - set(plain)
    assert all(path.startswith("bert/") or "/other/" in path for path in beyond)
    kernel = more["decoder/stack/block/cross/attention/other/key/kernel"]
    assert kernel.shape == (2, 6, 2, 4)  # the keys read BERT's width


def fusing(drop_net, weights=(0.5, 0.5)):
    return FusedAttention(
        heads=1, width=2, other=Attention(heads=1, width=2), weights=weights, drop_net=drop_net
    )


def drawn(layer, count, train=True):
    """Returns the outputs [count, B, L, D] of so many passes, and those of each term alone."""
    x = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    ones = jnp.ones((3, 2), jnp.int32)
    seen = Visibility(ones, ones)
    context = Context(
        visibility=seen, rows=jnp.arange(3), beside=x[::-1], beside_visibility=seen, train=train
    )
    params = layer.init(jax.random.key(0), x, context)

    def output(key, one):
        return one.apply(params, x, context, rngs={"dropout": key})[0]

    keys = jax.random.split(jax.random.key(3), count)
    alone = [fusing(0.0, weights) for weights in ((1.0, 0.0), (0.0, 1.0))]
    return jax.vmap(lambda key: output(key, layer))(keys), [output(keys[0], one) for one in alone]


def test_drop_net_draws_once_for_a_batch():
    """Section 4.2: only BERT's with p / 2, only the own with p / 2, else the mean."""
    count, rate = 4000, 0.6
    outputs, (first, second) = drawn(fusing(rate), count)
    kinds = [
        np.isclose(outputs, one, atol=1e-6).all((1, 2, 3))
        for one in (first, second, (first + second) / 2)
    ]
    assert np.all(np.sum(kinds, 0) == 1)
    for kind, share in zip(kinds, (rate / 2, rate / 2, 1 - rate), strict=True):
        assert abs(kind.mean() - share) < 3 * (share * (1 - share) / count) ** 0.5
    outputs, (first, second) = drawn(fusing(1.0), 2, train=False)
    assert np.allclose(outputs, (first + second) / 2, atol=1e-6)


@pytest.mark.full
def test_decoding_writes_what_the_whole_forward_pass_scores_highest():
    module = Model(encoder=fused(pair(), bert()), heads={"lm": LMHead()})
    fields, params = batch(), {"encoder": made(distinct(fused(pair(), bert())))}
    sources = [row[row > 0] for row in fields["input_ids"]]
    pieces = [row[row > 0] for row in fields["bert_input_ids"]]
    for beams in (1, 3):
        kind = {"strategy": "beam", "beams": 3, "length_penalty": 0.0} if beams > 1 else {}
        options = Generation(max_new_tokens=4, **kind)
        told = decode(Tower(module, params), sources, options, start=2, others={"bert": pieces})
        ids = np.concatenate([np.full((2, 1), 2), told.tokens[:, 0, :-1]], 1).astype(np.int32)
        inputs = {**fields, "decoder_input_ids": ids, "decoder_segment_ids": np.ones_like(ids)}
        tower = Tower(module, params)
        encoded = tower(inputs)
        scores = jax.nn.log_softmax(tower.head("lm", encoded.hidden).logits(), -1)
        chosen = np.take_along_axis(np.asarray(scores), told.tokens[:, 0, :, None], -1)[..., 0]
        if beams == 1:
            assert np.array_equal(scores.argmax(-1), told.tokens[:, 0])
        assert np.allclose(chosen.sum(-1), told.scores[:, 0], atol=1e-4)


def system(**others):
    parent = get("xlm_translation_mini")
    main = Model(encoder=pair(), heads={"lm": LMHead()})
    return dataclasses.replace(
        parent, towers={"main": main, **others}, objective=Seq2Seq(), adapt=(BertFused(),)
    )


def test_the_adaptation_moves_bert_into_the_network_and_freezes_it():
    work = adapted(system(bert=Model(encoder=bert(), heads={})))
    assert list(work.towers) == ["main"] and work.towers["main"].encoder.bert == bert()
    assert not BertFused().trainable("main/encoder/bert/stack/block/ffn/up/kernel", 0)
    assert BertFused().trainable("main/encoder/encoder/stack/block/attention/other/key/bias", 0)
    with pytest.raises(UserError, match="reads another model; give both, as --init main=MODEL"):
        adapted(system())
    with pytest.raises(ValueError, match="expected two weights and a probability"):
        BertFused(drop_net=1.5)
    with pytest.raises(ValueError, match="this is a FusedEncoderDecoder"):
        fused(fused(pair(), bert()), bert())
    hidden = hiding(pair())
    assert type(fused(hidden, bert()).decoder) is type(hidden.decoder)
