"""LIBERT's pairs: related words of the graph, and the nearest unrelated words of their batch
(anlausch/LIBERT)."""

import itertools
import types

import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.legacy import renewed
from ptm_jax.data.rows.knowledge.lexical_pairs import WithLexicalPairs
from ptm_jax.knowledge.graphs.compiling import compile_graph
from ptm_jax.knowledge.graphs.formats import sources
from ptm_jax.knowledge.lexical_relations import LexicalRelations, sketch
from ptm_jax.knowledge.vector_files import vectors_in
from support import cutting

VOCAB = cutting.VOCAB
WORDS = [f"w{n}" for n in range(40)] + ["new york", "new", "york", "nowhere", "upper"]
PIECES = sorted({part for word in WORDS for part in word.split()})
DRAW = np.random.default_rng(0)
PAIRS = {tuple(sorted(DRAW.choice(WORDS, 2, replace=False).tolist())) for _ in range(60)}
PAIRS = sorted(PAIRS | {("new york", "w3"), ("nowhere", "w5")})
SPACE = {part: DRAW.normal(size=5).astype(np.float32) for part in PIECES if part != "nowhere"}


def tokenizer():
    number = {piece: 100 + place for place, piece in enumerate([*PIECES, "synonym"])}

    def encode(texts):
        return [np.array([number[part] for part in text.split()]) for text in texts]

    return types.SimpleNamespace(vocab=VOCAB, encode_batch=encode)


@pytest.fixture
def graph(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\tsynonym\t{b}\n" for a, b in PAIRS))
    rows = [
        f"{word.replace('upper', 'Upper')} {' '.join(map(str, row))}" for word, row in SPACE.items()
    ]
    (tmp_path / "space.vec").write_text(
        "\n".join([f"{len(rows)} 5", *rows, "w0 1 1 1 1 1", "other 1 2 3 4 5"]) + "\n"
    )
    found = LexicalRelations(
        file=str(tmp_path / "pairs.tsv"), vectors=str(tmp_path / "space.vec"), width=3
    )
    return found.filled(found.of_tokenizer(tokenizer()))


def vector(word):
    some = [SPACE[part].astype(np.float64) for part in word.split() if part in SPACE]
    return np.mean(some, 0) if some else None


def nearest(word, batch):
    """The word of the batch of greatest cosine that is no pair with `word`, or None."""
    best, found = -np.inf, None
    for other in sorted({*itertools.chain(*batch)}):
        a, b = vector(word), vector(other)
        if (
            a is None
            or b is None
            or other == word
            or (word, other) in PAIRS
            or (other, word) in PAIRS
        ):
            continue
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        if cosine > best:
            best, found = cosine, other
    return found


def text(ids, segments, kinds):
    """The two words of [CLS] word [SEP] word [SEP], or None of padding."""
    row = ids[segments > 0].tolist()
    if not row:
        return None
    first, second = row.index(VOCAB.sep), len(row) - 1
    assert row[0] == VOCAB.cls and row[second] == VOCAB.sep
    assert kinds.tolist() == [int(first < place <= second) for place in range(len(kinds))]
    return tuple(
        " ".join(PIECES[i - 100] for i in part) for part in (row[1:first], row[first + 1 : second])
    )


def test_unrelated_words_are_the_nearest_of_the_batch(graph):
    rows = cutting.cut(WithLexicalPairs(graph=graph, batch=6), cutting.block(documents=150))
    inner = cutting.cut(WithLexicalPairs(graph=graph).examples, cutting.block(documents=150))
    assert all(np.array_equal(rows[name], inner[name]) for name in inner)
    fields = zip(
        *(rows[f"lexical_{name}"] for name in ("input_ids", "segment_ids", "token_type_ids")),
        strict=True,
    )
    three = [[text(*pair) for pair in zip(*row, strict=True)] for row in fields]
    assert len(three) > 30 and rows["lexical_input_ids"].shape[1:] == (3, 9)
    checked = 0
    for start in range(0, len(three) - 5, 6):  # the last rows may be a part of their batch
        batch = [row[0] for row in three[start : start + 6]]
        assert {*batch} <= {*PAIRS}
        for (first, second), one, other in three[start : start + 6]:
            for word, pair in ((first, one), (second, other)):
                found = nearest(word, batch)
                assert pair == (None if found is None else (word, found))
                checked += found is None
    assert checked > 0 and any("new york" in row[0] for row in three), (
        "a word without a vector, and one of two words"
    )


def test_pairs_of_a_compiled_graph_are_synonyms_and_hypernyms(tmp_path):
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "train.tsv").write_text("s1\thypernym\ts2\ns2\tantonym\ts3\n")
    (folder / "aliases.txt").write_text("s1\tdog\ns1\tcanis\ns2\tanimal\ns2\tbeast\ns3\tplant\n")
    compile_graph(sources([str(folder)]), tmp_path / "out")
    graph = LexicalRelations(file=str(tmp_path / "out"))
    words = ["dog", "canis", "animal", "beast", "plant", "s1", "s2", "s3", "synonym", "hypernym"]

    def encode(texts):
        return [np.array([words.index(part) for part in text.split()]) for text in texts]

    graph = graph.filled(
        graph.of_tokenizer(types.SimpleNamespace(vocab=VOCAB, encode_batch=encode))
    )

    def spell(n):
        return words[graph.entities()[n, 0] - 1]

    found = {frozenset((spell(a), spell(b))) for a, _, b in graph.triples()}
    below, above = {"dog", "canis"}, {"animal", "beast"}
    wanted = {
        frozenset(below),
        frozenset(above),
        *(frozenset(pair) for pair in itertools.product(below, above)),
    }
    assert {pair for pair in found if not pair & {"s1", "s2", "s3"}} == wanted


def test_vectors_that_cannot_be_read_are_one_line(tmp_path):
    path = tmp_path / "v.vec"
    wrong = {
        "a 1 2\nb 1 x\n": "line 2 is",
        "a 1 2\nb 1\n": "line 2 has 1 numbers",
        "c 1 2\n": "none of the 2",
    }
    for content, line in wrong.items():
        path.write_text(content)
        with pytest.raises(UserError, match=line):
            vectors_in(path, {"a", "b"})


def test_without_a_file_words_of_similar_spelling_are_near():
    assert sketch("house") @ sketch("houses") > 2 * abs(sketch("house") @ sketch("tree"))
    graph = facts.stand_ins(LexicalRelations(), VOCAB)
    assert graph.space.shape == (24, 16) and np.allclose((graph.space**2).sum(1), 1)


def test_records_of_old_runs_come_back_without_the_corruption_of_pairs():
    old = {
        "kind": "Chain",
        "parts": [{"kind": "TokenMasking"}, {"kind": "LexicalPairs", "group": 16}],
    }
    assert renewed(old)["parts"] == [{"kind": "TokenMasking"}]
