"""Encoder and decoder: who sees whom across the two, packed rows, a row without a decoder's
input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.paths import flatten
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.seq2seq import shifted
from ptm_jax.nn.embeddings.summed import Sinusoids, SinusoidTable
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.sequence_to_sequence.bart import seq2seq
from support.bare_layers import sees
from support.tiny_decoders import drawn, pair

V, LS, LT = 40, 5, 4


def batch_of(seed=0):
    draw = np.random.default_rng(seed).integers
    return {
        name: jnp.asarray(draw(0, V, (1, n)))
        for name, n in (("input_ids", LS), ("decoder_input_ids", LT))
    }


def built(kind):
    """(module, program, parameters) of a T5 or of a pair with post-norm and sinusoids."""
    if kind == "t5":
        tower = pair(V, layers=2)
    else:
        both = seq2seq(
            vocab=Vocab(size=V),
            layers=2,
            width=8,
            heads=2,
            positions=Sinusoids(),
            initializer=Normal(),
        )
        tower = drawn(Model(encoder=both, heads={}), 0, 0.4, batch_of())
    module = tower.module.clone(encoder=tower.module.encoder.clone(start=None))
    return module, jax.jit(lambda params, batch: Tower(module, params)(batch)), tower.params


@pytest.fixture(scope="module")
def net():
    return built("t5")


def flow(net, batch, pick):
    """[T, S + T] booleans: which of the source's and the decoder's tokens an output depends on."""
    _, run, params = net
    slots = jnp.arange(LS + LT)[None]
    batch = {**batch, "input_ids": slots[:, :LS], "decoder_input_ids": slots[:, LS:]}
    return sees(lambda params: pick(run(params, batch))[0], params, "encoder/encoder/embed/token")[
        :, : LS + LT
    ]


@pytest.mark.full
def test_packed_pairs_see_their_own_source_and_their_own_past(net):
    source, target = np.array([1, 1, 2, 2, 0]), np.array([1, 1, 2, 0])
    fields = {"segment_ids": source, "decoder_segment_ids": target}
    batch = batch_of() | {
        name: jnp.asarray(value, jnp.int32)[None] for name, value in fields.items()
    }
    seen = flow(net, batch, lambda out: out.hidden)[:3]
    own = (target[:3, None] == target[None]) & np.tri(LT, dtype=bool)[:3]
    np.testing.assert_array_equal(seen, np.concatenate([target[:3, None] == source[None], own], 1))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "post"])
def test_a_packed_pair_equals_the_pair_alone(net, kind):
    _, run, params = net if kind == "t5" else built(kind)
    parts = [batch_of(seed) for seed in (1, 2)]
    joined = {name: jnp.concatenate([part[name] for part in parts], 1) for name in parts[0]}
    for prefix, length in (("", LS), ("decoder_", LT)):
        joined[f"{prefix}segment_ids"] = jnp.repeat(jnp.asarray([[1, 2]]), length, 1)
        joined[f"{prefix}positions"] = jnp.tile(jnp.arange(length), 2)[None]
    whole = run(params, joined).hidden
    for place, part in enumerate(parts):
        np.testing.assert_allclose(
            whole[:, place * LT : (place + 1) * LT], run(params, part).hidden, atol=2e-5
        )


@pytest.mark.full
def test_a_row_without_decoder_input_is_decoded_itself_and_a_start_shifts_it(net):
    module, run, params = net
    row = {"input_ids": batch_of()["input_ids"]}

    def of(ids):
        return run(params, {**row, "decoder_input_ids": ids}).hidden

    np.testing.assert_array_equal(run(params, row).hidden, of(row["input_ids"]))
    starts = module.clone(encoder=module.encoder.clone(start=1))
    hidden = jax.jit(lambda params: Tower(starts, params)(row).hidden)(params)
    np.testing.assert_allclose(
        hidden, of(shifted(row["input_ids"], jnp.ones((1, LS), int), 1)), atol=1e-5
    )


def test_a_row_of_its_own_is_shifted_inside_its_documents():
    ids = jnp.asarray([[5, 6, 7, 8, 9, 0], [0, 0, 5, 6, 7, 8]])
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0], [0, 0, 1, 1, 1, 1]])
    np.testing.assert_array_equal(
        shifted(ids, segments, 3), [[3, 5, 6, 3, 8, 3], [3, 0, 3, 5, 6, 7]]
    )
    np.testing.assert_array_equal(
        shifted(ids, segments, "last"), [[7, 5, 6, 9, 8, 0], [0, 0, 8, 5, 6, 7]]
    )


def test_the_table_is_one_unless_the_decoder_has_its_own(net):
    module, _, params = net

    def tables(params):
        return [path for path in sorted(flatten(params)) if path.endswith("embed/token")]

    assert (
        tables(params) == ["encoder/encoder/embed/token"] and module.encoder.direction == "decoder"
    )
    decoder = module.encoder.decoder.clone(embed=module.encoder.decoder.embed.clone(given=False))
    own = drawn(module.clone(encoder=module.encoder.clone(decoder=decoder)), 0, 0.4, batch_of())
    assert tables(own.params) == ["encoder/decoder/embed/token", "encoder/encoder/embed/token"]


@pytest.mark.full
def test_a_causal_source_is_a_prefix(net):
    """An `order` in the batch orders the source, not the decoder."""
    batch = batch_of() | {"order": jnp.arange(LS)[None]}
    source = flow(net, batch, lambda out: out.extra["source"])
    np.testing.assert_array_equal(source, np.tri(LS, LS + LT, dtype=bool))
    assert flow(net, batch, lambda out: out.hidden)[:, :LS].all()


def test_fixed_waves_are_computed_once_and_exactly():
    places = np.arange(0, 2000, 37)
    found = SinusoidTable(2000)(jnp.asarray(places), 6)
    angles = places[:, None] / 10000.0 ** (np.array([0, 2, 4]) / 6)
    np.testing.assert_array_equal(
        found, np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    )
    np.testing.assert_allclose(found, Sinusoids()(jnp.asarray(places), 6), atol=1e-3)


def test_a_fixed_bias_of_words_is_added_and_not_trained():
    head, hidden = LMHead(bias="fixed"), jnp.ones((1, 2, 8))
    table, bias = jnp.ones((3, 8)), jnp.arange(3.0)

    def score(bias):
        return head.apply({"params": {"bias": bias}}, hidden, table=table).logits()

    np.testing.assert_allclose(score(bias)[0, 0], 8 + np.arange(3), rtol=1e-6)
    np.testing.assert_array_equal(jax.grad(lambda bias: score(bias).sum())(bias), np.zeros(3))
