"""ERNIE 2.0's rows: each task against its description, with a text whose tokens all differ."""

import dataclasses
import itertools
import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.sentences.several_tasks import (
    DiscoursePairs,
    DistancePairs,
    Elsewhere,
    RelevancePairs,
    Reordered,
    SeveralTasks,
)
from ptm_jax.statistics.connectives import Connectives
from support import cutting
from support.cutting import VOCAB


def text(*documents):
    """A block of documents, each a list of sentences."""
    flat = [sentence for document in documents for sentence in document]
    return Block(
        np.concatenate(flat).astype(np.int32),
        np.array([len(sentence) for sentence in flat], np.int32),
        np.array([len(document) for document in documents], np.int32),
        np.zeros(len(documents), bool),
    )


def test_a_token_that_occurs_in_another_sentence():
    given = text([[10, 11, 11], [10, 12], [13]], [[12, 14], [13, 13]])
    assert Elsewhere().values(given).tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_the_class_of_an_order():
    """1 class of one segment, 2 of two, 6 of three: each segment is a run of the text."""
    kind = Reordered(segments=3)
    assert kind.classes == 9
    orders = [o for n in (1, 2, 3) for o in itertools.permutations(range(n))]
    assert [kind.number(order) for order in orders] == [*range(9)]
    given, counts = cutting.block(documents=200, seed=2), np.zeros(9, int)
    made = cutting.cut(kind, given, 24)
    edges = {*(given.tokens[given.sentence_starts[:-1]].tolist())}
    for ids, label in zip(cutting.texts(made), made["next_label"], strict=True):
        runs = np.split(ids[1:-1], np.flatnonzero(np.diff(ids[1:-1]) != 1) + 1)
        first = sorted(run[0] for run in runs)
        ranks, order = [first.index(run[0]) for run in runs], orders[label]
        # neighbours that stand in order look like one run
        joined = [
            n for n, (a, b) in enumerate(zip((-9, *order), order, strict=False)) if b != a + 1
        ]
        kept = sorted(order[n] for n in joined)
        assert ranks == [kept.index(order[n]) for n in joined]
        assert ids[0] == VOCAB.cls and ids[-1] == VOCAB.sep and {*first} <= edges
        counts[label] += 1
    assert counts.min() > 0


def test_pairs_by_their_distance():
    given = cutting.block(documents=60, seed=3)
    owner, starts = cutting.owners(given), given.sentence_starts
    made, counts = cutting.cut(DistancePairs(), given, 400), np.zeros(3, int)
    for r in range(len(made["next_label"])):
        a, b, label = cutting.sides(made, r)
        a, b = a - cutting.FIRST, b - cutting.FIRST
        same = owner[a[0]] == owner[b[0]]
        between = np.searchsorted(starts, [a[0], a[-1], b[0], b[-1]], "right") - 1
        gap = between[2] - between[1] if b[0] > a[0] else between[0] - between[3]
        assert same == (label < 2)
        assert gap == 1 if label == 0 else label == 2 or gap > 1
        counts[label] += 1
    assert counts.min() > 10


def test_the_connective_is_removed():
    table = np.array([[50, -1], [51, 52], [51, -1]], np.int32)
    known = dataclasses.replace(Connectives(words=("a", "b c", "b")), _arrays={"values": table})
    given = text([[10], [50, 11], [51, 52, 12], [51], [13]], [[51, 14], [51, 53]])
    made = cutting.cut(DiscoursePairs(connectives=known), given, 12)
    c, s = VOCAB.cls, VOCAB.sep
    assert cutting.texts(made) == [
        [c, 10, s, 11, s], [c, 50, 11, s, 12, s], [c, 51, s, 13, s], [c, 51, 14, s, 53, s],
    ]  # fmt: skip
    assert made["next_label"].tolist() == [1, 2, 0, 3]


def test_connectives_of_a_tokenizer():
    ids = {" but": [7], " in fact": [8, 9], " yet": [1]}
    tokenizer = types.SimpleNamespace(
        encode_batch=lambda texts: [np.array(ids[t]) for t in texts], vocab=VOCAB
    )
    known = Connectives(words=("but", "in fact", "yet")).of_tokenizer(tokenizer)
    assert known.tolist() == [[7, -1], [8, 9], [-1, -1]]


def test_a_title_and_what_is_relevant():
    given = cutting.block(documents=150, seed=4)
    owner, starts = cutting.owners(given), given.sentence_starts
    first = given.document_tokens[:-1]
    made, counts = cutting.cut(RelevancePairs(), given, 400), np.zeros(3, int)
    for r in range(len(made["next_label"])):
        a, b, label = cutting.sides(made, r)
        a, b = a - cutting.FIRST, b - cutting.FIRST
        assert a[0] in first and np.searchsorted(starts, a[-1], "right") - 1 in np.searchsorted(
            starts, first
        )
        assert (owner[a[0]] == owner[b[0]]) == (label < 2)
        if label < 2:
            assert (b[0] == a[-1] + 1) == (label == 0)
        counts[label] += 1
    assert counts.min() > 10


def test_rows_of_several_tasks():
    parts = (Packed(), Reordered(), DistancePairs())
    given = cutting.block(documents=40, seed=5)
    made = cutting.cut(SeveralTasks(parts=parts, shares=(1.0, 2.0, 1.0)), given, 40)
    assert np.array_equal(made["task_type_ids"], np.repeat(made["task"][:, None], 40, 1))
    assert {*made["task"].tolist()} == {0, 1, 2}
    assert not made["next_label"][made["task"] == 0].any()
    assert not made["token_type_ids"][made["task"] < 2].any()
    owner = cutting.owners(given)
    of = [
        {owner[i - cutting.FIRST] for ids in made["input_ids"][made["task"] == n]
         for i in ids if i >= cutting.FIRST}
        for n in (0, 1)
    ]  # fmt: skip
    assert not of[0] & of[1]
    alone = cutting.cut(SeveralTasks(parts=parts, shares=(1.0, 0.0, 0.0)), given, 40)
    assert not alone["task"].any()
    text = alone["input_ids"][alone["input_ids"] >= cutting.FIRST]
    assert np.array_equal(np.sort(text), given.tokens)
    for wrong in ((1.0,), (0.0, 0.0, 0.0), (1.0, -1.0, 1.0)):
        with pytest.raises(UserError, match="share"):
            SeveralTasks(parts=parts, shares=wrong)
    with pytest.raises(UserError, match="expected 1 to 6"):
        Reordered(segments=7)
