"""The stream: every row once an epoch, the same global batches on any number of processes, exact
restarts, memory."""

import gc
import itertools
import json
import threading
import time

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import groups
from ptm_jax.data.corpora import stream as streams
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.stream import Stream
from ptm_jax.data.rows import examples as ex
from ptm_jax.data.rows import text_pairs
from ptm_jax.data.rows.annotated import Annotated
from support.cutting import stored

KINDS = [
    ex.Packed(),
    ex.FullSentences(),
    ex.Contiguous(separator="sep"),
    text_pairs.SentencePairs(),
]
CONTINUING = ex.Contiguous(separator="sep", continuing=True)
EVERY = [*KINDS, CONTINUING]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Groups of few rows, so that a small corpus has many."""
    monkeypatch.setattr(groups, "GROUP_ROWS", 8)


def made(corpus, kind=KINDS[0], split="train", **changes):
    return Stream(corpus, split, kind, **({"length": 64, "batch": 16, "seed": 5} | changes))


def take(stream, count):
    """The next batches, at most `count`."""
    found = list(itertools.islice(stream, count))
    stream.close()
    return found


def joined(corpus, processes, count, state=None, **changes):
    """The batches of several processes side by side."""
    parts = []
    for p in range(processes):
        stream = made(corpus, process_index=p, process_count=processes, **changes)
        if state is not None:
            stream.restore(state)
        parts.append(take(stream, count))
    return [
        {k: np.concatenate([b[k] for b in row]) for k in row[0]} for row in zip(*parts, strict=True)
    ]


def cuts_of(monkeypatch):
    """The (epoch, group) of every group that is cut from now on."""
    cuts, original = [], groups.Groups.cut
    monkeypatch.setattr(
        groups.Groups, "cut", lambda self, e, g: cuts.append((e, g)) or original(self, e, g)
    )
    return cuts


def same(a, b):
    return len(a) == len(b) and all(
        x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x)
        for x, y in zip(a, b, strict=True)
    )


def text_tokens(corpus, batches):
    ids = np.concatenate([b["input_ids"][b["segment_ids"] > 0].reshape(-1) for b in batches])
    special = np.isin(ids, [corpus.vocab.cls, corpus.vocab.sep])
    return np.bincount(ids[~special], minlength=corpus.vocab.size)


@pytest.mark.full
@pytest.mark.parametrize("kind", EVERY)
def test_batches_have_the_declared_fields_and_are_drawn_by_the_seed(corpus, kind):
    found, declared = take(made(corpus, kind), 5), kind.spec(64, corpus.vocab)
    assert set(found[0]) == set(declared) | {"rows"}
    for name, (shape, dtype) in declared.items():
        values = found[0][name]
        assert values.shape == (16, *shape) and values.dtype == dtype and values.flags.c_contiguous
    assert np.array_equal(found[0]["rows"], np.arange(16)) and found[0]["rows"].dtype == np.int32
    assert same(found, take(made(corpus, kind), 5)) and not same(
        found, take(made(corpus, kind, seed=6), 5)
    )


@pytest.mark.parametrize("kind", [*KINDS[:3], CONTINUING])
@pytest.mark.parametrize("split, batch", [("train", 16), ("heldout", 16), ("heldout", 64)])
def test_one_epoch_has_every_token_once(corpus, kind, split, batch):
    found = list(made(corpus, kind, split, batch=batch, epochs=1))
    assert np.array_equal(text_tokens(corpus, found), corpus.counts(split))
    assert all(b["input_ids"].shape == (batch, 64) for b in found)
    last = found[-1]["segment_ids"]
    assert kind is CONTINUING or not np.any(
        np.diff((last > 0).any(1).astype(int)) > 0
    )  # padding rows come last


def test_two_epochs_have_every_token_twice_in_another_order(corpus):
    found = list(made(corpus, epochs=2))
    assert np.array_equal(text_tokens(corpus, found), 2 * corpus.counts())
    first = list(made(corpus, epochs=1))
    assert not same(first[:-1], found[len(first) : 2 * len(first) - 1])


def test_lanes_end_their_epochs_without_skipping(corpus, monkeypatch):
    """The cursors of the endless stream pass over every group of an epoch exactly once."""
    cuts, stream = cuts_of(monkeypatch), made(corpus)
    assert stream._lanes > 4
    for _ in range(150):
        next(stream)
    stream.close()
    count = max(g for _, g in cuts) + 1
    for epoch in (0, 1):
        assert sorted(g for e, g in cuts if e == epoch) == list(range(count))
    assert len(cuts) == len(set(cuts))


@pytest.mark.full
@pytest.mark.parametrize("processes, epochs", [(2, 1), (16, None)])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3], CONTINUING, Annotated(examples=CONTINUING)])
def test_process_count_does_not_matter(corpus, processes, kind, epochs):
    """All processes have equally many batches."""
    count = 12 if epochs is None else 1000
    whole = take(made(corpus, kind, epochs=epochs), count)
    assert same(whole, joined(corpus, processes, count, kind=kind, epochs=epochs))


@pytest.mark.parametrize("kind", [KINDS[0], CONTINUING])
def test_a_process_reads_its_own_records(corpus, monkeypatch, kind):
    cuts, sets = cuts_of(monkeypatch), []
    for p in range(2):
        take(made(corpus, kind, process_index=p, process_count=2), 10)
        sets.append(set(cuts))
        cuts.clear()
    assert sets[0] and sets[1] and not sets[0] & sets[1]


@pytest.mark.full
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("after, epochs", [(0, None), (1, 1), (7, None), (31, None)])
def test_restore(corpus, kind, after, epochs):
    stream = made(corpus, kind, epochs=epochs)
    for _ in range(after):
        next(stream)
    state = json.loads(json.dumps(stream.state()))
    wanted = take(stream, 6 if epochs is None else 1000)
    assert len(json.dumps(state)) < 4000 and state["batches"] == after
    fresh = made(corpus, kind, epochs=epochs)
    fresh.restore(state)
    assert same(take(fresh, len(wanted) + (epochs is not None)), wanted)


def test_restore_goes_back_on_a_running_stream(corpus):
    stream = made(corpus)
    state = stream.state()
    first = [next(stream) for _ in range(4)]
    stream.restore(state)
    assert same(take(stream, 4), first)


@pytest.mark.full
@pytest.mark.parametrize("before, after", [(1, 4), (4, 2), (2, 8)])
@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("kind", [KINDS[0], CONTINUING])
def test_restore_on_another_process_count(corpus, before, after, merged, kind):
    whole, states = take(made(corpus, kind), 13)[9:], []
    for p in range(before):
        stream = made(corpus, kind, process_index=p, process_count=before)
        for _ in range(9):
            next(stream)
        states.append(json.loads(json.dumps(stream.state())))
        stream.close()
    state = streams.merge(states) if merged else states[0]
    assert same(whole, joined(corpus, after, 4, state, kind=kind))


def test_states_of_different_steps_do_not_merge(corpus):
    stream = made(corpus)
    state = stream.state()
    next(stream)
    with pytest.raises(UserError, match="different steps"):
        streams.merge([state, stream.state()])
    stream.close()


def test_state_of_another_stream(corpus):
    stream = made(corpus)
    other = made(corpus, seed=6, length=32)
    with pytest.raises(UserError, match="length was 32, is 64; seed was 6, is 5"):
        stream.restore(other.state())
    stream.close(), other.close()


def test_fewer_rows_than_a_batch(corpus):
    found = take(made(corpus, split="heldout", batch=512), 2)
    assert found[0]["input_ids"].shape == (512, 64) and (found[0]["segment_ids"] > 0).any(1).all()
    (only,) = made(corpus, split="heldout", batch=512, epochs=1)
    assert np.array_equal(text_tokens(corpus, [only]), corpus.counts("heldout"))


@pytest.mark.parametrize("changes, message", [
    ({"batch": 6, "process_count": 4}, "cannot be shared by 4 processes"),
    ({"batch": 0}, "cannot be shared"),
    ({"split": "helddout"}, "unknown split.*Did you mean 'heldout'"),
    ({"kind": ex.Contiguous()}, "has no eos token"),
    ({"length": 2}, "no room"),
    ({"kind": CONTINUING, "batch": 256, "length": 512},
    r"has \d+ rows of 512 tokens, too few for a batch of 256.*smaller"),
])  # fmt: skip
def test_bad_requests(corpus, changes, message):
    with pytest.raises(UserError, match=message):
        made(corpus, **changes)


def test_empty_split(tmp_path, text_file, spec):
    corpus = prepare([str(text_file)], tmp_path / "c", tokenizer=spec, heldout=0.0)
    with pytest.raises(UserError, match="the split heldout of .* is empty"):
        made(corpus, split="heldout")


@pytest.mark.full
def test_a_dropped_stream_stops_its_thread(corpus):
    before = threading.active_count()
    for _ in range(3):
        next(made(corpus))
    gc.collect()
    for _ in range(100):
        if threading.active_count() <= before:
            return
        time.sleep(0.02)
    raise AssertionError("prefetching goes on")


def test_measure(corpus):
    figures = streams.measure(corpus, ex.Packed(), length=64, batch=16, seconds=0.1)
    assert figures["tokens_per_second"] > 0 and 0.9 < figures["utilisation"] <= 1


def test_lanes(corpus):
    assert made(corpus, CONTINUING)._lanes == 16 and made(corpus, KINDS[2], batch=24)._lanes == 8


def blocks_of(corpus):
    """The text of every block of the train split in order: each document and its separator."""
    documents = (
        np.split(block.tokens, block.document_tokens[1:-1]) for block in stored(corpus.paths())
    )
    return [
        np.concatenate([[*document, corpus.vocab.sep] for document in block]) for block in documents
    ]


def lanes_of(batches):
    """The rows of every lane, without padding; the empty ones at the end of an epoch are left
    out."""
    found = []
    for b in range(len(batches[0]["rows"])):
        rows = [x["input_ids"][b][x["segment_ids"][b] > 0].tolist() for x in batches]
        found.append([row for row in rows if row])
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    "batch, length, size", [(4, 64, 1), (2, 128, 2), (16, 64, 1), (64, 32, 1), (300, 64, 1)]
)
def test_a_row_goes_on_from_the_batch_before(corpus, batch, length, size):
    """Every lane is a sequence of groups, each cut from its start to its end: of `size` blocks that
    follow each other, or, where the batch has more rows than the corpus blocks, of a part of the
    rows of one block."""
    texts, wanted = blocks_of(corpus), []
    parts = -(-batch // len(texts))
    for first in range(0, len(texts), size):
        text = np.concatenate(texts[first : first + size])
        rows = [text[i : i + length].tolist() for i in range(0, len(text), length)]
        wanted += [
            rows[len(rows) * p // parts : len(rows) * (p + 1) // parts] for p in range(parts)
        ]
    wanted = [group for group in wanted if group]
    found, lanes = (
        [],
        lanes_of(list(made(corpus, CONTINUING, batch=batch, length=length, epochs=1))),
    )
    for lane in lanes:
        while lane:
            group = next(group for group in wanted if lane[: len(group)] == group)
            found.append(group)
            lane = lane[len(group) :]
    assert sorted(found) == sorted(wanted)
    endless = lanes_of(take(made(corpus, CONTINUING, batch=batch, length=length), 4))
    assert all(
        rows[: len(lane)] == lane[: len(rows)] for rows, lane in zip(endless, lanes, strict=True)
    )
