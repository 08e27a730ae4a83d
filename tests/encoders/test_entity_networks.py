"""ERNIE's encoder, its head of entities and WKLM's head of mentions against definitions in numpy,
row by row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import facts
from ptm_jax.core.towers import Tower
from ptm_jax.encoders.knowledge.entities import EntityTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.fusion import FusionBlock
from ptm_jax.nn.heads.knowledge.entities import BesideMentions, EntityScores
from ptm_jax.objectives.knowledge.entities import DEA, ERD
from support.corrupting import VOCAB
from support.numpy_layers import attention, block, dense, gelu, norm

D, W, H, HE, F = 8, 6, 2, 3, 10
LOW = transformer(
    vocab=VOCAB,
    layers=1,
    width=D,
    heads=H,
    hidden=F,
    positions=LearnedPositions(9),
    types=2,
    dropout=0.0,
)
FUSION = FusionBlock(
    attention=LOW.stack.block.attention, entity_attention=Attention(heads=HE, width=W), hidden=F
)
LEXICON = facts.stand_ins(Entities(entities=12), VOCAB)
ENCODER = EntityTransformer(
    embed=LOW.embed, stack=LOW.stack, fusion=Stack(block=FUSION, layers=2), lexicon=LEXICON, width=W
)
MODEL = Model(encoder=ENCODER, heads={"entities": EntityScores(12, W), "erd": BesideMentions()})
BATCH = {
    "input_ids": np.array([[7, 8, 9, 10, 11, 12], [20, 21, 22, 23, 0, 0]], np.int32),
    "segment_ids": np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]], np.int32),
    "entities": np.array([[0, 3, 0, 4, 0, 5], [0, 0, 0, 0, 0, 0]], np.int32),
    "entity_positions": np.array([[1, 3, 5], [2, 3, 0]], np.int32),
    "entity_labels": np.array([[3, 7, 3], [2, 9, 0]], np.int32),
    "entity_weights": np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], np.float32),
    "erd_before": np.array([[0, 3, 0], [1, 0, 0]], np.int32),
    "erd_after": np.array([[2, 5, 0], [3, 0, 0]], np.int32),
    "erd_labels": np.array([[1, 0, 0], [1, 0, 0]], np.int32),
    "erd_weights": np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], np.float32),
}


def parameters():
    shapes = jax.eval_shape(lambda: MODEL.init(jax.random.key(0), BATCH, method="initialise"))[
        "params"
    ]
    leaves, tree = jax.tree.flatten(shapes)
    draw = np.random.default_rng(0)
    return tree.unflatten(
        [jnp.asarray(draw.normal(0, 0.5, leaf.shape), jnp.float32) for leaf in leaves]
    )


PARAMS = parameters()
P = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), PARAMS)


def aggregated(words, entities, sees, meets, there, p):
    """Zhang et al. 2019, Eq. 3 to 5: where a token has no entity its hidden layer is that of the
    word alone (Eq. 5)."""
    words = norm(words + attention(words, sees, p["attention"]), p["attention_norm"])
    entities = norm(entities + attention(entities, meets, p["entity_attention"]), p["entity_norm"])
    of_words, of_entities = (
        words @ p["up"]["kernel"] + p["up"]["bias"],
        entities @ p["entity_up"]["kernel"],
    )
    hidden = np.stack(
        [
            gelu(w + p["entity_up"]["bias"] + (e if t else 0))
            for w, e, t in zip(of_words, of_entities, there, strict=True)
        ]
    )
    out = norm(words + dense(hidden, p["down"]), p["ffn_norm"])
    kept = np.where(there[:, None], entities, 0.0)
    return out, norm(kept + dense(hidden, p["entity_down"]), p["entity_ffn_norm"])


def defined(row):
    """The states of a row's words and, at mentions, of entities."""
    p, batch = P["encoder"], {name: value[row] for name, value in BATCH.items()}
    ids, segments, given = batch["input_ids"], batch["segment_ids"], batch["entities"]
    embed = p["embed"]
    words = norm(
        embed["token"][ids] + embed["position"]["table"][: len(ids)] + embed["type"][0],
        embed["norm"],
    )
    same = (segments[:, None] == segments) & (segments > 0)
    words = block(words, same, jax.tree.map(lambda leaf: leaf[0], p["stack"]["block"]))
    first = np.append(True, segments[1:] != segments[:-1]) & (segments > 0)
    there = (given > 0) | first
    entities = np.where((given > 0)[:, None], p["entities"][given], 0.0)
    for layer in range(2):
        own = jax.tree.map(lambda leaf, layer=layer: leaf[layer], p["fusion"]["block"])
        words, entities = aggregated(words, entities, same, same & there, there, own)
    return words, entities


