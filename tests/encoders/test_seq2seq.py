"""Encoder and decoder: who sees whom across the two, packed rows, a row without a decoder's input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.seq2seq import EncoderDecoder, shifted
from ptm_jax.encoders.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention, CrossAttention
from ptm_jax.nn.attention.relative import Buckets
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings, Sinusoids, SinusoidTable
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal

VOCAB, WIDTH, LS, LT = Vocab(size=40), 8, 5, 4
WIDE = Normal(0.4)


def half(decoder, norm="pre", relative=True, given=True):
    """One of the two Transformers."""
    attention = Attention(heads=2, width=WIDTH, initializer=WIDE)
    cross = {"cross": CrossAttention(attention, norm=norm)} if decoder else {}
    block = Block(attention=attention, ffn=FeedForward(hidden=12, initializer=WIDE), norm=norm, **cross)
    position = None if relative else Sinusoids()
    embed = Embeddings(vocab=VOCAB, width=WIDTH, given=decoder and given, position=position, initializer=Normal(1.0))
    return Transformer(
        embed=embed,
        stack=Stack(block=block, layers=2),
        direction="causal" if decoder else "bidirectional",
        relative=Buckets(2, 8, 16, both_ways=not decoder, initializer=WIDE) if relative else None,
    )


def model(**options):
    return Model(encoder=EncoderDecoder(half(False, **options), half(True, **options)), heads={"lm": LMHead()})


def batch_of(seed=0, rows=1):
    draw = np.random.default_rng(seed).integers
    ids = lambda length: jnp.asarray(draw(0, VOCAB.size, (rows, length)), jnp.int32)
    return {"input_ids": ids(LS), "decoder_input_ids": ids(LT)}


def built(norm):
    module = model(norm=norm, relative=norm == "pre")
    params = jax.jit(lambda: module.init(jax.random.key(0), batch_of(), method="initialise")["params"])()
    return module, jax.jit(lambda params, batch: module.apply({"params": params}, batch, method="encode")), params


@pytest.fixture(scope="module")
def net():
    return built("pre")


def flow(run, params, batch, pick):
    """[T, S + T] booleans: which of the source's and the decoder's tokens an output depends on."""
    slots = jnp.arange(LS + LT, dtype=jnp.int32)[None]
    batch = {**batch, "input_ids": slots[:, :LS], "decoder_input_ids": slots[:, LS:]}
    mix = jnp.linspace(1.0, 2.0, WIDTH)

    def outputs(token):
        inner = {**params["encoder"], "encoder": {**params["encoder"]["encoder"], "embed": {"token": token}}}
        return pick(run({**params, "encoder": inner}, batch))[0] @ mix

    table = params["encoder"]["encoder"]["embed"]["token"]
    return np.asarray((jax.jit(jax.jacrev(outputs))(table) != 0).any(-1))[:, : LS + LT]


def test_the_decoder_sees_the_source_and_its_own_past(net):
    _, run, params = net
    seen = flow(run, params, batch_of(), lambda out: out.hidden)
    np.testing.assert_array_equal(seen, np.concatenate([np.ones((LT, LS), bool), np.tri(LT, dtype=bool)], 1))
    source = flow(run, params, batch_of(), lambda out: out.extra["source"])
    np.testing.assert_array_equal(source, np.concatenate([np.ones((LS, LS), bool), np.zeros((LS, LT), bool)], 1))


def test_packed_pairs_see_their_own_source(net):
    _, run, params = net
    source, target = np.array([1, 1, 2, 2, 0]), np.array([1, 1, 2, 0])
    fields = {"segment_ids": source, "decoder_segment_ids": target}
    batch = batch_of() | {name: jnp.asarray(value, jnp.int32)[None] for name, value in fields.items()}
    seen = flow(run, params, batch, lambda out: out.hidden)[:3]
    own = (target[:3, None] == target[None]) & np.tri(LT, dtype=bool)[:3]
    np.testing.assert_array_equal(seen, np.concatenate([target[:3, None] == source[None], own], 1))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_packed_pair_equals_the_pair_alone(net, norm):
    _, run, params = net if norm == "pre" else built(norm)
    parts = [batch_of(seed) for seed in (1, 2)]
    joined = {name: jnp.concatenate([part[name] for part in parts], 1) for name in parts[0]}
    for prefix, length in (("", LS), ("decoder_", LT)):
        joined[f"{prefix}segment_ids"] = jnp.repeat(jnp.asarray([[1, 2]]), length, 1)
        joined[f"{prefix}positions"] = jnp.tile(jnp.arange(length), 2)[None]
    whole = run(params, joined).hidden
    for place, part in enumerate(parts):
        np.testing.assert_allclose(whole[:, place * LT : (place + 1) * LT], run(params, part).hidden, atol=2e-5)


def test_a_row_without_decoder_input_is_decoded_itself(net):
    _, run, params = net
    ids = batch_of()["input_ids"]
    np.testing.assert_array_equal(
        run(params, {"input_ids": ids}).hidden, run(params, {"input_ids": ids, "decoder_input_ids": ids}).hidden
    )


def test_the_table_is_one_and_each_half_has_its_own_rest(net):
    module, _, params = net
    assert "embed" not in params["encoder"]["decoder"]
    assert params["encoder"]["encoder"]["embed"]["token"].shape == (VOCAB.size, WIDTH)
    block = params["encoder"]["decoder"]["stack"]["block"]
    assert set(block["cross"]) == {"attention", "attention_norm"}
    kernels = [block[name]["query"]["kernel"] for name in ("attention",)] + [block["cross"]["attention"]["query"]["kernel"]]
    assert (kernels[0] != kernels[1]).any()
    assert module.encoder.direction == "decoder"
    own = dataclasses.replace(module, encoder=EncoderDecoder(half(False), half(True, given=False)))
    shapes = jax.eval_shape(lambda: own.init(jax.random.key(0), batch_of(), method="initialise"))["params"]
    assert shapes["encoder"]["decoder"]["embed"]["token"].shape == (VOCAB.size, WIDTH)


def test_a_causal_source_is_a_prefix(net):
    """An `order` in the batch orders the source, not the decoder."""
    _, run, params = net
    batch = batch_of() | {"order": jnp.arange(LS)[None]}
    source = flow(run, params, batch, lambda out: out.extra["source"])
    np.testing.assert_array_equal(source[:, :LS], np.tri(LS, dtype=bool))
    assert flow(run, params, batch, lambda out: out.hidden)[:, :LS].all()


def test_a_row_of_its_own_is_shifted_inside_its_documents():
    ids = jnp.asarray([[5, 6, 7, 8, 9, 0], [0, 0, 5, 6, 7, 8]])
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0], [0, 0, 1, 1, 1, 1]])
    np.testing.assert_array_equal(shifted(ids, segments, 3), [[3, 5, 6, 3, 8, 3], [3, 0, 3, 5, 6, 7]])
    np.testing.assert_array_equal(shifted(ids, segments, "last"), [[7, 5, 6, 9, 8, 0], [0, 0, 8, 5, 6, 7]])


def test_a_start_shifts_only_what_has_no_decoder_input(net):
    module, run, params = net
    ids = batch_of()["input_ids"]
    starts = module.clone(encoder=dataclasses.replace(module.encoder, start=1))
    hidden = jax.jit(lambda: starts.apply({"params": params}, {"input_ids": ids}, method="encode").hidden)()
    inputs = shifted(ids, jnp.ones_like(ids), 1)
    np.testing.assert_allclose(hidden, run(params, {"input_ids": ids, "decoder_input_ids": inputs}).hidden, atol=1e-5)


def test_the_maps_between_the_halves_are_returned(net):
    """Probabilities over the source's real tokens; they are what the decoder's cross-attention weighs by."""
    _, run, params = net
    segments = jnp.asarray([[1, 1, 1, 0, 0]])
    across = np.asarray(run(params, batch_of() | {"segment_ids": segments}).extra["cross_attention"])
    assert across.shape == (2, 1, 2, LT, LS) and (across[..., 3:] == 0).all()
    np.testing.assert_allclose(across.sum(-1), 1, atol=1e-6)


def test_fixed_waves_are_computed_once_and_exactly():
    places = np.arange(0, 2000, 37)
    found = SinusoidTable(2000)(jnp.asarray(places), 6)
    angles = places[:, None] / 10000.0 ** (np.array([0, 2, 4]) / 6)
    np.testing.assert_array_equal(found, np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32))
    np.testing.assert_allclose(found, Sinusoids()(jnp.asarray(places), 6), atol=1e-3)


def test_a_fixed_bias_of_words_is_added_and_not_trained():
    head, hidden = LMHead(bias="fixed"), jnp.ones((1, 2, WIDTH))
    table, bias = jnp.ones((3, WIDTH)), jnp.arange(3.0)
    score = lambda bias: head.apply({"params": {"bias": bias}}, hidden, table=table).logits()
    np.testing.assert_allclose(score(bias)[0, 0], WIDTH + np.arange(3), rtol=1e-6)
    np.testing.assert_array_equal(jax.grad(lambda bias: score(bias).sum())(bias), np.zeros(3))
