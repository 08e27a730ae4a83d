"""LUKE's encoder against its definition in numpy; the loss of masked entities; entities change
words of their document."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.towers import Tower
from ptm_jax.encoders.knowledge.entity_tokens import MentionTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.knowledge.entity_states import EntityWords
from ptm_jax.nn.knowledge.entity_aware import EntityEmbeddings, mixed
from ptm_jax.nn.layers import LayerNorm
from ptm_jax.objectives.knowledge.masked_entities import MaskedEntities
from support.corrupting import VOCAB

D, W, H = 8, 6, 2
LOW = transformer(
    vocab=VOCAB,
    layers=1,
    width=D,
    heads=H,
    hidden=10,
    positions=LearnedPositions(9),
    types=2,
    dropout=0.0,
)
ENCODER = MentionTransformer(
    embed=LOW.embed,
    entities=EntityEmbeddings(
        size=11, width=W, words=D, position=LearnedPositions(9), norm=LayerNorm(1e-12)
    ),
    stack=dataclasses.replace(LOW.stack, block=mixed(LOW.stack.block)),
)
MODEL = Model(encoder=ENCODER, heads={"entity_words": EntityWords(11)})
BATCH = {
    "input_ids": np.array([[7, 8, 9, 10, 11, 12], [20, 21, 22, 23, 0, 0]], np.int32),
    "segment_ids": np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]], np.int32),
    "mention_ids": np.array([[3, 4, 5], [6, 0, 0]], np.int32),
    "mention_places": np.array([[[0, 1], [2, -1], [3, 4]], [[1, 2], [-1, -1], [-1, -1]]], np.int32),
    "mention_segments": np.array([[1, 1, 2], [1, 0, 0]], np.int32),
    "masked_entity_positions": np.array([[1, 2], [0, 0]], np.int32),
    "masked_entity_labels": np.array([[8, 2], [9, 0]], np.int32),
    "masked_entity_weights": np.array([[1.0, 1.0], [1.0, 0.0]], np.float32),
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


def norm(x, p):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * p[
        "scale"
    ] + p["bias"]


def gelu(x):
    return np.asarray(jax.nn.gelu(x, approximate=False))


def attention(x, length, sees, p):
    """One row: a score for each pair of tokens with the matrix of its pair of kinds."""

    def dense(name, x):
        return np.einsum("d,dhk->hk", x, p[name]["kernel"]) + p[name]["bias"]

    names = {(0, 0): "query", (0, 1): "w2e_query", (1, 0): "e2w_query", (1, 1): "e2e_query"}
    out = []
    for i in range(len(x)):
        scores = np.full((H, len(x)), -np.inf)
        for j in range(len(x)):
            if sees[i, j]:
                query = dense(names[int(i >= length), int(j >= length)], x[i])
                scores[:, j] = (query * dense("key", x[j])).sum(-1) / np.sqrt(D // H)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads = sum(weights[:, j, None] * dense("value", x[j]) for j in range(len(x)))
        out.append(np.einsum("hk,hkd->d", heads, p["out"]["kernel"]) + p["out"]["bias"])
    return np.array(out)


def defined(row):
    """The states of a row's words and entities after one layer."""
    p = jax.tree.map(np.asarray, PARAMS["encoder"])
    words, entities, batch = (
        p["embed"],
        p["entities"],
        {name: value[row] for name, value in BATCH.items()},
    )
    length = len(batch["input_ids"])
    # without `positions` a place of a row is its position
    inputs = (
        words["token"][batch["input_ids"]] + words["position"]["table"][:length] + words["type"][0]
    )
    x = [*norm(inputs, words["norm"])]
    for number, places in zip(batch["mention_ids"], batch["mention_places"], strict=True):
        vector = entities["entities"][number] @ entities["project"]["kernel"] + entities["type"][0]
        rows = [entities["position"]["table"][place] for place in places if place >= 0]
        x.append(norm(vector + (np.mean(rows, 0) if rows else 0), entities["norm"]))
    x, segments = np.array(x), np.concatenate([batch["segment_ids"], batch["mention_segments"]])
    sees = (np.maximum(segments, 1)[:, None] == segments) & (segments > 0)
    block = jax.tree.map(lambda leaf: leaf[0], p["stack"]["block"])
    x = norm(x + attention(x, length, sees, block["attention"]), block["attention_norm"])
    ffn = (
        gelu(x @ block["ffn"]["up"]["kernel"] + block["ffn"]["up"]["bias"])
        @ block["ffn"]["down"]["kernel"]
    )
    x = norm(x + ffn + block["ffn"]["down"]["bias"], block["ffn_norm"])
    return x[:length], x[length:]


def test_states_and_loss_equal_the_definition():
    tower = Tower(MODEL, PARAMS)
    encoded = jax.jit(lambda batch: tower(batch))(BATCH)
    total = 0.0
    for row in range(2):
        words, entities = defined(row)
        real, used = BATCH["segment_ids"][row] > 0, BATCH["mention_segments"][row] > 0
        np.testing.assert_allclose(encoded.hidden[row][real], words[real], atol=2e-5)
        np.testing.assert_allclose(encoded.extra["entities"][row][used], entities[used], atol=2e-5)
        head = jax.tree.map(np.asarray, PARAMS["heads_entity_words"])
        asked = (BATCH[f"masked_entity_{name}"][row] for name in ("positions", "labels", "weights"))
        for place, label, weight in zip(*asked, strict=True):
            h = norm(
                gelu(entities[place] @ head["dense"]["kernel"] + head["dense"]["bias"]),
                head["norm"],
            )
            logits = h @ np.asarray(PARAMS["encoder"]["entities"]["entities"]).T + head["bias"]
            total += weight * (np.log(np.exp(logits).sum()) - logits[label])
    loss = MaskedEntities().of(tower, encoded, BATCH)
    np.testing.assert_allclose(loss.sum, total, rtol=1e-5)
    assert loss.weight == 3


def test_an_entity_reaches_the_words_of_its_document_alone():
    tower, other = Tower(MODEL, PARAMS), BATCH["mention_ids"].copy()
    other[0, 2] = 9
    run = jax.jit(lambda ids: tower({**BATCH, "mention_ids": ids}).hidden)
    moved = (np.abs(run(BATCH["mention_ids"]) - run(other)) > 1e-6).any(-1)
    np.testing.assert_array_equal(moved, [[0, 0, 0, 1, 1, 1], [0] * 6])


def test_without_entities_it_is_a_transformer():
    plain = {name: value for name, value in BATCH.items() if not name.startswith("mention")}
    low = {"embed": PARAMS["encoder"]["embed"], "stack": PARAMS["encoder"]["stack"]}
    wanted = jax.jit(lambda batch: LOW.apply({"params": low}, batch).hidden)(plain)
    states = jax.jit(lambda batch: Tower(MODEL, PARAMS)(batch).hidden)(plain)
    np.testing.assert_allclose(states, wanted, atol=1e-6)
