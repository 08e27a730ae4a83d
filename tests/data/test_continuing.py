"""Rows that go on from the batch before: how far, from any process count, after a restart, and nothing lost."""

from __future__ import annotations

import json

import grain
import numpy as np
import pytest
from test_stream import KINDS, made, same, take, text_tokens

from ptm_jax.core.errors import UserError
from ptm_jax.data import examples as ex
from ptm_jax.data import store
from ptm_jax.data import stream as streams
from ptm_jax.data.annotated import Annotated

KIND = ex.Contiguous(separator="sep", continuing=True)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(streams, "GROUP_ROWS", 8)


def blocks_of(corpus, split="train"):
    """The text of every block in the order of the corpus: each document and its separator."""
    source, found = grain.sources.ArrayRecordDataSource(corpus.paths(split)), []
    for i in range(len(source)):
        block = store.from_bytes(source[i])
        documents = np.split(block.tokens, block.document_tokens[1:-1])
        found.append(np.concatenate([[*d, corpus.vocab.sep] for d in documents]).astype(np.int32))
    return found


def rows_of(text, length):
    """The rows of a text, without padding."""
    return [text[i : i + length].tolist() for i in range(0, len(text), length)]


def lanes_of(batches):
    """The rows of every lane, without padding; the empty ones at the end of an epoch are left out."""
    found = []
    for b in range(len(batches[0]["rows"])):
        rows = [x["input_ids"][b][x["segment_ids"][b] > 0].tolist() for x in batches]
        found.append([row for row in rows if row])
    return found


@pytest.mark.parametrize("batch, length, size", [(4, 64, 1), (2, 128, 2), (16, 64, 1)])
def test_a_row_goes_on_from_the_batch_before(corpus, batch, length, size):
    """Every lane is a sequence of groups, `size` blocks that follow each other, each cut from its start to its end."""
    texts = blocks_of(corpus)
    runs = [np.concatenate(texts[i : i + size]) for i in range(0, len(texts), size)]
    wanted = {json.dumps(rows_of(run, length)) for run in runs}
    assert len(wanted) == len(runs)
    sizes = {json.loads(run)[0].__repr__(): len(json.loads(run)) for run in wanted}  # by their first rows
    found, lanes = [], lanes_of(list(made(corpus, KIND, batch=batch, length=length, epochs=1)))
    for rows in lanes:
        while rows:
            count = sizes[repr(rows[0])]
            found.append(json.dumps(rows[:count]))
            rows = rows[count:]
    assert sorted(found) == sorted(wanted)
    endless = lanes_of(take(made(corpus, KIND, batch=batch, length=length), 12))
    assert all(rows == lane[:12] for rows, lane in zip(endless, lanes, strict=True))


@pytest.mark.parametrize("batch, length", [(64, 32), (300, 64)])
def test_fewer_blocks_than_rows(corpus, batch, length):
    """Lanes share the rows of a block; consecutive ones still continue each other."""
    blocks = corpus.size()["blocks"]
    parts = max(1, -(-batch // blocks))
    wanted = []
    for text in blocks_of(corpus):
        rows = rows_of(text, length)
        wanted += [rows[len(rows) * p // parts : len(rows) * (p + 1) // parts] for p in range(parts)]
    lanes, found = lanes_of(list(made(corpus, KIND, batch=batch, length=length, epochs=1))), []
    for rows in lanes:
        while rows:
            group = next(w for w in wanted if w and rows[: len(w)] == w)
            found.append(group)
            rows = rows[len(group) :]
    assert sorted(found) == sorted(w for w in wanted if w)


@pytest.mark.parametrize("split, batch", [("train", 16), ("heldout", 16), ("heldout", 64)])
def test_one_epoch_has_every_token_once(corpus, split, batch):
    found = list(made(corpus, KIND, split, batch=batch, epochs=1))
    assert np.array_equal(text_tokens(corpus, found), corpus.counts(split))
    wanted = list(made(corpus, ex.Contiguous(separator="sep"), split, batch=batch, epochs=1))
    assert all(x.keys() == y.keys() for x, y in zip(found, wanted, strict=False))


@pytest.mark.parametrize("processes", [2, 16])
@pytest.mark.parametrize("epochs", [None, 1])
@pytest.mark.parametrize("kind", [KIND, Annotated(examples=KIND)], ids=["plain", "annotated"])
def test_process_count_does_not_matter(corpus, processes, epochs, kind):
    count = 12 if epochs is None else 1000
    whole = read(made(corpus, kind, epochs=epochs), count)
    parts = [
        read(made(corpus, kind, epochs=epochs, process_index=p, process_count=processes), count)
        for p in range(processes)
    ]
    joined = [{k: np.concatenate([b[k] for b in row]) for k in row[0]} for row in zip(*parts, strict=True)]
    assert same(whole, joined)


def read(stream, count):
    found = [batch for batch, _ in zip(stream, range(count), strict=False)]
    stream.close()
    return found


@pytest.mark.parametrize("epochs", [None, 1])
@pytest.mark.parametrize("after", [0, 3, 9])
def test_restore(corpus, epochs, after):
    stream = made(corpus, KIND, epochs=epochs)
    for _ in range(after):
        next(stream)
    state = json.loads(json.dumps(stream.state()))
    wanted = take(stream, 6)
    fresh = made(corpus, KIND, epochs=epochs)
    fresh.restore(state)
    assert same(take(fresh, 6), wanted)


@pytest.mark.parametrize("before, after", [(1, 4), (4, 2)])
@pytest.mark.parametrize("merged", [True, False])
def test_restore_on_another_process_count(corpus, before, after, merged):
    whole = take(made(corpus, KIND), 10)[6:]
    states = []
    for p in range(before):
        stream = made(corpus, KIND, process_index=p, process_count=before)
        for _ in range(6):
            next(stream)
        states.append(stream.state())
        stream.close()
    state, parts = streams.merge(states) if merged else states[0], []
    for p in range(after):
        stream = made(corpus, KIND, process_index=p, process_count=after)
        stream.restore(state)
        parts.append(take(stream, 4))
    joined = [{k: np.concatenate([b[k] for b in row]) for k in row[0]} for row in zip(*parts, strict=True)]
    assert same(whole, joined)


def test_a_process_reads_its_own_lanes(corpus, monkeypatch):
    read, original = [], streams._Groups.cut
    monkeypatch.setattr(streams._Groups, "cut", lambda self, e, g: read.append((e, g)) or original(self, e, g))
    sets = []
    for p in range(2):
        take(made(corpus, KIND, process_index=p, process_count=2), 10)
        sets.append(set(read))
        read.clear()
    assert sets[0] and sets[1] and not sets[0] & sets[1]


def test_other_examples_are_as_they_were(corpus):
    assert not any(getattr(kind, "continuing", False) for kind in KINDS)
    assert made(corpus, KIND)._lanes == 16 and made(corpus, ex.Contiguous(separator="sep"), batch=24)._lanes == 8


@pytest.mark.parametrize("changes, message", [
    ({"batch": 256, "length": 512}, r"has \d+ rows of 512 tokens, too few for a batch of 256.*give a smaller batch"),
    ({"lanes": 4}, "a lane for every row of a batch of 16"),
])  # fmt: skip
def test_bad_requests(corpus, changes, message):
    with pytest.raises(UserError, match=message):
        made(corpus, KIND, **changes)
