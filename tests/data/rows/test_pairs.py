"""Pairs whose label is their order: what A and B are, how often each label comes, nothing lost."""

from itertools import pairwise

import numpy as np
import pytest

from ptm_jax.data.corpora.stream import Stream
from ptm_jax.data.rows.sentences.sentence_pairs import OrderedPairs, ThreeWayPairs, XLNetPairs
from ptm_jax.data.rows.text_pairs import SentencePairs
from support.cutting import FIRST, VOCAB, block, bounds, cut, document, owners, sides


@pytest.mark.parametrize("length", [24, 64])
@pytest.mark.parametrize(
    "kind, random", [(SentencePairs(), 1), (OrderedPairs(), None), (ThreeWayPairs(), 2)]
)
def test_the_label_is_the_order(kind, random, length):
    """0: B follows A; `random`: B is of another document; else A follows B."""
    given = block(60, 4, longest=8)
    owner, seen = owners(given), set()
    rows = cut(kind, given, length)
    for r in range(len(rows["next_label"])):
        first, second, label = sides(rows, r)
        seen.add(label)
        assert len(first) + len(second) <= length - 3
        assert all(len(set(owner[side - FIRST])) == 1 for side in (first, second))
        assert (owner[first[0] - FIRST] == owner[second[0] - FIRST]) == (label != random)
        if label != random:
            front, back = (first, second) if label == 0 else (second, first)
            assert front[-1] < back[0]
            if len(first) + len(second) < length - 3:  # nothing was cut off: they touch
                assert front[-1] + 1 == back[0]
    assert seen == {0, 1, 2 if random == 2 else 1}


@pytest.mark.parametrize("kind, length, count", [
    (SentencePairs(), 64, 2), (OrderedPairs(), 64, 2),
    (ThreeWayPairs(short_probability=0.0), 64, 3), (XLNetPairs(), 128, 2),
])  # fmt: skip
def test_labels_come_equally_often(kind, length, count):
    """Within three standard errors; few chunks of these documents have one sentence, and few rows
    no sentence end."""
    labels = cut(kind, block(60, 5, longest=8, sentences=400), length)["next_label"]
    rates = np.bincount(labels, minlength=count) / len(labels)
    assert np.all(np.abs(rates - 1 / count) < 3 * np.sqrt((1 - 1 / count) / count / len(labels)))


def test_ordered_pairs_have_every_token_once():
    """A row that takes the whole chunk loses nothing; sentences that stand alone are divided."""
    given = block(60, 6, longest=8)
    rows = cut(OrderedPairs(short_probability=0.0), given, 2000)
    found = np.sort(rows["input_ids"][rows["input_ids"] >= FIRST])
    alone = [a for a, b in bounds(given.document_tokens) if b - a == 1]
    assert np.array_equal(found, np.setdiff1d(given.tokens, given.tokens[alone]))
    rows = cut(OrderedPairs(), document(*range(10, 60)), 64)
    first, second, label = sides(rows, 0)
    assert len(rows["next_label"]) == 1 and sorted([*first, *second]) == list(range(10, 60))
    assert (first[0] == 10) == (label == 0)


def test_a_document_of_one_token_has_no_order():
    rows = cut(OrderedPairs(), document(10), 8)
    assert all(len(value) == 0 for value in rows.values())
    assert len(cut(ThreeWayPairs(), document(10), 8)["next_label"]) == 1


def text_of(given):
    """The documents, each with its separator, and where sentences begin: by hand."""
    text, edges, sentence, place = [], [], 0, 0
    for count in given.documents:
        for size in given.sentences[sentence : sentence + count]:
            edges.append(len(text))
            text += given.tokens[place : place + size].tolist()
            place += size
        sentence += count
        edges.append(len(text))
        text.append(VOCAB.sep)
    return text, [*edges, len(text)]


def xlnet_parts(rows, r):
    """[text] A and B of a row, after its frame was checked."""
    ids, types, real = rows["input_ids"][r], rows["token_type_ids"][r], rows["segment_ids"][r] > 0
    assert real[: real.sum()].all() and not types[~real].any() and (np.diff(types[real]) >= 0).all()
    first, second, last = (ids[real & (types == kind)].tolist() for kind in range(3))
    assert last == [VOCAB.cls] and first.pop() == VOCAB.sep and second.pop() == VOCAB.sep
    return first, second


@pytest.mark.parametrize("backward", [0.0, 1.0])
@pytest.mark.parametrize("length", [32, 33, 90])
def test_xlnet_rows_go_on_and_end_in_a_pair(backward, length):
    """As `_split_a_and_b` of zihangdai/xlnet has it: cut points, the random piece, and who loses
    tokens."""
    given = block(30, 7, longest=9)
    text, edges = text_of(given)
    if backward:
        text, edges = text[::-1], [len(text) - edge for edge in edges[::-1]]
    rows = cut(XLNetPairs(from_right=backward), given, length)
    kept, labels = -(-length // 2), rows["next_label"]
    room = length - kept - 3
    assert len(labels) == -(-len(text) // kept)
    assert rows["backward"].tolist() == [int(backward)] * len(labels)
    for r in range(len(text) // kept):
        first, second = xlnet_parts(rows, r)
        begin = (r + 1) * kept
        assert first == text[r * kept : r * kept + len(first)] and len(first) >= kept
        a, b = len(first) - kept, len(second)
        cuts = [edge for edge in edges if begin < edge < begin + room]
        if labels[r] == 0:
            (at,) = (
                edge
                for edge in cuts
                if second and text[edge : edge + b] == second and edge >= begin + a
            )
            whole = [
                at - begin,
                min(edge for edge in edges if edge >= min(begin + room, len(text))) - at,
            ]
            while sum(whole) > room:
                whole[int(whole[0] <= whole[1])] -= 1
            assert whole == [a, b]
        else:
            assert any(text[edge : edge + b] == second for edge in edges)
            assert begin + room > len(text) or a + b == room
    real = (rows["segment_ids"] > 0).sum(1)
    assert (real[: -(-length // kept)] == length).all()


def test_half_of_the_blocks_are_read_from_the_right():
    small = document(*range(10, 30))
    falls = [cut(XLNetPairs(), small, 32, seed)["backward"][0] for seed in range(400)]
    assert abs(np.mean(falls) - 0.5) < 3 * np.sqrt(0.25 / 400)


def test_xlnet_rows_of_a_stream_go_on_from_the_batch_before(corpus):
    """The first halves of a lane's rows are one text, whichever way it is read, until its group
    ends."""
    kind = XLNetPairs()
    stream = Stream(corpus, "train", kind, length=64, batch=4, seed=5)
    batches = [next(stream) for _ in range(30)]
    stream.close()
    directions = set()
    for lane in range(4):
        rows = [batch["input_ids"][lane].tolist() for batch in batches]
        falls = [bool(batch["backward"][lane]) for batch in batches]
        directions |= set(falls)
        # A begins where the first half ends: so does the next row.
        follows = sum(
            row[32] == after[0] and row[33] in (after[1], corpus.vocab.sep)
            for row, after in pairwise(rows)
        )
        assert follows >= 26 and sum(a != b for a, b in pairwise(falls)) <= 3
    assert directions == {False, True}
