"""Span corruption against the published counts and lengths, and by putting the spans back."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.sentinels import SentinelSpans, noise_counts, span_lengths, tokens_for

VOCAB = Vocab(size=1100, pad=0, eos=1, unk=2, extra=tuple(range(1099, 999, -1)))
SPANS = SentinelSpans(vocab=VOCAB)


def batch_of(rows=512, length=128, seed=0, padded=False):
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, 1000, (rows, length)).astype(np.int32)
    real = rng.integers(2, length + 1, rows) if padded else np.full(rows, length)
    segments = (np.arange(length) < real[:, None]).astype(np.int32)
    fields = {"input_ids": np.where(segments > 0, ids, 0), "segment_ids": segments}
    return {name: jnp.asarray(value) for name, value in fields.items()} | {"rows": jnp.arange(rows)}


@pytest.fixture(scope="module")
def run():
    return jax.jit(SPANS)


@pytest.fixture(scope="module")
def corrupted(run):
    batch = batch_of()
    return jax.tree.map(np.asarray, (batch, run(jax.random.key(0), batch)))


def spliced(inputs, labels):
    """The row that inputs and labels were made of: every sentinel of the inputs replaced by what it stands for."""
    spans, name = {}, None
    for token in labels:
        if token >= 1000:
            name = token
            spans[name] = []
        elif token != 1:
            spans[name].append(token)
    return [t for token in inputs if token != 1 for t in spans.get(token, [token])], list(spans)


def test_published_lengths():
    # What random_spans_helper of t5 gives for 512 inputs, 15% and spans of 3.
    assert tokens_for(512) == (568, 114)
    assert span_lengths(568, 0.15, 3.0) == (512, 114)
    assert noise_counts(568, 0.15, 3.0) == (85, 28)


def test_full_rows_have_no_padding(corrupted):
    _, after = corrupted
    assert (after["input_ids"].shape[1], after["decoder_labels"].shape[1]) == span_lengths(128, 0.15, 3.0)
    assert (after["segment_ids"] == 1).all()
    assert (after["decoder_weights"] == 1).all()


@pytest.mark.parametrize("padded", [False, True])
def test_spans_put_back_give_the_row(run, padded):
    batch = batch_of(rows=128, padded=padded, seed=3)
    out = jax.tree.map(np.asarray, run(jax.random.key(1), batch))
    for row in range(128):
        was = np.asarray(batch["input_ids"])[row][np.asarray(batch["segment_ids"])[row] > 0].tolist()
        inputs = out["input_ids"][row][out["segment_ids"][row] > 0].tolist()
        labels = out["decoder_labels"][row][out["decoder_weights"][row] > 0].tolist()
        noise, spans = noise_counts(len(was), 0.15, 3.0)
        assert (len(inputs), len(labels)) == span_lengths(len(was), 0.15, 3.0)
        assert inputs[-1] == labels[-1] == 1
        back, names = spliced(inputs, labels)
        assert back == was
        assert names == [1099 - k for k in range(spans)], "sentinels count down from the highest id"
        assert len(labels) - len(names) - 1 == noise
        assert (out["input_ids"][row][len(inputs) :] == 0).all()
        shifted = [0, *labels[:-1]]
        assert out["decoder_input_ids"][row][: len(labels)].tolist() == shifted
        assert out["decoder_positions"][row][: len(labels)].tolist() == list(range(len(labels)))
        assert out["positions"][row][: len(inputs)].tolist() == list(range(len(inputs)))


def test_first_a_piece_that_stays_and_last_a_span(corrupted):
    _, after = corrupted
    assert (after["input_ids"][:, 0] < 1000).all()
    assert (after["input_ids"][:, -2] >= 1000).all()


def test_all_divisions_are_equally_likely(run):
    # 8 tokens, 4 of them noise in 2 spans: 3 divisions of the noise times 3 of the rest.
    batch = {"input_ids": jnp.tile(jnp.arange(10, 18, dtype=jnp.int32), (9000, 1))}
    out = jax.jit(SentinelSpans(vocab=VOCAB, rate=0.5, mean=2.0))(jax.random.key(0), batch)
    _, counts = np.unique(np.asarray(out["input_ids"]), axis=0, return_counts=True)
    assert len(counts) == 9
    assert ((counts - 1000) ** 2 / 1000).sum() < 26.1  # 99.9% point, 8 degrees of freedom


def test_span_lengths_are_those_of_uniform_divisions(corrupted):
    _, after = corrupted
    noise, spans = noise_counts(128, 0.15, 3.0)
    labels = after["decoder_labels"]
    starts = labels >= 1000
    lengths = [len(list(group)) for row in starts[:, :-1] for is_start, group in itertools.groupby(row) if not is_start]
    assert len(lengths) == 512 * spans
    cuts = itertools.combinations(range(1, noise), spans - 1)
    ones = np.array([[b - a == 1 for a, b in itertools.pairwise((0, *cut, noise))] for cut in cuts]).sum(1)
    share = sum(n == 1 for n in lengths)
    assert abs(share / 512 - ones.mean()) < 3 * ones.std() / np.sqrt(512)


def test_an_eos_that_ends_the_row_is_not_doubled():
    batch = {"input_ids": jnp.array([[10, 11, 12, 13, 14, 15, 16, 1, 0, 0]], jnp.int32)}
    batch["segment_ids"] = (batch["input_ids"] > 0).astype(jnp.int32)
    out = jax.jit(SPANS)(jax.random.key(0), batch)
    assert (np.asarray(out["input_ids"]) == 1).sum() == 1
    back, _ = spliced(
        np.asarray(out["input_ids"])[np.asarray(out["segment_ids"]) > 0].tolist(),
        np.asarray(out["decoder_labels"])[np.asarray(out["decoder_weights"]) > 0].tolist(),
    )
    assert back == [10, 11, 12, 13, 14, 15, 16]


def test_documents_of_a_row_become_one_stream():
    batch = batch_of(rows=4, length=32)
    batch["segment_ids"] = 1 + (jnp.arange(32) >= 16).astype(jnp.int32) * jnp.ones((4, 1), jnp.int32)
    out = jax.jit(SPANS)(jax.random.key(0), batch)
    assert (out["segment_ids"] == 1).all()


def test_the_last_sentinel_of_the_paper():
    batch = batch_of(rows=4, length=32)
    plain = jax.jit(SPANS)(jax.random.key(0), batch)["decoder_labels"]
    more = jax.jit(SentinelSpans(vocab=VOCAB, last=True))(jax.random.key(0), batch)["decoder_labels"]
    assert more.shape[1] == plain.shape[1] + 1
    np.testing.assert_array_equal(more[:, :-2], plain[:, :-1])
    spans = noise_counts(32, 0.15, 3.0)[1]
    assert (more[:, -2] == 1099 - spans).all() and (more[:, -1] == 1).all()
