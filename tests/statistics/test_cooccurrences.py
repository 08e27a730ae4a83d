"""Co-occurrences against a count by hand, in memory and spilled to disk, and the rows that are made
of them."""

import collections
import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora import block_records, store
from ptm_jax.data.rows import cells
from ptm_jax.statistics import cooccurrences

VOCAB = Vocab(size=40, pad=0, unk=2)


def blocks(seed=0):
    """Documents of random words, unknown ones among them; the last of a block continues in the
    next."""
    draw = np.random.default_rng(seed)
    for number in range(6):
        sizes = draw.integers(1, 30, 5)
        tokens = np.where(
            draw.random(sizes.sum()) < 0.2, 2, draw.integers(3, 40, sizes.sum())
        ).astype(np.int32)
        sentences = sizes.astype(np.int32)
        yield block_records.Block(
            tokens, sentences, np.ones(5, np.int32), np.arange(5) + 10 * (number % 2 == 0) == 0
        )


def by_hand(window):
    texts = []
    for block in blocks():
        parts = np.split(block.tokens, block.document_tokens[1:-1])
        if block.continued[0]:
            texts[-1] += parts.pop(0).tolist()
        texts += [part.tolist() for part in parts]
    found = collections.Counter()
    for text in texts:
        text = [word for word in text if word != 2]
        for i, a in enumerate(text):
            for j in range(max(0, i - window), min(len(text), i + window + 1)):
                if i != j:
                    found[a, text[j]] += 1 / abs(i - j)
    return found


@pytest.mark.parametrize("window", [1, 4, 15])
def test_counts_are_those_by_hand_in_memory_and_spilled(window, tmp_path, monkeypatch):
    cooccurrences.count(blocks(), VOCAB, window, tmp_path / "whole.npy")
    monkeypatch.setattr(cooccurrences, "FRESH", 40)
    runs, parts = [], cooccurrences.Sums.parts
    monkeypatch.setattr(
        cooccurrences.Sums, "parts", lambda self, end: runs.extend(self.runs) or parts(self, end)
    )
    cooccurrences.count(blocks(), VOCAB, window, tmp_path / "spilled.npy", memory=1000)
    assert len(runs) > 2, "it was spilled"
    assert (tmp_path / "whole.npy").read_bytes() == (tmp_path / "spilled.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spilled.npy", "whole.npy"]
    table = np.load(tmp_path / "whole.npy")
    assert (table["row"] <= table["column"]).all()
    found = {(int(r), int(c)): w for r, c, w in cooccurrences.both(table)}
    assert found == pytest.approx(dict(by_hand(window)), rel=1e-12)


def test_cells_are_a_bijection_that_mixes():
    vocab = 400_000
    draw, numbers = np.random.default_rng(0), cooccurrences.Cells(vocab)
    a, b = draw.integers(0, vocab, (2, 10_000)).astype(np.uint64)
    low, high = numbers.ids(numbers.number(a, b))
    assert np.array_equal(low, np.minimum(a, b)) and np.array_equal(high, np.maximum(a, b))
    near = numbers.number(np.full(10_000, 7, np.uint64), np.arange(10_000, dtype=np.uint64) + 8)
    counts = np.histogram(near.astype(float), 20, (0, 2.0**numbers.bits))[0]
    assert abs(counts / 500 - 1).max() < 0.25, "neighbours in the matrix are spread evenly"
    with pytest.raises(UserError, match="counted for at most"):
        cooccurrences.Cells(1 << 30)


def test_rows_are_every_cell_in_both_directions(tmp_path):
    cooccurrences.count(blocks(), VOCAB, 4, tmp_path / "a.npy")
    table = np.load(tmp_path / "a.npy")
    sizes = {"train": {"tokens": 300}, "heldout": {"tokens": 100}}
    corpus = types.SimpleNamespace(cooccurrence=lambda window: table, size=sizes.get)
    examples, seen = cells.Cells(window=4), []
    for split, share in (("heldout", 0.25), ("train", 0.75)):
        source = examples.blocks(corpus, split)
        assert abs(len(source.cells) - share * len(table)) <= 1
        block = source.join([source[i] for i in range(len(source))])
        rows = examples.rows(block, length=7, vocab=VOCAB, rng=np.random.default_rng(0))
        assert {
            name: (value.shape[1:], value.dtype) for name, value in rows.items()
        } == examples.spec(7, VOCAB)
        real = rows["segment_ids"] > 0
        assert (rows["input_ids"][~real] == VOCAB.pad).all() and real.sum() <= source.tokens
        columns = (
            rows[name][real].tolist() for name in ("input_ids", "context_ids", "cooccurrences")
        )
        seen += zip(*columns, strict=True)
    expected = [(int(r), int(c), float(np.float32(w))) for r, c, w in cooccurrences.both(table)]
    assert sorted(seen) == sorted(expected) and seen != sorted(seen)


def test_a_corpus_counts_once_and_where_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "Blocks", lambda corpus, split: [*blocks()])
    corpus = store.Corpus(tmp_path, {"vocab": {"size": 40, "pad": 0, "unk": 2}})
    first = corpus.cooccurrence(4)
    monkeypatch.setattr(store, "Blocks", None)
    assert np.array_equal(corpus.cooccurrence(4), first)
    assert [path.name for path in tmp_path.iterdir()] == ["cooccurrence-4.npy"]
    (tmp_path / "cooccurrence-4.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match="cooccurrence-4.npy is damaged"):
        corpus.cooccurrence(4)
    with pytest.raises(UserError, match="cannot write .*cooccurrence-4.npy"):
        store.Corpus(tmp_path / "none", corpus.manifest).cooccurrence(4)
    with pytest.raises(UserError, match="expected 1 to 22"):
        cells.Cells(window=23)
