"""Pairs whose label is their order: what A and B are, how often each label comes, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from test_examples import VOCAB, bounds, make_block, sides

from ptm_jax.core.errors import UserError
from ptm_jax.data import examples as ex
from ptm_jax.data.pairs import OrderedPairs, ThreeWayPairs, XLNetPairs
from ptm_jax.data.store import Block


def cut(kind, block, length, seed=0):
    return kind.rows(block, length=length, vocab=VOCAB, rng=np.random.default_rng(seed))


def owners(block):
    return np.repeat(np.arange(len(block.documents)), np.diff(block.document_tokens))


@pytest.mark.parametrize("length", [24, 64])
@pytest.mark.parametrize("kind", [OrderedPairs(), ThreeWayPairs()], ids=["ordered", "three"])
def test_the_label_is_the_order(kind, length):
    block = make_block(60, 4, longest=8)
    owner, seen = owners(block), set()
    rows = cut(kind, block, length)
    for r in range(len(rows["next_label"])):
        first, second, label = sides(rows, r)
        seen.add(label)
        assert len(first) and len(second) and len(first) + len(second) <= length - 3
        for side in (first, second):
            assert len(set(owner[side - 10])) == 1 and np.all(np.diff(side) == 1)
        same = owner[first[0] - 10] == owner[second[0] - 10]
        assert same == (label < 2)
        front, back = (first, second) if label == 0 else (second, first)
        if label < 2:
            assert front[-1] < back[0]
            if len(first) + len(second) < length - 3:  # nothing was cut off: they touch
                assert front[-1] + 1 == back[0]
    assert seen == ({0, 1} if isinstance(kind, OrderedPairs) else {0, 1, 2})
    again = cut(kind, block, length)
    assert all(np.array_equal(rows[name], again[name]) for name in rows)


def test_rates():
    """Within three standard errors; few chunks of these documents have one sentence."""
    block = make_block(60, 5, longest=8, sentences=400)
    labels = cut(OrderedPairs(), block, 64)["next_label"]
    assert abs(np.mean(labels) - 1 / 2) < 3 * np.sqrt(1 / 4 / len(labels))
    labels = cut(ThreeWayPairs(short_probability=0.0), block, 64)["next_label"]
    rates = np.bincount(labels, minlength=3) / len(labels)
    assert np.all(np.abs(rates - 1 / 3) < 3 * np.sqrt(2 / 9 / len(labels)))


def test_ordered_pairs_have_every_token_once():
    """A row that takes the whole chunk loses nothing; sentences that stand alone are divided."""
    block = make_block(60, 6, longest=8)
    rows = cut(OrderedPairs(short_probability=0.0), block, 2000)
    found = np.sort(rows["input_ids"][rows["input_ids"] >= 10])
    alone = [a for a, b in bounds(block.document_tokens) if b - a == 1]
    assert np.array_equal(found, np.setdiff1d(block.tokens, block.tokens[alone]))
    long = Block(np.arange(10, 60, dtype=np.int32), np.array([50], np.int32), np.array([1], np.int32), np.array([False]))
    rows = cut(OrderedPairs(), long, 64)
    first, second, label = sides(rows, 0)
    assert len(rows["next_label"]) == 1 and sorted([*first, *second]) == list(range(10, 60))
    assert (first[0] == 10) == (label == 0)


def test_unused_sentences_are_put_back():
    block = make_block(60, 5, longest=8, sentences=400)
    rows = cut(ThreeWayPairs(short_probability=0.0), block, 512)
    seen, count = set(), len(rows["next_label"])
    for r in range(count):
        first, second, label = sides(rows, r)
        seen |= set(first.tolist()) | (set() if label == 2 else set(second.tolist()))
    assert len(set(block.tokens.tolist()) - seen) <= 8 * count


def test_a_document_of_one_token_has_no_order():
    block = Block(np.array([10], np.int32), np.array([1], np.int32), np.array([1], np.int32), np.array([False]))
    rows = cut(OrderedPairs(), block, 8)
    assert all(len(value) == 0 for value in rows.values())
    assert len(cut(ThreeWayPairs(), block, 8)["next_label"]) == 1


def test_xlnet_layout():
    block = make_block(40, 7)
    bert, xlnet = cut(ex.SentencePairs(), block, 48), cut(XLNetPairs(), block, 48)
    for name in ("segment_ids", "positions", "next_label"):
        assert np.array_equal(bert[name], xlnet[name])
    for r in range(len(bert["next_label"])):
        real = bert["segment_ids"][r] > 0
        moved = np.roll(bert["input_ids"][r][real], -1)
        assert np.array_equal(xlnet["input_ids"][r][real], moved) and moved[-1] == VOCAB.cls
        types = np.append(bert["token_type_ids"][r][real][1:], 2)
        assert np.array_equal(xlnet["token_type_ids"][r][real], types)
        assert not xlnet["token_type_ids"][r][~real].any()


@pytest.mark.parametrize("kind", [OrderedPairs, ThreeWayPairs])
def test_bad_probability(kind):
    with pytest.raises(UserError, match="expected a probability"):
        kind(short_probability=-0.5)
