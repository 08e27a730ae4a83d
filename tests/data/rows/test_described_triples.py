"""Rows with the texts of a triple's entities: they are those of the graph, and the loss is that of
a table of all texts."""

import hashlib
import itertools
import shutil
import types

import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.facts import CorpusFact
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.rows.knowledge.graphs import WithDescribedTriple
from ptm_jax.knowledge.lexical_relations import LexicalRelations, sketch
from ptm_jax.knowledge.triples import Triples
from ptm_jax.objectives.knowledge.triples import KE
from support import cutting
from support.plain_towers import LEXICAL, batch_of, check, params_of, states_of

VOCAB = cutting.VOCAB
TEXTS = [np.array(text) for size in (1, 2) for text in itertools.product((1, 4, 5, 6), repeat=size)]
RELATIONS = [np.array([7] * size) for size in (1, 2, 3, 4, 5)]
TRIPLES = np.random.default_rng(0).integers(0, (len(TEXTS), 5, len(TEXTS)), (30, 3))
MADE = Triples(width=4).packed(TRIPLES, [*TEXTS, *RELATIONS], [""] * len(TEXTS), 5)
GRAPH = Triples(width=4).filled(MADE)
FACTS = {*map(tuple, TRIPLES.tolist())}


def table() -> np.ndarray:
    """The text of every entity as [CLS] text [SEP], [E, 6]: what every device held before rows had
    their own."""
    rows = [[VOCAB.cls, *text.tolist(), VOCAB.sep] for text in TEXTS]
    return np.array([row + [VOCAB.pad] * (6 - len(row)) for row in rows])


def cut(documents: int, **given) -> dict[str, np.ndarray]:
    return cutting.cut(
        WithDescribedTriple(graph=GRAPH, **given), cutting.block(documents=documents)
    )


def entities(rows: dict[str, np.ndarray]) -> np.ndarray:
    """The entities of the texts [R, M]: their texts differ."""
    texts = {tuple(row): number for number, row in enumerate(table().tolist())}
    return np.array(
        [[texts[tuple(one)] for one in row] for row in rows["described_input_ids"].tolist()]
    )


@pytest.mark.parametrize("negatives", [1, 3])
def test_rows_have_a_triple_of_the_graph_and_entities_that_make_none(negatives):
    rows = cut(documents=300, negatives=negatives)
    inner, found = (
        cutting.cut(WithDescribedTriple().examples, cutting.block(documents=300)),
        entities(rows),
    )
    assert all(np.array_equal(rows[name], inner[name]) for name in inner)
    assert {
        (h, r, t) for (h, t, *_), r in zip(found.tolist(), rows["relation"], strict=True)
    } == FACTS, "all are drawn"
    for (h, t, *wrong), r in zip(found.tolist(), rows["relation"], strict=True):
        assert len(wrong) == 2 * negatives
        assert (
            not {(e, r, t) for e in wrong[:negatives]} & FACTS
            and not {(h, r, e) for e in wrong[negatives:]} & FACTS
        )
    assert all(len({*side.ravel()}) == len(TEXTS) for side in np.split(found[:, 2:], 2, 1)), (
        "every entity is drawn"
    )
    assert np.array_equal(
        rows["described_segment_ids"] > 0, rows["described_input_ids"] != VOCAB.pad
    )


def test_an_entity_that_makes_another_triple_is_drawn_again():
    """All but one of the tails of (0, 0) are known: the wrong tail is that one."""
    some = [(0, 0, t) for t in range(len(TEXTS)) if t != 5]
    graph = Triples(width=4).filled(
        Triples(width=4).packed(some, [*TEXTS, *RELATIONS], [""] * len(TEXTS), 5)
    )
    examples = WithDescribedTriple(graph=graph, negatives=2)
    tails = np.concatenate(
        [examples._wrong(graph.triples(), 2, np.random.default_rng(n)) for n in range(10)]
    )
    assert (tails == 5).mean() > 0.5 and (tails[:, 0] != tails[:, 1]).any(), (
        "16 draws of 19 entities"
    )


def test_texts_of_relations_stand_alone_or_behind_those_of_entities():
    def relation(r):
        return (RELATIONS[r][:4]).tolist()

    def real(rows, view, i):
        return [ids[seen > 0].tolist() for ids, seen in zip(
            np.atleast_2d(rows[f"{view}_input_ids"][i]),
                np.atleast_2d(rows[f"{view}_segment_ids"][i]), strict=True
        )]  # fmt: skip

    alone, behind = cut(40, texts="relations"), cut(40, texts="conditions")
    for i, (ends, r) in enumerate(zip(entities(alone)[:, :2], alone["relation"], strict=True)):
        assert real(alone, "relation", i) == [[VOCAB.cls, *relation(r), VOCAB.sep]]
        whole = [[VOCAB.cls, *TEXTS[e].tolist(), VOCAB.sep, *relation(r), VOCAB.sep] for e in ends]
        assert real(behind, "conditioned", i) == whole
    for rows, examples in ((alone, "relations"), (behind, "conditions")):
        spec = WithDescribedTriple(graph=GRAPH, texts=examples).spec(40, VOCAB)
        assert {name: rows[name].shape[1:] for name in spec} == {
            name: field[0] for name, field in spec.items()
        }


