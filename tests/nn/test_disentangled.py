"""Disentangled attention and the enhanced mask decoder in numpy, by loops; rows are independent of
other documents."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import slots, spec, towers
from ptm_jax.core.types import Vocab
from ptm_jax.nn.attention.disentangled import Distances, FirstConvolution, log_bucket
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.transformers import deberta

L, K, HEADS, LAYERS = 11, 4, 2, 2
DISTANCES = Distances(farthest=9, buckets=4)


def core_of(conv=False, **fields):
    attend = deberta.attention(
        width=K * HEADS, heads=HEADS, distances=DISTANCES, initializer=Normal(0.7), **fields
    )
    layer = FirstConvolution(initializer=Normal(0.7)) if conv else deberta.Identity()
    core = deberta.encoder(
        attend, vocab=Vocab(size=30), layers=LAYERS, hidden=12, limit=16, dropout=0.0, conv=layer
    )
    return deberta.decoding(core)


def encoded(core, *batches, impl="auto"):
    """(parameters of the encoder, its results)."""
    core = spec.with_field(core, "impl", impl, lambda part: isinstance(part, slots.Kernel))
    models = {"main": deberta.Model(encoder=core, heads={})}
    params = jax.jit(functools.partial(towers.init, models))(jax.random.key(0), batches[0])
    run = jax.jit(lambda params, batch: towers.bind(models, params)["main"](batch))
    return params["main"]["encoder"], [run(params, batch) for batch in batches]


def normed(x, p, eps=1e-7):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * p["scale"] + p["bias"]


def bucket(distance):
    """The bucket of i - j, of 4 on a side: -2 .. 2 alone, then two logarithmic ones."""
    far = abs(distance)
    if far <= 2:
        return distance
    return int(np.sign(distance)) * (2 + int(np.ceil(np.log(far / 2) / np.log(8 / 2))))


def layer(queries, states, p, vectors):
    """One block with queries of their own, by loops over heads and tokens."""
    attend, heads = p["attention"], []

    def project(x, name):
        return np.einsum("ld,dhk->lhk", x, attend[name]["kernel"]) + attend[name]["bias"]

    q, k, v = project(queries, "query"), project(states, "key"), project(states, "value")
    far_q, far_k = project(vectors, "query"), project(vectors, "key")
    for h in range(HEADS):
        scores = np.zeros((len(q), len(k)))
        for i, j in np.ndindex(scores.shape):
            number = min(max(bucket(i - j) + 4, 0), 7)
            terms = q[i, h] @ k[j, h], q[i, h] @ far_k[number, h], k[j, h] @ far_q[number, h]
            scores[i, j] = sum(terms) / np.sqrt(3 * K)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        heads.append(weights / weights.sum(1, keepdims=True) @ v[:, h])
    out = np.einsum("hlk,hkd->ld", np.array(heads), attend["out"]["kernel"])
    x = normed(queries + out + attend["out"]["bias"], p["attention_norm"])
    hidden = x @ p["ffn"]["up"]["kernel"] + p["ffn"]["up"]["bias"]
    hidden = np.asarray(jax.nn.gelu(hidden, approximate=False))
    return normed(x + hidden @ p["ffn"]["down"]["kernel"] + p["ffn"]["down"]["bias"], p["ffn_norm"])


def test_the_mask_decoder_equals_loops():
    """The last layer twice on H_{N-1} + positions, with keys and values of H_{N-1}."""
    ids = np.random.default_rng(0).integers(1, 30, (1, L)).astype(np.int32)
    params, (ours,) = encoded(core_of(), {"input_ids": jnp.asarray(ids)})
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    blocks = [jax.tree.map(lambda leaf, i=i: leaf[i], p["stack"]["block"]) for i in range(LAYERS)]
    vectors = normed(p["stack"]["vectors"]["table"], p["stack"]["vectors"]["norm"])
    states = [normed(p["embed"]["token"][ids[0]], p["embed"]["norm"])]
    for block in blocks:
        states.append(layer(states[-1], states[-1], block, vectors))
    queries = states[-2] + p["places"]["table"][:L]
    for _ in range(2):
        queries = layer(queries, states[-2], blocks[-1], vectors)
    np.testing.assert_allclose(ours.hidden[0], states[-1], atol=2e-4)
    np.testing.assert_allclose(ours.extra["words"][0], queries, atol=2e-4)


@pytest.mark.full
def test_other_documents_are_unseen():
    """Two documents in a row have the states that each has alone, by blocks and the definition."""
    core, ids = core_of(conv=True), np.random.default_rng(1).integers(1, 30, (1, 2 * L))
    segments, places = np.repeat([[1, 2]], L, 1), np.tile(np.arange(L), (1, 2))
    batch = {"input_ids": ids, "segment_ids": segments, "positions": places}
    batch = {name: value.astype(np.int32) for name, value in batch.items()}
    _, (both,) = encoded(core, batch, impl="xla")
    parts = slice(0, L), slice(L, 2 * L)
    alone = [{name: value[:, part] for name, value in batch.items()} for part in parts]
    _, results = encoded(core, *alone, impl="reference")
    for part, one in zip(parts, results, strict=True):
        for x, y in ((both.hidden, one.hidden), (both.extra["words"], one.extra["words"])):
            np.testing.assert_allclose(x[:, part], y, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "words"), [({"farthest": 0}, "at least 1"), ({"buckets": 3}, "from 4")]
)
def test_distances_that_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(DISTANCES, **fields)


def test_one_name_turns_all_dropout_off():
    """The dropout of distances is a field `dropout` too, as miniatures and exports expect."""
    attend = systems.get("deberta_v3_base").towers["main"].encoder.stack.block.attention
    assert attend.noise.dropout == 0.1
    assert spec.with_field(attend, "dropout", 0.0).noise.dropout == 0.0


@pytest.mark.parametrize("farthest, buckets", [(512, 256), (6, 7), (9, 5), (40, 17), (24, 12)])
def test_far_distances_have_the_number_at_the_reach(farthest, buckets):
    """The released code clips the bucket of every pair; an odd number reaches beyond `farthest`."""
    distances = Distances(farthest=farthest, buckets=buckets)
    ahead = np.arange(-3000, 3001)
    wanted = np.clip(log_bucket(-ahead, buckets, farthest) + buckets, 0, 2 * buckets - 1)
    reach = distances.reach
    np.testing.assert_array_equal(distances.lines()[np.clip(ahead, -reach, reach) + reach], wanted)
