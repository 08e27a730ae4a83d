"""Rows against brute force: every token in one place, segments and positions right, few places empty."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data import examples as ex
from ptm_jax.data import rows as filling
from ptm_jax.data.prepare import prepare
from ptm_jax.data.store import Block
from ptm_jax.data.stream import Stream
from ptm_jax.data.tokenizers import TokenizerSpec

VOCAB = Vocab(size=100_000, pad=0, unk=1, cls=2, sep=3, mask=4, eos=5)
KINDS = [ex.Packed(), ex.Packed(begin=None, end="eos"), ex.FullSentences(), ex.Contiguous(), ex.SentencePairs()]


def make_block(documents: int, seed: int, longest: int = 20, sentences: int = 12) -> Block:
    """A block in which all tokens differ, from 10 on."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, sentences + 1, documents).astype(np.int32)
    lengths = rng.integers(1, longest + 1, counts.sum()).astype(np.int32)
    tokens = np.arange(10, 10 + lengths.sum(), dtype=np.int32)
    return Block(tokens, lengths, counts, np.zeros(documents, bool))


def cut(kind, block, length, seed=0):
    return kind.rows(block, length=length, vocab=VOCAB, rng=np.random.default_rng(seed))


def bounds(starts):
    return list(zip(starts.tolist(), starts.tolist()[1:], strict=False))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [8, 33, 128])
def test_spec_is_what_rows_are(kind, length):
    rows = cut(kind, make_block(20, 1), length)
    spec = kind.spec(length, VOCAB)
    assert list(spec) == list(rows)
    for name, (shape, dtype) in spec.items():
        assert rows[name].shape[1:] == shape and rows[name].dtype == dtype
    padding = rows["segment_ids"] == 0
    assert np.array_equal(padding, rows["input_ids"] == VOCAB.pad)
    assert not rows["positions"][padding].any()
    again = cut(kind, make_block(20, 1), length)
    assert all(np.array_equal(rows[name], again[name]) for name in rows)


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("shape", [(1, 5, 1), (1, 500, 1), (1, 3, 40), (50, 20, 12), (300, 4, 2), (7, 90, 3)])
@pytest.mark.parametrize("length", [5, 16, 64])
def test_every_token_is_in_one_place(kind, shape, length):
    documents, longest, sentences = shape
    block = make_block(documents, 3, longest, sentences)
    ids = cut(kind, block, length)["input_ids"]
    assert np.array_equal(np.sort(ids[ids >= 10]), block.tokens)


@pytest.mark.parametrize("length", [2, 7, 64])
def test_coded_rows_begin_with_the_code_of_their_documents(length):
    """Written out: of every code its documents' text in order, in windows, each behind the code."""
    block = make_block(40, 3)
    codes = np.random.default_rng(0).integers(20, 24, 40)  # small ids that text has too
    block.tokens[block.document_tokens[:-1]] = codes
    block.continued[[0, 17]] = True
    wanted = []
    for code in (None, 20, 21, 22, 23):
        text, size = [], length - (code is not None)
        for number, (start, stop) in enumerate(bounds(block.document_tokens)):
            if (None if block.continued[number] else codes[number]) == code:
                text += block.tokens[start + (code is not None) : stop].tolist()
        wanted += [[code] * (code is not None) + text[i : i + size] for i in range(0, len(text), size)]
    rows = cut(ex.Coded(), block, length)
    real = rows["segment_ids"] > 0
    found = [ids[mask].tolist() for ids, mask in zip(rows["input_ids"], real, strict=True)]
    assert sorted(found) == sorted(wanted) and (length == 2 or found != wanted)
    assert np.array_equal(rows["positions"], np.arange(length) * real)
    assert not rows["input_ids"][~real].any() and np.array_equal(real, np.arange(length) < real.sum(1, keepdims=True))


