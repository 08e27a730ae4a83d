"""Facts of tokens against their definition, token by token, for every way of cutting rows."""

import dataclasses
import sys
import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.stream import Stream
from ptm_jax.data.rows import examples as ex
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.sentences.sentence_pairs import OrderedPairs, ThreeWayPairs, XLNetPairs
from ptm_jax.data.rows.sentences.sentence_slots import DocumentSentences, DocumentSlots
from support.cutting import KINDS, VOCAB, block, cut

ALL = ("word_starts", "sentences", "documents")
EVERY = [
    *KINDS,
    OrderedPairs(),
    ThreeWayPairs(),
    XLNetPairs(),
    DocumentSentences(),
    DocumentSlots(sentences=4, width=10),
]


def facts(ids, given):
    """(word start, sentence, document) of every token of a row of text in which all tokens
    differ."""
    firsts = set((given.sentence_starts[:-1] + 10).tolist())
    owner = np.repeat(np.arange(len(given.documents)), np.diff(given.document_tokens))
    found, sentence, document, last, home = [], 0, 0, None, None
    for token in ids.tolist():
        if token < 10:
            found.append((0, 0, 0))
            last = None
            continue
        fresh = token in firsts or last is None or token != last + 1
        sentence += fresh
        document += owner[token - 10] != home
        home = owner[token - 10]
        found.append((int(fresh or given.words[token]), sentence, document))
        last = token
    return np.array(found)


@pytest.mark.full
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("longest", [5, 60])
def test_facts_of_tokens(kind, longest):
    given = block(30, 1, longest)
    plain, rows = cut(kind, given), cut(Annotated(examples=kind, fields=ALL), given)
    assert list(rows) == [*plain, *ALL]
    assert all(
        np.array_equal(rows[name], plain[name]) and rows[name].dtype == np.int32 for name in plain
    )
    for r, ids in enumerate(rows["input_ids"]):
        got = np.stack([rows[name][r] for name in ALL], 1)
        assert np.array_equal(got, facts(ids, given))


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: type(kind).__name__)
def test_tokens_that_occur_twice_change_nothing(kind):
    """Places are followed, not ids: also ids that are special."""
    given = block(30, 2)
    few = np.random.default_rng(0).permutation(len(given.tokens)).astype(np.int32) % 30
    words = given.words.copy()
    words[:30] = np.arange(30) % 3 == 0
    other = dataclasses.replace(given, tokens=few, words=words)
    other_words = dataclasses.replace(
        given, words=np.where(np.arange(VOCAB.size) < 10, False, given.words)
    )
    other_words.words[given.tokens] = words[few]
    wanted, rows = (cut(Annotated(examples=kind, fields=ALL), b) for b in (other_words, other))
    text = wanted["input_ids"] >= 10
    assert np.array_equal(rows["input_ids"][text], few[wanted["input_ids"][text] - 10])
    assert np.array_equal(rows["input_ids"][~text], wanted["input_ids"][~text])
    assert all(np.array_equal(rows[name], wanted[name]) for name in ALL)


def test_stream_hands_over_the_words(corpus):
    """Whole words of the tokenizer's text, joined again, are the words of the pieces."""
    tokenizer = corpus.tokenizer()
    stream = Stream(corpus, "train", Annotated(), length=64, batch=16, seed=1)
    batch = next(stream)
    stream.close()
    assert batch["word_starts"].shape == (16, 64) and batch["sentences"].max() > 1
    for ids, starts, segments in zip(
        batch["input_ids"], batch["word_starts"], batch["segment_ids"], strict=True
    ):
        last = None
        for index, start, segment in zip(
            ids.tolist(), starts.tolist(), segments.tolist(), strict=True
        ):
            piece = tokenizer.piece(index)
            if not segment or piece in tokenizer.special_pieces:
                assert not start
                last = None
            else:
                assert start == (not piece.startswith("##") or last is None)
                last = piece


def test_one_field_and_passing_on():
    given = dataclasses.replace(block(30, 4), words=None)
    only = Annotated(fields=("sentences",))
    assert set(cut(only, given)) == {"input_ids", "segment_ids", "positions", "sentences"}
    assert Annotated().needs_words and not only.needs_words
    assert (
        Annotated(examples=ex.Contiguous(continuing=True)).continuing and not Annotated().continuing
    )
    with pytest.raises(UserError, match="table of the tokenizer"):
        cut(Annotated(), given)
    with pytest.raises(UserError, match="Did you mean 'sentences'"):
        Annotated(fields=("sentence",))


class Pieces:
    """A tokenizer's facts: characters, pieces that go on, and special tokens."""

    pieces = ("[PAD]", "[CLS]", "[SEP]", "使", "用", "语", "言", "模", "型", "run", "##ning")
    special_pieces = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}


def test_words_are_those_of_a_segmenter(monkeypatch):
    """The example of Cui et al. 2019, Table 1; Latin pieces that go on begin no word whatever the
    segmenter cuts."""
    shown = []

    def cut(text):
        shown.append(text)
        return {"使用语言模型": ["使用", "语言", "模型"], "running模型": ["runn", "ing", "模型"]}[
            text
        ]

    fake = types.ModuleType("rjieba")
    fake.cut = cut
    monkeypatch.setitem(sys.modules, "rjieba", fake)
    kind = Annotated(fields=("word_starts",), segmenter="rjieba")
    words = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0], bool)
    tokens = np.array([3, 4, 5, 6, 7, 8, 9, 10, 7, 8], np.int32)
    given = Block(
        tokens, np.array([6, 4], np.int32), np.array([2], np.int32), np.zeros(1, bool), words=words
    )
    given = dataclasses.replace(given, spellings=kind.table(Pieces))
    vocab = Vocab(size=11, pad=0, cls=1, sep=2)
    rows = kind.rows(given, length=12, vocab=vocab, rng=np.random.default_rng(0))
    assert shown == ["使用语言模型", "running模型"]
    assert rows["word_starts"].tolist() == [[0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0]]
    plain = Annotated(fields=("word_starts",))
    assert (
        plain.rows(given, length=12, vocab=vocab, rng=np.random.default_rng(0))["word_starts"].sum()
        == 9
    )
    assert (
        kind.spells
        and not plain.spells
        and not Annotated(fields=("sentences",), segmenter="jieba").spells
    )


def test_a_segmenter_that_is_absent_or_unknown(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    given = block(30, 0, characters=48)
    with pytest.raises(UserError, match="jieba is not installed; pip install jieba"):
        cut(Annotated(segmenter="jieba"), given)
    with pytest.raises(UserError, match="segmenter"):
        Annotated(segmenter="jeiba")
    with pytest.raises(UserError, match="needs the table"):
        cut(Annotated(segmenter="jieba"), dataclasses.replace(block(30, 0), spellings=None))
