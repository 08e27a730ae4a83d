"""KT-NET's memories and self-matching against their definition in numpy; the cloze of names against
rows read by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import facts
from ptm_jax.corruptions.knowledge.name_cloze import NameCloze
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.knowledge.memories import ConceptMemory, SelfMatching
from support import corrupting, splitting
from support.corrupting import VOCAB

pytestmark = pytest.mark.full
BEFORE = corrupting.documents(rows=64)
IDS, SEGMENTS = (np.asarray(BEFORE[name]) for name in ("input_ids", "segment_ids"))


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def test_memories_are_means_of_concepts_and_a_sentinel():
    layer = facts.stand_ins(
        ConceptMemory(lexicon=Entities(entities=40, candidates=3), width=5), VOCAB
    )
    ids, segments = jnp.asarray(IDS[:3, :12]), jnp.asarray(SEGMENTS[:3, :12])
    states = np.random.default_rng(0).normal(size=(3, 12, 6)).astype(np.float32)
    p = jax.tree.map(
        lambda x: x * 9, layer.init(jax.random.key(0), states, ids, segments)["params"]
    )
    assert not p["sentinel"].any()
    p["sentinel"] = jnp.asarray(np.random.default_rng(1).normal(size=5), jnp.float32)
    found = layer.apply({"params": p}, states, ids, segments)
    values = np.asarray(layer.lexicon.find(ids, segments).values)[..., :3]
    assert (values[..., 0] > 0).any() and (values[..., 0] == 0).any()
    table, sentinel, kernel = (
        np.asarray(x) for x in (p["entities"], p["sentinel"], p["relevance"]["kernel"])
    )
    for row, place in np.ndindex(values.shape[:2]):
        concepts = [table[i] for i in values[row, place] if i]
        if not concepts:
            assert not found[row, place].any()
            continue
        concepts.append(sentinel)
        weights = softmax(np.array([c @ (states[row, place] @ kernel) for c in concepts]))
        np.testing.assert_allclose(found[row, place], weights @ np.array(concepts), atol=1e-5)


def test_matching_is_dual():
    draw = np.random.default_rng(1)
    u, sees = draw.normal(size=(2, 5, 3)).astype(np.float32), draw.random((2, 5, 5)) < 0.6
    sees |= np.eye(5, dtype=bool)
    layer = SelfMatching()
    p = {"match": draw.normal(size=(3, 3)).astype(np.float32)}
    found = layer.apply({"params": p}, u, sees)
    w = p["match"].reshape(-1)
    for row in range(2):
        x, scores = u[row].astype(np.float64), np.full((5, 5), -np.inf)
        for i, j in zip(*np.nonzero(sees[row]), strict=True):
            scores[i, j] = w @ np.concatenate([x[i], x[j], x[i] * x[j]])
        a = np.array([softmax(line) for line in scores])
        v, far = a @ x, (a @ a) @ x
        np.testing.assert_allclose(
            found[row], np.concatenate([x, v, x - v, x * v, far, x - far], -1), atol=1e-5
        )


def test_weights_of_matching_begin_as_in_paddle():
    w = np.asarray(
        SelfMatching().init(
            jax.random.key(0), np.zeros((1, 2, 3000), np.float32), np.ones((1, 2, 2), bool)
        )["params"]["match"]
    )
    for row, variance in zip(w, (2 / 3001, 2 / 3001, 2 / 6000), strict=True):
        assert np.abs(row).max() <= (3 * variance) ** 0.5 and abs(row.var() / variance - 1) < 0.1


def test_the_first_stage_trains_what_bert_lacks():
    system = systems.get("kt_net_first")
    (frozen,) = system.adapt
    trained = {path for path in splitting.parameters("kt_net_first") if frozen.trainable(path, 0)}
    ours = {
        f"main/encoder/memories_{n}/{name}"
        for n in (0, 1)
        for name in ("relevance/kernel", "sentinel")
    }
    span = {
        path for path in splitting.parameters("kt_net_first") if path.startswith("main/heads_span/")
    }
    assert trained == ours | {"main/encoder/matching/match"} | span and len(span) == 2


def test_a_repeated_name_is_hidden_and_its_first_mention_asked_for():
    value = facts.stand_ins(NameCloze(vocab=VOCAB, share=0.5), VOCAB)
    ids = IDS.copy()
    names = value.lexicon.find(jnp.asarray(ids), jnp.asarray(SEGMENTS))
    starts = np.asarray(names.starts)
    row = next(r for r in range(64) if (starts[r] & (SEGMENTS[r] == 1)).sum() > 2)
    first, *_, last = np.flatnonzero(starts[row] & (SEGMENTS[row] == 1))
    ids[row, last] = ids[row, first]  # names of the stand-in begin with one token
    out = corrupting.numpied(value, 0, {**BEFORE, "input_ids": jnp.asarray(ids)})
    found = value.lexicon.find(jnp.asarray(ids), jnp.asarray(SEGMENTS))
    owner, entity = np.asarray(found.first), np.asarray(found.values)[..., 0]
    asked = 0
    for r in range(64):
        mentions = [m for m in np.unique(owner[r]) if m >= 0]

        def earlier(m, r=r, mentions=mentions):
            return [
                n
                for n in mentions
                if n < m and entity[r, n] == entity[r, m] and SEGMENTS[r, n] == SEGMENTS[r, m]
            ]

        hidden = np.flatnonzero(out["input_ids"][r] != ids[r])
        if not any(map(earlier, mentions)):
            assert out["answer_start"][r] == out["answer_end"][r] == -1 and not len(hidden)
            continue
        name, asked = owner[r, hidden[0]], asked + 1
        assert (
            out["input_ids"][r, hidden] == VOCAB.mask
        ).all() and hidden.tolist() == np.flatnonzero(owner[r] == name).tolist()
        answer = np.flatnonzero(owner[r] == earlier(name)[0])
        assert [out["answer_start"][r], out["answer_end"][r]] == [answer[0], answer[-1]]
    assert asked
