"""ZEN's encoder against a definition in numpy, row by row, as released and as published."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import spec
from ptm_jax.encoders.knowledge.ngram_transformer import NGramTransformer, SummedBlock
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.knowledge.from_text.ngram_lexicon import NGramLexicon
from ptm_jax.knowledge.mentions import trie
from ptm_jax.nn.embeddings.summed import LearnedPositions
from support.corrupting import VOCAB
from support.numpy_layers import block, norm

PLAIN, BESIDE = (
    transformer(
        vocab=VOCAB, layers=layers, width=8, heads=2, hidden=10, positions=LearnedPositions(9),
        types=2, dropout=0.0,
    )
    for layers in (3, 2)
)  # fmt: skip
GRAMS = {(7, 8): 1, (8, 9, 10): 2, (9, 10): 3, (20, 21): 4}
TABLE = trie({gram: (number,) for gram, number in GRAMS.items()}, np.ones(VOCAB.size, bool))
ENCODER = NGramTransformer(
    embed=PLAIN.embed,
    stack=PLAIN.stack.clone(block=SummedBlock(**spec.values_of(PLAIN.stack.block))),
    ngram_stack=BESIDE.stack,
    lexicon=dataclasses.replace(NGramLexicon(size=6), _arrays={"values": TABLE}),
    dropout=0.0,
    capacity=4,
)
BATCH = {
    "input_ids": np.array([[2, 7, 8, 9, 10, 8, 9, 10], [2, 20, 21, 3, 20, 21, 0, 0]], np.int32),
    "segment_ids": np.array([[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 2, 2, 0, 0]], np.int32),
    "positions": np.array([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 1, 0, 0]], np.int32),
    "token_type_ids": np.array([[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]], np.int32),
}


@functools.cache
def parameters():
    shapes = jax.eval_shape(lambda: ENCODER.init(jax.random.key(0), BATCH))["params"]
    leaves, tree = jax.tree.flatten(shapes)
    draw = np.random.default_rng(0)
    return tree.unflatten(
        [jnp.asarray(draw.normal(0, 0.5, leaf.shape), jnp.float32) for leaf in leaves]
    )


def matches(ids, segments):
    """(number, start, size) of all n-grams of a row inside one document, from the left."""
    return [
        (GRAMS[tuple(ids[at : at + n])], at, n)
        for at in range(len(ids))
        for n in (2, 3)
        if tuple(ids[at : at + n]) in GRAMS and len({*segments[at : at + n]}) == 1
    ]


def states(above, limit=4):
    """The last states [B, L, D], in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters())
    rows = []
    for ids, segments, positions, types in zip(*BATCH.values(), strict=True):
        embed = p["embed"]
        x = embed["token"][ids] + embed["position"]["table"][positions] + embed["type"][types]
        x = norm(x, embed["norm"])
        found = matches(ids.tolist(), segments)[:limit]
        number, start, size = np.array(found).T
        grams = norm(p["ngrams"][number] + p["ngram_type"][types[start]], p["norm"])
        covers = np.array([[s <= t < s + n for _, s, n in found] for t in range(len(ids))], float)
        owner = segments[start]
        for layer in range(3):
            own = jax.tree.map(lambda leaf, i=layer: leaf[i], p["stack"]["block"])
            x = block(x, np.maximum(segments, 1)[:, None] == segments, own)
            if layer < 2:
                own = jax.tree.map(lambda leaf, i=layer: leaf[i], p["ngram_stack"]["block"])
                grams = block(grams, owner[:, None] == owner, own)
            if layer < 2 or above == "last":
                x = x + covers @ grams
        rows.append(x)
    return np.array(rows)


@pytest.mark.parametrize("above", ["last", pytest.param("none", marks=pytest.mark.full)])
def test_states_of_ngrams_are_added_to_their_tokens(above):
    encoder = ENCODER.clone(above=above)
    encoded = jax.jit(encoder.apply)({"params": parameters()}, BATCH)
    real = BATCH["segment_ids"] > 0
    assert np.allclose(np.asarray(encoded.hidden)[real], states(above)[real], atol=1e-5)
    assert np.array_equal(encoded.extra["ngrams"], [[1, 2, 3, 2], [4, 4, 0, 0]])
    assert np.array_equal(encoded.extra["ngram_starts"][0], [1, 2, 3, 5])


@pytest.mark.full
def test_the_cut_is_random_in_training_and_a_row_may_have_none():
    encoder = ENCODER.clone(capacity=2)
    apply = jax.jit(functools.partial(encoder.apply, train=True))
    draws = {
        tuple(
            apply({"params": parameters()}, BATCH, rngs={"dropout": jax.random.key(seed)})
            .extra["ngrams"][0]
            .tolist()
        )
        for seed in range(30)
    }
    assert {one for pair in draws for one in pair} == {1, 2, 3} and len(draws) > 3
    alone = {**BATCH, "input_ids": np.where(BATCH["input_ids"] > 3, 30, BATCH["input_ids"])}

    def loss(params):
        return jnp.square(encoder.apply({"params": params}, alone).hidden).sum()

    value, slopes = jax.jit(jax.value_and_grad(loss))(parameters())
    assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    assert not np.any(slopes["ngrams"]) and np.any(slopes["embed"]["token"])
