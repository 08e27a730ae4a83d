"""Rows against brute force; what holds for every way of cutting is in tests/laws."""

import collections

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.stream import measure
from ptm_jax.data.rows import examples as ex
from ptm_jax.data.rows import packing, text_pairs
from ptm_jax.data.rows.sentences.sentence_pairs import OrderedPairs, ThreeWayPairs, XLNetPairs
from ptm_jax.data.rows.sentences.sentence_slots import DocumentSentences, DocumentSlots
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from support.cutting import FIRST, KINDS, VOCAB, block, bounds, cut, owners, sides, texts


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 5, 1), (1, 500, 1), (1, 3, 40), (300, 4, 2), (7, 90, 3)]
)
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
        wanted += [
            [code] * (code is not None) + text[i : i + size] for i in range(0, len(text), size)
        ]
    found = texts(cut(ex.Coded(), given, length))
    assert sorted(found) == sorted(wanted) and (length == 2 or found != wanted)


def test_a_document_of_its_code_alone_gives_no_row():
    given = Block(
        np.array([10, 11], np.int32), np.ones(2, np.int32), np.ones(2, np.int32), np.zeros(2, bool)
    )
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
            assert np.array_equal(
                np.diff(piece[1:-1]), np.ones(len(piece) - 3)
            )  # one run of the text
            assert len(set(owner[piece[1:-1] - FIRST])) == 1  # of one document


@pytest.mark.parametrize(
    "documents, longest, length", [(100, 20, 128), (40, 60, 128), (300, 20, 512), (1500, 10, 128)]
)
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
    left, spaces = [], {}
    for index in np.argsort(-sizes, kind="stable"):
        fits = [space for space in left if space >= sizes[index]]
        spaces[index] = min(fits, default=30)
        if fits:
            left.remove(spaces[index])
        left.append(spaces[index] - sizes[index])
    assert count == len(left)
    assert all(30 - column[i] == space for i, space in spaces.items())
    used = np.zeros((count, 30), int)
    for r, c, size in zip(row, column, sizes, strict=True):
        used[r, c : c + size] += 1
    assert used.max() == 1


def test_full_sentences():
    """Written out: whole sentences in order as long as they fit, with a separator between two
    documents."""
    given, length, wanted, row = block(60, 1), 48, [], []
    for number, (start, stop) in enumerate(bounds(given.sentence_starts)):
        sentence, between = (
            given.tokens[start:stop].tolist(),
            [VOCAB.sep] * (number in given.document_starts),
        )
        if len(row) + len(between) + len(sentence) > length - 2:
            wanted.append([VOCAB.cls, *row, VOCAB.sep])
            row = []
        row += between + sentence if row else sentence
    assert texts(cut(ex.FullSentences(), given, length)) == [*wanted, [VOCAB.cls, *row, VOCAB.sep]]


def test_contiguous():
    given, length = block(9, 2), 32
    wanted = [t for a, b in bounds(given.document_tokens) for t in [*given.tokens[a:b], VOCAB.eos]]
    assert sum(texts(cut(ex.Contiguous(), given, length)), []) == wanted
    plain = cut(ex.Contiguous(separator=None), given, length)["input_ids"].reshape(-1)
    assert plain[: len(given.tokens)].tolist() == given.tokens.tolist()


def test_short_pairs():
    given = block(60, 5, longest=8, sentences=400)
    tenth, every = (
        cut(text_pairs.SentencePairs(short_probability=p), given, 64)["segment_ids"]
        for p in (0.1, 1.0)
    )
    assert np.mean((tenth > 0).sum(1) > 48) > 0.7 > 0.5 > np.mean((every > 0).sum(1) > 48)


@pytest.mark.parametrize("kind, random", [(text_pairs.SentencePairs, 1), (ThreeWayPairs, 2)])
def test_unused_sentences_are_put_back(kind, random):
    """Whatever B was, every sentence is read as A or as the B of its document; truncation takes a
    few tokens."""
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
        start, size, b_start, b_size = text_pairs.truncated((0, 10), (100, 104), 11, rng)
        assert (size, b_size, b_start) == (7, 4, 100)
        fronts[start] += 1
    assert (
        set(fronts) == {0, 1, 2, 3}
        and abs(fronts[0] / 2000 - 1 / 8) < 0.03
        and abs(fronts[1] / 2000 - 3 / 8) < 0.04
    )
    for a, b, room in [(9, 9, 5), (3, 20, 6), (20, 3, 6), (4, 5, 9), (1, 9, 2)]:
        _, size, _, b_size = text_pairs.truncated((0, a), (50, 50 + b), room, rng)
        while a + b > room:  # the rule, token by token
            a, b = (a - 1, b) if a > b else (a, b - 1)
        assert (size, b_size) == (a, b)


@pytest.mark.parametrize("call, message", [
    (lambda: ex.Contiguous().spec(8, Vocab(size=10, pad=0, cls=1)), "has no eos token"),
    (lambda: text_pairs.SentencePairs().spec(8, Vocab(size=10, pad=0, cls=1)), "has no sep token"),
    (lambda: ex.Packed().spec(2, VOCAB), "have no room beside 2"),
    (lambda: text_pairs.SentencePairs().spec(4, VOCAB), "have no room"),
    (lambda: ex.Coded().spec(1, VOCAB), "no room"),
    (lambda: DocumentSentences().spec(2, VOCAB), "have no room beside 2"),
    (lambda: DocumentSlots(sentences=4, width=8).spec(64, VOCAB),
    "set the length of the phase to 32"),
    (lambda: DocumentSlots(sentences=0), "expected at least 1 and 3"),
    (lambda: XLNetPairs().spec(8, VOCAB), "no room"),
    (lambda: XLNetPairs(reuse=1.5), "expected a number"),
    (lambda: XLNetPairs(from_right=-0.1), "expected a number"),
    (lambda: OrderedPairs(short_probability=-0.5), "expected a probability"),
    (lambda: text_pairs.SentencePairs(next_probability=1.5), "expected a probability"),
])  # fmt: skip
def test_bad_requests(call, message):
    with pytest.raises(UserError, match=message):
        call()


@pytest.mark.full
@pytest.mark.parametrize("name", ["pydocs", "wikitext-2/valid.txt", "tinyshakespeare"])
def test_packing_of_real_text(tmp_path, data, name):
    source = name if name == "pydocs" else str(data / "lm" / name)
    corpus = prepare(
        [source], tmp_path / "corpus", tokenizer=TokenizerSpec(vocab=4096, train_bytes=500_000)
    )
    for length in (128, 512):
        assert measure(corpus, ex.Packed(), length=length, batch=16)["utilisation"] >= 0.98