def test_the_loss_is_that_of_a_table_of_all_texts():
    rows = {name: value[:3] for name, value in cut(documents=3).items()}
    rows |= {
        name: value
        for name, value in batch_of().items()
        if name in ("input_ids", "segment_ids", "positions")
    }
    found, texts = entities(rows), table()

    def defined(p, b):
        vectors = states_of(
            p, {"input_ids": texts, "segment_ids": (texts != VOCAB.pad).astype(int)}
        )[:, 0]
        h, t, head, tail = np.moveaxis(vectors[found], 1, 0)

        def distance(h, t):
            return np.abs(h + p["relations"][b["relation"]] - t).sum(-1)

        wrong = np.stack([distance(head, t), distance(h, tail)], 1)
        loss = np.log1p(np.exp(distance(h, t) - 4)) + np.log1p(np.exp(4 - wrong)).mean(1)
        return [(loss.sum(), len(loss))]

    check(KE(), defined, {"main": params_of(0, tuple(LEXICAL))}, rows, leaves=("relations",))


def test_the_step_of_kepler_holds_nothing_of_the_graph():
    system = systems.get("kepler_base")
    in_step = spec.walk((system.towers, system.corruption, system.objective))
    assert not any(isinstance(part, CorpusFact) for _, part in in_step)
    assert any(isinstance(part, Triples) for _, part in spec.walk(system.examples))


def test_a_corpus_keeps_the_texts_in_its_folder_memory_mapped(tmp_path, monkeypatch):
    (tmp_path / "graph.tsv").write_text("a\tr\tb\n")
    texts = tmp_path / "texts.tsv"
    texts.write_text("a\tone two\n")
    words = ["a", "b", "r", "one", "two", "three"]

    def encode(texts):
        return [np.array([words.index(word) for word in text.split()]) for text in texts]

    monkeypatch.setattr(
        Corpus, "tokenizer", lambda corpus: types.SimpleNamespace(encode_batch=encode)
    )
    graph, corpus = (
        Triples(file=str(tmp_path / "graph.tsv"), texts=str(texts), width=2),
        Corpus(tmp_path, {}),
    )
    first = graph.filled(graph.read(corpus))
    assert all(isinstance(array, np.memmap) for array in first.arrays.values())
    assert first.entities().tolist() == [[4, 5], [2, 0]]
    monkeypatch.setattr(Corpus, "tokenizer", None)
    assert graph.filled(graph.read(corpus)) == first
    monkeypatch.undo()
    monkeypatch.setattr(
        Corpus, "tokenizer", lambda corpus: types.SimpleNamespace(encode_batch=encode)
    )
    texts.write_text("a\tthree\n")  # another text, other arrays
    assert graph.filled(graph.read(corpus)).entities().tolist() == [[6, 0], [2, 0]]


def test_a_corpus_of_version_0_1_has_one_array_and_gives_the_same_hash(tmp_path, monkeypatch):
    """`triples-HASH.npy`: three sizes, then triples, texts and the bits of float vectors."""
    (tmp_path / "pairs.tsv").write_text("a\tr\tb\n")
    corpus = Corpus(tmp_path, {})
    graph = LexicalRelations(file=str(tmp_path / "pairs.tsv"), width=2)

    def encode(texts):
        return [np.array([ord(text.strip())]) for text in texts]

    tokenizer = types.SimpleNamespace(encode_batch=encode)
    monkeypatch.setattr(Corpus, "tokenizer", lambda corpus: tokenizer)
    new = graph.filled(graph.read(corpus))
    folder = next(tmp_path.glob("triples-*"))
    vectors = np.stack([sketch("a"), sketch("b")])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    integers = [1, 2, 1, *(0, 0, 1), *(ord("a") + 1, 0, ord("b") + 1, 0), *(ord("r") + 1, 0)]
    packed = np.array([*integers, *vectors.ravel().view(np.int32)], np.int32)
    shutil.rmtree(folder)
    np.save(folder.with_suffix(".npy"), packed)
    monkeypatch.setattr(Corpus, "tokenizer", None)
    old = graph.filled(graph.read(corpus))
    assert old.corpus_sha256 == hashlib.sha256(packed).hexdigest() == new.corpus_sha256
    assert old.arrays.keys() == new.arrays.keys()
    for name, array in old.arrays.items():
        assert np.array_equal(array, new.arrays[name]) and array.dtype == new.arrays[name].dtype
    assert np.array_equal(old.space, vectors) and not folder.exists()