def test_a_document_of_its_code_alone_gives_no_row():
    block = Block(np.array([10, 11], np.int32), np.ones(2, np.int32), np.ones(2, np.int32), np.zeros(2, bool))
    rows = cut(ex.Coded(), block, 8)
    assert all(len(value) == 0 for value in rows.values())
    with pytest.raises(UserError, match="no room"):
        ex.Coded().spec(1, VOCAB)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [12, 40, 128])
def test_packed_rows(seed, length):
    block = make_block(40, seed)
    owner = np.repeat(np.arange(40), np.diff(block.document_tokens))
    rows = cut(ex.Packed(), block, length, seed)
    for ids, segments, positions in zip(rows["input_ids"], rows["segment_ids"], rows["positions"], strict=True):
        used = segments.max()
        real = int(np.count_nonzero(segments))
        assert np.all(segments[:real] > 0) and np.all(np.diff(segments[:real]) >= 0)  # padding is at the end
        for number in range(1, used + 1):
            where = np.flatnonzero(segments == number)
            piece = ids[where]
            assert np.array_equal(where, np.arange(where[0], where[0] + len(where)))
            assert np.array_equal(positions[where], np.arange(len(where)))
            assert piece[0] == VOCAB.cls and piece[-1] == VOCAB.sep and len(piece) > 2
            assert np.array_equal(np.diff(piece[1:-1]), np.ones(len(piece) - 3))  # one run of the text
            assert len(set(owner[piece[1:-1] - 10])) == 1  # of one document


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("documents, longest, length", [(100, 20, 128), (40, 60, 128), (300, 20, 512), (1500, 10, 128)])
def test_packing_leaves_little_empty(seed, documents, longest, length):
    segments = cut(ex.Packed(), make_block(documents, seed, longest), length, seed)["segment_ids"]
    # the last row cannot be filled: a block seldom is a multiple of the length
    assert np.count_nonzero(segments) >= 0.98 * (segments.size - length)


