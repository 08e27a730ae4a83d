"""The stream: every row once an epoch, the same global batches on any number of processes, exact restarts."""

from __future__ import annotations

import gc
import json
import threading
import time

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data import examples as ex
from ptm_jax.data import stream as streams
from ptm_jax.data.prepare import prepare
from ptm_jax.data.stream import Stream

KINDS = [ex.Packed(), ex.FullSentences(), ex.Contiguous(separator="sep"), ex.SentencePairs()]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Groups of few rows, so that a small corpus has many."""
    monkeypatch.setattr(streams, "GROUP_ROWS", 8)


def made(corpus, kind=KINDS[0], split="train", **changes):
    return Stream(corpus, split, kind, **({"length": 64, "batch": 16, "seed": 5} | changes))


def take(stream, count):
    found = [next(stream) for _ in range(count)]
    stream.close()
    return found


def same(a, b):
    return len(a) == len(b) and all(
        x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x) for x, y in zip(a, b, strict=True)
    )


def text_tokens(corpus, batches):
    ids = np.concatenate([b["input_ids"][b["segment_ids"] > 0].reshape(-1) for b in batches])
    special = np.isin(ids, [corpus.vocab.cls, corpus.vocab.sep])
    return np.bincount(ids[~special], minlength=corpus.vocab.size)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes(corpus, kind):
    (batch,) = take(made(corpus, kind), 1)
    spec = kind.spec(64, corpus.vocab)
    assert set(batch) == set(spec) | {"rows"}
    for name, (shape, dtype) in spec.items():
        assert batch[name].shape == (16, *shape) and batch[name].dtype == dtype and batch[name].flags.c_contiguous
    assert np.array_equal(batch["rows"], np.arange(16)) and batch["rows"].dtype == np.int32


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_one_epoch_has_every_token_once(corpus, kind, split):
    found = list(made(corpus, kind, split, epochs=1))
    assert np.array_equal(text_tokens(corpus, found), corpus.counts(split))
    assert all(b["input_ids"].shape == (16, 64) for b in found)
    last = found[-1]["segment_ids"]
    assert last[0].any() and not np.any(np.diff((last > 0).any(1).astype(int)) > 0)  # padding rows come last


def test_two_epochs_have_every_token_twice_in_another_order(corpus):
    found = list(made(corpus, epochs=2))
    assert np.array_equal(text_tokens(corpus, found), 2 * corpus.counts())
    first = list(made(corpus, epochs=1))
    assert not same(first[:-1], found[len(first) : 2 * len(first) - 1])


def test_lanes_end_their_epochs_without_skipping(corpus, monkeypatch):
    """The cursors of the endless stream pass over every group of an epoch exactly once."""
    cuts = []
    original = streams._Groups.cut
    monkeypatch.setattr(streams._Groups, "cut", lambda self, e, g: cuts.append((e, g)) or original(self, e, g))
    stream = made(corpus)
    assert stream._lanes > 4
    for _ in range(150):
        next(stream)
    stream.close()
    count = max(g for _, g in cuts) + 1
    for epoch in (0, 1):
        assert sorted(g for e, g in cuts if e == epoch) == list(range(count))
    assert len(cuts) == len(set(cuts))


def test_groups_hold_every_block_once(corpus):
    groups = made(corpus)
    groups.close()
    order = np.random.default_rng([5, 0]).permutation(corpus.size()["blocks"])
    assert sorted(order) == list(range(corpus.size()["blocks"]))


@pytest.mark.parametrize("kind", KINDS)
def test_seed(corpus, kind):
    assert same(take(made(corpus, kind), 5), take(made(corpus, kind), 5))
    assert not same(take(made(corpus, kind), 5), take(made(corpus, kind, seed=6), 5))


@pytest.mark.parametrize("processes", [2, 4, 16])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]])
@pytest.mark.parametrize("epochs, batches", [(None, 12), (1, 6)])
def test_process_count_does_not_matter(corpus, processes, kind, epochs, batches):
    whole = take(made(corpus, kind, epochs=epochs), batches)
    parts = [
        take(made(corpus, kind, epochs=epochs, process_index=p, process_count=processes), batches)
        for p in range(processes)
    ]
    joined = [{k: np.concatenate([b[k] for b in row]) for k in row[0]} for row in zip(*parts, strict=True)]
    assert same(whole, joined)


def test_processes_end_together(corpus):
    counts = {len(list(made(corpus, epochs=1, process_index=p, process_count=4))) for p in range(4)}
    assert len(counts) == 1


def test_a_process_reads_its_own_records(corpus, monkeypatch):
    read = []
    original = streams._Groups.cut
    monkeypatch.setattr(streams._Groups, "cut", lambda self, e, g: read.append((e, g)) or original(self, e, g))
    sets = []
    for p in range(2):
        take(made(corpus, process_index=p, process_count=2), 10)
        sets.append(set(read))
        read.clear()
    assert sets[0] and sets[1] and not sets[0] & sets[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 1, 7, 31])
def test_restore(corpus, kind, after):
    stream = made(corpus, kind)
    for _ in range(after):
        next(stream)
    state = json.loads(json.dumps(stream.state()))
    wanted = take(stream, 6)
    assert len(json.dumps(state)) < 4000 and state["batches"] == after
    fresh = made(corpus, kind)
    fresh.restore(state)
    assert same(take(fresh, 6), wanted)


def test_restore_goes_back_on_a_running_stream(corpus):
    stream = made(corpus)
    state = stream.state()
    first = [next(stream) for _ in range(4)]
    stream.restore(state)
    assert same(take(stream, 4), first)


def test_restore_in_a_finite_stream(corpus):
    wanted = list(made(corpus, epochs=1))
    stream = made(corpus, epochs=1)
    next(stream)
    fresh = made(corpus, epochs=1)
    fresh.restore(stream.state())
    stream.close()
    assert same(list(fresh), wanted[1:])


@pytest.mark.parametrize("before, after", [(1, 4), (4, 1), (2, 8), (4, 2)])
@pytest.mark.parametrize("merged", [True, False])
def test_restore_on_another_process_count(corpus, before, after, merged):
    whole = take(made(corpus), 15)[9:]
    states = []
    for p in range(before):
        stream = made(corpus, process_index=p, process_count=before)
        for _ in range(9):
            next(stream)
        states.append(json.loads(json.dumps(stream.state())))
        stream.close()
    state = streams.merge(states) if merged else states[0]
    parts = []
    for p in range(after):
        stream = made(corpus, process_index=p, process_count=after)
        stream.restore(state)
        parts.append(take(stream, 6))
    joined = [{k: np.concatenate([b[k] for b in row]) for k in row[0]} for row in zip(*parts, strict=True)]
    assert same(whole, joined)


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
    ({"split": "valid"}, "unknown split"),
    ({"lanes": 3}, "3 lanes cannot serve"),
    ({"kind": ex.Contiguous()}, "has no eos token"),
    ({"length": 2}, "no room"),
])  # fmt: skip
def test_bad_requests(corpus, changes, message):
    with pytest.raises(UserError, match=message):
        made(corpus, **changes)


def test_empty_split(tmp_path, text_file, spec):
    corpus = prepare([str(text_file)], tmp_path / "c", tokenizer=spec, heldout=0.0)
    with pytest.raises(UserError, match="the split heldout of .* is empty"):
        made(corpus, split="heldout")


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
    assert figures["tokens_per_second"] > 10_000 and 0.9 < figures["utilisation"] <= 1