@functools.cache
def encoded_batch():
    return jax.jit(lambda batch: Tower(MODEL, PARAMS)(batch))(BATCH)


def test_states_are_those_of_the_paper():
    encoded = encoded_batch()
    for row in range(2):
        words, entities = defined(row)
        real = BATCH["segment_ids"][row] > 0
        np.testing.assert_allclose(encoded.hidden[row][real], words[real], atol=2e-5)
        np.testing.assert_allclose(encoded.extra["entities"][row][real], entities[real], atol=2e-5)


def test_without_entities_in_the_batch_those_of_the_names_are_read():
    """The likeliest entity of every name at its first token; a token without one has the vector
    0."""
    ids = VOCAB.size // 8 + np.arange(12, dtype=np.int32).reshape(2, 6)  # the names of the stand-in
    plain = {
        **{name: value for name, value in BATCH.items() if name != "entities"},
        "input_ids": ids,
    }
    found = LEXICON.find(jnp.asarray(ids), jnp.asarray(BATCH["segment_ids"]))
    given = np.where(np.asarray(found.starts), np.asarray(found.values[..., 0]), 0)
    assert given.any() and not given.all()
    run = jax.jit(lambda batch: Tower(MODEL, PARAMS)(batch).hidden)
    np.testing.assert_array_equal(run(plain), run({**plain, "entities": given}))


def test_denoising_scores_the_entities_of_the_row():
    """Eq. 7: the softmax of linear(w) . e_k over the entities of the sequence; the head has vectors
    of its own here."""
    tower = Tower(MODEL, PARAMS)
    loss = jax.jit(lambda encoded: DEA().of(tower, encoded, BATCH))(encoded_batch())
    total, p = 0.0, P["heads_entities"]
    for row in range(2):
        words, _ = defined(row)
        used = BATCH["entity_weights"][row] > 0
        labels = BATCH["entity_labels"][row][used]
        several = sorted({*labels.tolist()})
        for place, label in zip(BATCH["entity_positions"][row][used], labels, strict=True):
            scores = p["entities"][several] @ norm(gelu(dense(words[place], p["dense"])), p["norm"])
            total += np.log(np.exp(scores).sum()) - scores[several.index(label)]
    np.testing.assert_allclose(loss.sum, total, rtol=1e-5)
    assert loss.weight == 5


def test_a_mention_is_judged_by_its_neighbours():
    """Xiong et al. 2019, section 3: one logistic unit on the states before and behind it."""
    tower = Tower(MODEL, PARAMS)
    loss, total, p = ERD().of(tower, encoded_batch(), BATCH), 0.0, P["heads_erd"]["dense"]
    for row, number in np.argwhere(BATCH["erd_weights"] > 0):
        words, _ = defined(row)
        both = [words[BATCH[f"erd_{side}"][row, number]] for side in ("before", "after")]
        score = (np.concatenate(both) @ p["kernel"] + p["bias"])[0]
        total += np.log1p(np.exp(-score if BATCH["erd_labels"][row, number] else score))
    np.testing.assert_allclose(loss.sum, total, rtol=1e-5)
    assert loss.weight == 3