def test_best_fit_is_best_fit():
    """Against the plain statement of the rule, over all rows."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 31, 200)
    row, column, count = filling.best_fit(sizes, 30)
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


@pytest.mark.parametrize("seed", range(3))
def test_full_sentences(seed):
    block, length = make_block(30, seed), 48
    rows = cut(ex.FullSentences(), block, length)
    closing = set((block.document_tokens[1:] + 9).tolist())
    ends = set((block.sentence_starts[1:] + 9).tolist())
    position = 10
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
        following = next((i for i, start in enumerate(block.sentence_starts[:-1]) if start + 10 == position), None)
        if following is not None:  # the next sentence would not have fitted
            extra = position - 1 in closing
            assert len(ids) + extra + block.sentences[following] > length
    assert position == 10 + len(block.tokens)


def test_contiguous():
    block, length = make_block(9, 2), 32
    rows = cut(ex.Contiguous(), block, length)
    wanted = [t for a, b in bounds(block.document_tokens) for t in [*block.tokens[a:b], VOCAB.eos]]
    real = rows["segment_ids"].reshape(-1) == 1
    assert rows["input_ids"].reshape(-1)[real].tolist() == wanted
    assert real[: len(wanted)].all() and np.array_equal(rows["positions"][0], np.arange(length))
    assert cut(ex.Contiguous(separator=None), block, length)["input_ids"].reshape(-1)[: len(block.tokens)].tolist() == (
        block.tokens.tolist()
    )


def sides(rows, r):
    """(A, B, label) of a row, its frame checked."""
    real = rows["segment_ids"][r] > 0
    ids, types = rows["input_ids"][r][real], rows["token_type_ids"][r][real]
    split = int(np.argmax(types))
    assert ids[0] == VOCAB.cls and ids[split - 1] == VOCAB.sep and ids[-1] == VOCAB.sep
    assert not types[:split].any() and types[split:].all() and not rows["token_type_ids"][r][~real].any()
    assert np.array_equal(rows["positions"][r][real], np.arange(len(ids)))
    return ids[1 : split - 1], ids[split:-1], int(rows["next_label"][r])


@pytest.mark.parametrize("length", [24, 64])
def test_pairs(length):
    block = make_block(60, 4, longest=8)
    owner = np.repeat(np.arange(60), np.diff(block.document_tokens))
    rows = cut(ex.SentencePairs(), block, length)
    for r in range(len(rows["next_label"])):
        first, second, label = sides(rows, r)
        assert len(first) and len(second) and len(first) + len(second) <= length - 3
        for side in (first, second):
            assert len(set(owner[side - 10])) == 1 and np.all(np.diff(side) == 1)
        if label == 0:
            assert owner[first[0] - 10] == owner[second[0] - 10]
            if len(first) + len(second) < length - 3:  # nothing was cut off: B begins where A ends
                assert second[0] == first[-1] + 1
        else:
            assert owner[first[0] - 10] != owner[second[0] - 10]


def test_pair_statistics():
    """Labels are even where a choice is drawn; a tenth of the rows are short; no sentence is lost."""
    block = make_block(60, 5, longest=8, sentences=400)
    rows = cut(ex.SentencePairs(), block, 64)
    assert abs(np.mean(rows["next_label"]) - 0.5) < 0.05
    full = np.mean(np.sum(rows["segment_ids"] > 0, 1) > 48)
    short = np.mean(np.sum(cut(ex.SentencePairs(short_probability=1.0), block, 64)["segment_ids"] > 0, 1) > 48)
    assert full > 0.7 > 0.5 > short


def test_unused_sentences_are_put_back():
    """Whatever B was, every sentence is read as A or as the B that follows it; truncation takes a few tokens."""
    block = make_block(60, 5, longest=8, sentences=400)
    rows = cut(ex.SentencePairs(short_probability=0.0), block, 512)
    seen, count = set(), len(rows["next_label"])
    for r in range(count):
        first, second, label = sides(rows, r)
        seen |= set(first.tolist()) | (set() if label else set(second.tolist()))
    assert len(set(block.tokens.tolist()) - seen) <= 8 * count


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
    block = Block(np.array([10], np.int32), np.array([1], np.int32), np.array([1], np.int32), np.array([False]))
    rows = cut(kind, block, 8)
    assert len(rows["input_ids"]) == 1 and 10 in rows["input_ids"]


@pytest.mark.parametrize("kind, vocab, length, message", [
    (ex.Packed(), Vocab(size=10, pad=0), 8, "has no cls token"),
    (ex.Contiguous(), Vocab(size=10, pad=0, cls=1), 8, "has no eos token"),
    (ex.SentencePairs(), Vocab(size=10, pad=0, cls=1), 8, "has no sep token"),
    (ex.Packed(), VOCAB, 2, "have no room beside 2"),
    (ex.SentencePairs(), VOCAB, 4, "have no room"),
])  # fmt: skip
def test_bad_requests(kind, vocab, length, message):
    with pytest.raises(UserError, match=message):
        kind.spec(length, vocab)


def test_bad_probability():
    with pytest.raises(UserError, match="expected a probability"):
        ex.SentencePairs(next_probability=1.5)


@pytest.mark.parametrize(
    "name", [pytest.param("pydocs", marks=pytest.mark.full), "wikitext-2/valid.txt", "tinyshakespeare"]
)
@pytest.mark.parametrize("length", [128, 512])
def test_packing_of_real_text(tmp_path_factory, shared, name, length):
    source = name if name == "pydocs" else str(shared / "lm" / name)
    out = tmp_path_factory.getbasetemp() / name.replace("/", "-")
    corpus = prepare([source], out, tokenizer=TokenizerSpec(vocab=4096, train_bytes=500_000))
    stream, real, places = Stream(corpus, "train", ex.Packed(), length=length, batch=16, seed=1), 0, 0
    for _ in range(-(-corpus.size()["tokens"] // (16 * length))):
        segments = next(stream)["segment_ids"]
        real, places = real + np.count_nonzero(segments), places + segments.size
    stream.close()
    assert real / places >= 0.98
