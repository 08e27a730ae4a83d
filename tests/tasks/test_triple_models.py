"""Scores of triples by networks against one text at a time: KG-BERT's, of entities and of
relations, and KEPLER's."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower, init
from ptm_jax.inference.words import triple_models
from ptm_jax.knowledge.triples import Triples
from ptm_jax.objectives.vectors.vector_traits import ScoresTriples
from support import tiny_models

pytestmark = pytest.mark.full
NAMES = ["ant", "bee", "cat", "dog", "elk"]
WORDS = {word: 1000 + n for n, word in enumerate([*NAMES, "eats", "sees", "a", "big"])}
LINES = "ant\teats\tbee\ncat\tsees\tdog\nelk\teats\tant\nbee\tsees\telk\n"
TEXTS = {"bee": "a big bee", "eats": "eats a", "elk": "big elk"}


def TEXT(name):
    return [WORDS[word] for word in TEXTS.get(name, name).split()]


def model(name, tmp_path, **changes):
    """A model of a system with random parameters and this graph."""
    (tmp_path / "graph.tsv").write_text(LINES)
    (tmp_path / "texts.tsv").write_text(
        "".join(f"{name}\t{text}\n" for name, text in TEXTS.items())
    )
    graph = Triples(file=str(tmp_path / "graph.tsv"), texts=str(tmp_path / "texts.tsv"), width=4)
    system = spec.respell(systems.get(name), Triples, graph)
    if changes:
        system = dataclasses.replace(
            system, examples=dataclasses.replace(system.examples, **changes)
        )
    vocab = system.towers["main"].encoder.embeddings.vocab

    def encode(texts):
        return [np.array([WORDS[word] for word in text.split()]) for text in texts]

    tokenizer = types.SimpleNamespace(encode_batch=encode, vocab=vocab)
    objective = next(
        part for _, part in spec.walk(system.objective) if isinstance(part, ScoresTriples)
    )
    batch = {name: jnp.ones((2, 8), jnp.int32) for name in ("input_ids", "segment_ids")}
    shapes = jax.eval_shape(lambda: init(system.towers, jax.random.key(0), batch))["main"]
    draw = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, 0.15, leaf.shape), leaf.dtype), shapes
    )
    tower = Tower(system.towers["main"], params)
    return triple_models.MODELS[objective.triples].of(tower, objective, tokenizer, system), vocab


def row(vocab, *names):
    """[CLS] text [SEP] text [SEP] ..., types 0, 1, 0, as a batch of one row of 20 places."""
    ids, kinds = [vocab.cls], [0]
    for number, name in enumerate(names):
        ids += [*TEXT(name), vocab.sep]
        kinds += [number % 2] * (len(TEXT(name)) + 1)

    def one(values, fill=0):
        return jnp.asarray([values + [fill] * (20 - len(ids))], jnp.int32)

    return {
        "input_ids": one(ids, vocab.pad),
        "segment_ids": one([1] * len(ids)),
        "token_type_ids": one(kinds),
    }


def test_texts_of_triples_are_scored_as_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(
        triple_models, "TEXTS", 16
    )  # parts of two answers, of which the last is filled up
    found, vocab = model("kgbert_mini", tmp_path)

    @jax.jit
    def logit(row):
        return found.tower.head("nsp", found.tower.head("pool", found.tower(row).hidden))[0]

    def true(h, r, t):
        return jax.nn.log_softmax(logit(row(vocab, h, r, t)))[1]

    x, y = np.array([0, 1, 4]), np.array([1, 0, 1])
    for what in found.sought:
        scores = found.score(x, y, what)
        assert scores.shape == (3, len(NAMES))
        for n, (e, r) in enumerate(zip(x, y, strict=True)):

            def ends(other, e=e, what=what):
                return (NAMES[e], other) if what == "tail" else (other, NAMES[e])

            want = [true(ends(o)[0], ("eats", "sees")[r], ends(o)[1]) for o in NAMES]
            np.testing.assert_allclose(scores[n], want, atol=2e-5)


def test_relations_of_pairs_are_scored_as_one_by_one(tmp_path):
    found, vocab = model("kgbert_relations_mini", tmp_path)
    assert found.sought == ("relation",) and found.answers == 2
    scores = found.score(np.array([1, 2]), np.array([4, 3]), "relation")
    logits = jax.jit(
        lambda row: found.tower.head("nsp", found.tower.head("pool", found.tower(row).hidden))[0]
    )
    for pair, mine in zip((("bee", "elk"), ("cat", "dog")), scores, strict=True):
        np.testing.assert_allclose(
            mine, jax.nn.log_softmax(logits(row(vocab, *pair)))[:2], atol=2e-5
        )


@pytest.mark.parametrize("texts", ["entities", "relations", "conditions"])
def test_described_entities_are_scored_by_their_distance(tmp_path, texts):
    found, vocab = model("kepler_mini", tmp_path, texts=texts)
    encode = jax.jit(lambda fields: found.tower(fields).hidden[0, 0])

    def state(*names):
        fields = row(vocab, *names)
        del fields["token_type_ids"]
        return np.asarray(encode(fields))

    table = np.asarray(found.tower.params["heads_relations"]["relations"])
    links = [state("eats"), state("sees")] if texts == "relations" else table
    every = np.stack([state(name) for name in NAMES])
    x, y = np.array([0, 3]), np.array([1, 0])
    for what, sign in (("tail", 1), ("head", -1)):
        scores = found.score(x, y, what)
        for n, (e, r) in enumerate(zip(x, y, strict=True)):
            given = state(NAMES[e], ("eats", "sees")[r]) if texts == "conditions" else every[e]
            want = -np.abs(sign * (given - every) + links[r]).sum(-1)
            np.testing.assert_allclose(scores[n], want, rtol=2e-5)


def test_triples_are_placed_by_identifiers_or_names(tmp_path):
    found, _ = model("kgbert_mini", tmp_path)
    graph = types.SimpleNamespace(
        entities=["Q1", "dog", "Q3", "ant"], names=["bee", "x", "unknown", "y"],
        relations=["P1", "sees"],
        relation_names=["eats", "z"],
    )  # fmt: skip
    triples = np.array([[0, 0, 1], [3, 1, 0], [2, 1, 0]])
    np.testing.assert_array_equal(found.placed(graph, triples), [[1, 0, 3], [0, 1, 1]])


@pytest.mark.parametrize("name", ["kgbert_mini", "kepler_mini"])
def test_the_best_answers_of_a_query(tmp_path, name):
    scorer, _ = model(name, tmp_path)
    for asked in ({"head": NAMES[0], "tail": None}, {"head": None, "tail": NAMES[2]}):
        what = next(part for part, value in asked.items() if value is None)
        known = next(value for value in asked.values() if value is not None)
        best = triple_models.complete(scorer, relation="eats", top=3, **asked)
        number = scorer.relations["eats"]
        scores = np.asarray(
            scorer.score(np.array([scorer.entities[known]]), np.array([number]), what)
        )[0]
        by_hand = sorted(zip(-scores, scorer.entities, strict=True), key=lambda pair: pair[0])[:3]
        assert [(one.word, -one.score) for one in best] == [(n, float(s)) for s, n in by_hand]
    for names, message in (
        ({"head": "nobody", "tail": None}, "unknown entity 'nobody'"),
        ({"head": None, "tail": None}, "give its other two parts"),
        ({"head": NAMES[0], "tail": NAMES[1]}, "give its other two parts"),
    ):
        with pytest.raises(UserError, match=message):
            triple_models.complete(scorer, relation="eats", top=3, **names)
    with pytest.raises(UserError, match="unknown relation 'eatz'.*Did you mean 'eats'"):
        triple_models.complete(scorer, NAMES[0], "eatz", None, 3)


def test_another_network_scores_no_triples():
    with pytest.raises(UserError, match="scores no triples; give a run of transe"):
        tiny_models.build("bert").complete("a", "b")
