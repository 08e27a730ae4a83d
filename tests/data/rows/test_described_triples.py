"""Rows with the texts of a triple's entities: they are those of the graph, and the loss is that of a table of all texts."""

import itertools
import types

import numpy as np

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.triples import Triples
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.rows.graphs import WithDescribedTriple
from ptm_jax.objectives.triples import KE
from support import cutting
from support.plain_towers import LEXICAL, batch_of, check, params_of, states_of

VOCAB = cutting.VOCAB
TEXTS = [np.array(text) for size in (1, 2) for text in itertools.product((1, 4, 5, 6), repeat=size)]
TRIPLES = np.random.default_rng(0).integers(0, (len(TEXTS), 5, len(TEXTS)), (30, 3))
MADE = Triples(width=4)._table(TRIPLES, [*TEXTS, *TEXTS[:5]], np.zeros((len(TEXTS), 16)), 5)
GRAPH = Triples(width=4).filled(MADE)
VIEWS = "head", "tail", "other"


def table() -> np.ndarray:
    """The text of every entity as [CLS] text [SEP], [E, 6]: what every device held before rows had their own."""
    rows = [[VOCAB.cls, *text.tolist(), VOCAB.sep] for text in TEXTS]
    return np.array([row + [VOCAB.pad] * (6 - len(row)) for row in rows])


def cut(documents: int) -> dict[str, np.ndarray]:
    return cutting.cut(WithDescribedTriple(graph=GRAPH), cutting.block(documents=documents))


def numbers(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The entities of the views: their texts differ."""
    texts = {tuple(row): number for number, row in enumerate(table().tolist())}
    return {name: np.array([texts[tuple(row)] for row in rows[f"{name}_input_ids"].tolist()]) for name in VIEWS}


def test_rows_have_a_triple_of_the_graph_and_another_entity():
    rows = cut(documents=300)
    inner, found = cutting.cut(WithDescribedTriple().examples, cutting.block(documents=300)), numbers(rows)
    assert all(np.array_equal(rows[name], inner[name]) for name in inner)
    triples = {*map(tuple, TRIPLES.tolist())}
    assert {*zip(found["head"], rows["relation"], found["tail"], strict=True)} == triples, "every triple is drawn"
    side = rows["other_side"]
    assert (found["other"] != np.where(side > 0, found["tail"], found["head"])).all()
    assert len({*found["other"]}) == len(TEXTS) and abs(side.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(side))
    for name in VIEWS:
        assert np.array_equal(rows[f"{name}_segment_ids"] > 0, rows[f"{name}_input_ids"] != VOCAB.pad)


def test_the_loss_is_that_of_a_table_of_all_texts():
    rows = {name: value[:3] for name, value in cut(documents=3).items()}
    rows |= {name: value for name, value in batch_of().items() if name in ("input_ids", "segment_ids", "positions")}
    found, texts = numbers(rows), table()

    def defined(p, b):
        view = {f"{name}_input_ids": texts[found[name]] for name in VIEWS}
        view |= {f"{name}_segment_ids": (texts[found[name]] != VOCAB.pad).astype(int) for name in VIEWS}
        h, t, other = (states_of(p, view, name)[:, 0] for name in VIEWS)
        distance = lambda h, t: np.abs(h + p["relations"][b["relation"]] - t).sum(-1)
        tail = b["other_side"][:, None] > 0
        wrong = distance(np.where(tail, h, other), np.where(tail, other, t))
        loss = np.log1p(np.exp(distance(h, t) - 4)) + np.log1p(np.exp(4 - wrong))
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
    encode = lambda texts: [np.array([words.index(word) for word in text.split()]) for text in texts]
    monkeypatch.setattr(Corpus, "tokenizer", lambda corpus: types.SimpleNamespace(encode_batch=encode))
    graph, corpus = Triples(file=str(tmp_path / "graph.tsv"), texts=str(texts), width=2), Corpus(tmp_path, {})
    first = graph.filled(graph.read(corpus))
    assert isinstance(first.values, np.memmap) and first.entities().tolist() == [[4, 5], [2, 0]]
    monkeypatch.setattr(Corpus, "tokenizer", None)
    assert np.array_equal(graph.read(corpus), first.values)
    monkeypatch.undo()
    monkeypatch.setattr(Corpus, "tokenizer", lambda corpus: types.SimpleNamespace(encode_batch=encode))
    texts.write_text("a\tthree\n")  # another text, another array
    assert graph.filled(graph.read(corpus)).entities().tolist() == [[6, 0], [2, 0]]
