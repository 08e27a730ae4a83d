"""Rows against brute force; what holds for every way of cutting is in tests/laws."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Block
from ptm_jax.data.corpora.stream import Stream
from ptm_jax.data.rows import examples as ex
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.sentence_pairs import ThreeWayPairs
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from support.cutting import FIRST, KINDS, VOCAB, block, bounds, cut, document, owners, sides


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("shape", [(1, 5, 1), (1, 500, 1), (1, 3, 40), (300, 4, 2), (7, 90, 3)])
@pytest.mark.parametrize("length", [5, 64])
def test_every_token_is_in_one_place(kind, shape, length):
    documents, longest, sentences = shape
    given = block(documents, 3, longest, sentences)
    ids = cut(kind, given, length)["input_ids"]
    assert np.array_equal(np.sort(ids[ids >= FIRST]), given.tokens)


@pytest.mark.parametrize("length", [2, 7, 64])
def test_coded_rows_begin_with_the_code_of_their_documents(length):
    """Written out: of every code its documents' text in order, in windows, each behind the code."""
    given = block(40, 3)
    codes = np.random.default_rng(0).integers(20, 24, 40)  # small ids that text has too
    given.tokens[given.document_tokens[:-1]] = codes
    given.continued[[0, 17]] = True
    wanted = []
    for code in (None, 20, 21, 22, 23):
        text, size = [], length - (code is not None)
        for number, (start, stop) in enumerate(bounds(given.document_tokens)):
            if (None if given.continued[number] else codes[number]) == code:
                text += given.tokens[start + (code is not None) : stop].tolist()
        wanted += [[code] * (code is not None) + text[i : i + size] for i in range(0, len(text), size)]
    rows = cut(ex.Coded(), given, length)
    real = rows["segment_ids"] > 0
    found = [ids[mask].tolist() for ids, mask in zip(rows["input_ids"], real, strict=True)]
    assert sorted(found) == sorted(wanted) and (length == 2 or found != wanted)
    assert np.array_equal(rows["positions"], np.arange(length) * real)
    assert not rows["input_ids"][~real].any() and np.array_equal(real, np.arange(length) < real.sum(1, keepdims=True))


def test_a_document_of_its_code_alone_gives_no_row():
    given = Block(np.array([10, 11], np.int32), np.ones(2, np.int32), np.ones(2, np.int32), np.zeros(2, bool))
    assert all(len(value) == 0 for value in cut(ex.Coded(), given, 8).values())


@pytest.mark.parametrize("length", [12, 40, 128])
def test_packed_rows(length):
    given = block(40, length)
    owner = owners(given)
    rows = cut(ex.Packed(), given, length)
    for ids, segments in zip(rows["input_ids"], rows["segment_ids"], strict=True):
        for number in range(1, segments.max() + 1):
            piece = ids[segments == number]
            assert piece[0] == VOCAB.cls and piece[-1] == VOCAB.sep and len(piece) > 2
            assert np.array_equal(np.diff(piece[1:-1]), np.ones(len(piece) - 3))  # one run of the text
            assert len(set(owner[piece[1:-1] - FIRST])) == 1  # of one document


@pytest.mark.parametrize("documents, longest, length", [(100, 20, 128), (40, 60, 128), (300, 20, 512), (1500, 10, 128)])
def test_packing_leaves_little_empty(documents, longest, length):
    for seed in range(4):
        segments = cut(ex.Packed(), block(documents, seed, longest), length, seed)["segment_ids"]
        # the last row cannot be filled: a block seldom is a multiple of the length
        assert np.count_nonzero(segments) >= 0.98 * (segments.size - length)


