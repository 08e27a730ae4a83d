"""Triples as rows: the texts are those of the graph, and what is wrong is wrong."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.corruptions.knowledge.triples import EntityPairs, TripleText
from ptm_jax.knowledge.triples import Triples, known
from support import corrupting
from support.corrupting import VOCAB

pytestmark = pytest.mark.full
GRAPH = facts.stand_ins(Triples(width=4), VOCAB)


def text(row):
    return tuple((row[row > 0] - 1).tolist())


ENTITIES, RELATIONS = (
    [text(row) for row in GRAPH.entities()],
    [text(row) for row in GRAPH.relations()],
)
TRUE = {(ENTITIES[h], RELATIONS[r], ENTITIES[t]) for h, r, t in GRAPH.triples()}
ROWS = 256


def parts(ids, segments):
    """The texts between [CLS] and [SEP]s of a row."""
    row, found = [int(i) for i in ids[segments > 0]], [[]]
    assert row[0] == VOCAB.cls and row[-1] == VOCAB.sep
    for i in row[1:]:
        found = [*found, []] if i == VOCAB.sep else [*found[:-1], [*found[-1], i]]
    return tuple(map(tuple, found[:-1]))


def run(value):
    return corrupting.numpied(value, 0, corrupting.documents(rows=ROWS))


@pytest.mark.parametrize("negatives", [1, 3])
def test_triples_are_those_of_the_graph_or_differ_in_one_entity(negatives):
    out = run(TripleText(vocab=VOCAB, graph=GRAPH, negatives=negatives))
    real = (out["segment_ids"] > 0).any(1)
    assert not real[0] and real[1:].all() and out["input_ids"].shape == (ROWS, 3 * 4 + 4)
    for ids, segments, types, label in zip(
        *(out[f][1:] for f in ("input_ids", "segment_ids", "token_type_ids", "triple_label")),
        strict=True,
    ):
        h, r, t = found = parts(ids, segments)
        assert types[segments > 0].tolist() == [0] * (len(h) + 2) + [1] * (len(r) + 1) + [0] * (
            len(t) + 1
        )
        near = {(a, b, c) for a, b, c in TRUE if b == r and (a == h) + (c == t) >= 1}
        assert found in TRUE if label else near and found not in TRUE
    share = 1 / (1 + negatives)
    assert abs(out["triple_label"].mean() - share) < 3 * np.sqrt(share * (1 - share) / ROWS)


def test_pairs_are_entities_of_triples_and_the_label_is_their_relation():
    out = run(EntityPairs(vocab=VOCAB, graph=GRAPH))
    assert out["input_ids"].shape == (ROWS, 2 * 4 + 3) and not (out["segment_ids"][0] > 0).any()
    drawn = set()
    for ids, segments, types, label in zip(
        *(out[f][1:] for f in ("input_ids", "segment_ids", "token_type_ids", "relation_label")),
        strict=True,
    ):
        h, t = parts(ids, segments)
        assert types[segments > 0].tolist() == [0] * (len(h) + 2) + [1] * (len(t) + 1)
        drawn.add((h, RELATIONS[label], t))
    assert drawn == TRUE


def test_known_triples_are_found_among_all():
    facts, asked = (
        GRAPH.triples(),
        np.stack(np.meshgrid(range(24), range(4), range(24), indexing="ij"), -1),
    )
    want = (asked[..., None, :] == facts).all(-1).any(-1)
    np.testing.assert_array_equal(known(facts, asked), want)
    np.testing.assert_array_equal(known(jnp.asarray(facts), jnp.asarray(asked)), want)


def test_a_file_with_texts(tmp_path):
    import types

    words = ["[PAD]", "[UNK]", "dog", "is", "a", "animal", "the", "pet"]

    def encode(texts):
        return [np.array([words.index(w) for w in text.split()]) for text in texts]

    (tmp_path / "graph.tsv").write_text("dog\tis a\tanimal\n")
    (tmp_path / "texts.tsv").write_text("dog\tthe pet\n")
    graph = Triples(file=str(tmp_path / "graph.tsv"), texts=str(tmp_path / "texts.tsv"), width=3)
    graph = graph.filled(graph.of_tokenizer(types.SimpleNamespace(encode_batch=encode)))
    assert graph.sizes == (1, 2, 1) and graph.triples().tolist() == [[1, 0, 0]]
    assert [text(row) for row in graph.entities()] == [(5,), (6, 7)] and [
        text(row) for row in graph.relations()
    ] == [(3, 4)]