def test_best_fit_is_best_fit():
    """Against the plain statement of the rule, over all rows."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 31, 200)
    row, column, count = packing.best_fit(sizes, 30)
    left, placed = [], {}
    for index in np.argsort(-sizes, kind="stable"):
        fits = [r for r, space in enumerate(left) if space >= sizes[index]]
        if not fits:
            left.append(30)
            fits = [len(left) - 1]
        best = min(left[r] for r in fits)
        placed[index] = best
        left[next(r for r in fits if left[r] == best)] -= sizes[index]
    assert count == len(left)
    assert all(30 - column[i] == space for i, space in placed.items())
    used = np.zeros((count, 30), int)
    for r, c, size in zip(row, column, sizes, strict=True):
        used[r, c : c + size] += 1
    assert used.max() == 1


def test_full_sentences():
    given, length = block(60, 1), 48
    rows = cut(ex.FullSentences(), given, length)
    closing = set((given.document_tokens[1:] + 9).tolist())
    ends = set((given.sentence_starts[1:] + 9).tolist())
    position = FIRST
    for ids, segments in zip(rows["input_ids"], rows["segment_ids"], strict=True):
        ids = ids[segments > 0].tolist()
        assert ids[0] == VOCAB.cls and ids[-1] == VOCAB.sep
        last = None
        for token in ids[1:-1]:
            if token == VOCAB.sep:
                assert last in closing
            else:
                assert token == position and last not in closing  # documents are separated
                position += 1
            last = token if token != VOCAB.sep else None
        assert position - 1 in ends  # whole sentences
        following = next((i for i, start in enumerate(given.sentence_starts[:-1]) if start + FIRST == position), None)
        if following is not None:  # the next sentence would not have fitted
            extra = position - 1 in closing
            assert len(ids) + extra + given.sentences[following] > length
    assert position == FIRST + len(given.tokens)


def test_contiguous():
    given, length = block(9, 2), 32
    rows = cut(ex.Contiguous(), given, length)
    wanted = [t for a, b in bounds(given.document_tokens) for t in [*given.tokens[a:b], VOCAB.eos]]
    real = rows["segment_ids"].reshape(-1) == 1
    assert rows["input_ids"].reshape(-1)[real].tolist() == wanted
    assert real[: len(wanted)].all() and np.array_equal(rows["positions"][0], np.arange(length))
    plain = cut(ex.Contiguous(separator=None), given, length)["input_ids"].reshape(-1)
    assert plain[: len(given.tokens)].tolist() == given.tokens.tolist()


@pytest.mark.parametrize("length", [24, 64])
def test_pairs(length):
    given = block(60, 4, longest=8)
    owner = owners(given)
    rows = cut(ex.SentencePairs(), given, length)
    for r in range(len(rows["next_label"])):
        first, second, label = sides(rows, r)
        assert len(first) + len(second) <= length - 3
        assert all(len(set(owner[side - FIRST])) == 1 for side in (first, second))
        assert (owner[first[0] - FIRST] == owner[second[0] - FIRST]) == (label == 0)
        if label == 0 and len(first) + len(second) < length - 3:  # nothing was cut off: B begins where A ends
            assert second[0] == first[-1] + 1


def test_pair_statistics():
    """Labels are even where a choice is drawn; a tenth of the rows are short."""
    given = block(60, 5, longest=8, sentences=400)
    rows = cut(ex.SentencePairs(), given, 64)
    assert abs(np.mean(rows["next_label"]) - 0.5) < 0.05
    full = np.mean(np.sum(rows["segment_ids"] > 0, 1) > 48)
    short = np.mean(np.sum(cut(ex.SentencePairs(short_probability=1.0), given, 64)["segment_ids"] > 0, 1) > 48)
    assert full > 0.7 > 0.5 > short


@pytest.mark.parametrize("kind, random", [(ex.SentencePairs, 1), (ThreeWayPairs, 2)])
def test_unused_sentences_are_put_back(kind, random):
    """Whatever B was, every sentence is read as A or as the B of its document; truncation takes a few tokens."""
    given = block(60, 5, longest=8, sentences=400)
    rows = cut(kind(short_probability=0.0), given, 512)
    seen, count = set(), len(rows["next_label"])
    for r in range(count):
        first, second, label = sides(rows, r)
        seen |= set(first.tolist()) | (set() if label == random else set(second.tolist()))
    assert len(set(given.tokens.tolist()) - seen) <= 8 * count


def test_truncation_takes_from_the_longer_side():
    rng, fronts = np.random.default_rng(0), collections.Counter()
    for _ in range(2000):
        start, size, b_start, b_size = ex.truncated(0, 10, 100, 104, 11, rng)
        assert (size, b_size, b_start) == (7, 4, 100)
        fronts[start] += 1
    assert set(fronts) == {0, 1, 2, 3} and abs(fronts[0] / 2000 - 1 / 8) < 0.03 and abs(fronts[1] / 2000 - 3 / 8) < 0.04
    for a, b, room in [(9, 9, 5), (3, 20, 6), (20, 3, 6), (4, 5, 9), (1, 9, 2)]:
        _, size, _, b_size = ex.truncated(0, a, 50, 50 + b, room, rng)
        while a + b > room:  # the rule, token by token
            a, b = (a - 1, b) if a > b else (a, b - 1)
        assert (size, b_size) == (a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_one_short_document(kind):
    rows = cut(kind, document(10), 8)
    assert len(rows["input_ids"]) == 1 and 10 in rows["input_ids"]


@pytest.mark.parametrize("kind, vocab, length, message", [
    (ex.Packed(), Vocab(size=10, pad=0), 8, "has no cls token"),
    (ex.Contiguous(), Vocab(size=10, pad=0, cls=1), 8, "has no eos token"),
    (ex.SentencePairs(), Vocab(size=10, pad=0, cls=1), 8, "has no sep token"),
    (ex.Packed(), VOCAB, 2, "have no room beside 2"),
    (ex.SentencePairs(), VOCAB, 4, "have no room"),
    (ex.Coded(), VOCAB, 1, "no room"),
])  # fmt: skip
def test_bad_requests(kind, vocab, length, message):
    with pytest.raises(UserError, match=message):
        kind.spec(length, vocab)


@pytest.mark.parametrize(
    "name", [pytest.param("pydocs", marks=pytest.mark.full), "wikitext-2/valid.txt", "tinyshakespeare"]
)
def test_packing_of_real_text(tmp_path, data, name):
    source = name if name == "pydocs" else str(data / "lm" / name)
    corpus = prepare([source], tmp_path / "corpus", tokenizer=TokenizerSpec(vocab=4096, train_bytes=500_000))
    for length in (128, 512):
        stream, real, places = Stream(corpus, "train", ex.Packed(), length=length, batch=16, seed=1), 0, 0
        for _ in range(-(-corpus.size()["tokens"] // (16 * length))):
            segments = next(stream)["segment_ids"]
            real, places = real + np.count_nonzero(segments), places + segments.size
        stream.close()
        assert real / places >= 0.98
