"""Span corruption against the published counts and lengths, and by putting the spans back."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.sentinels import (
    SentinelSpans,
    noise_counts,
    span_lengths,
    tokens_for,
)
from support.corrupting import numpied

VOCAB = Vocab(size=1100, pad=0, eos=1, unk=2, extra=tuple(range(1099, 999, -1)))
SPANS = SentinelSpans(vocab=VOCAB)


def batch_of(rows=512, length=128, seed=0, padded=False):
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, 1000, (rows, length)).astype(np.int32)
    real = rng.integers(2, length + 1, rows) if padded else np.full(rows, length)
    segments = (np.arange(length) < real[:, None]).astype(np.int32)
    fields = {"input_ids": np.where(segments > 0, ids, 0), "segment_ids": segments}
    return {name: jnp.asarray(value) for name, value in fields.items()} | {"rows": jnp.arange(rows)}


def spliced(inputs, labels):
    """The row that inputs and labels were made of: every sentinel of the inputs replaced by what it
    stands for."""
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


def test_full_rows_have_no_padding_and_begin_with_a_kept_piece_and_end_with_a_span():
    after = numpied(SPANS, 0, batch_of())
    assert (after["input_ids"].shape[1], after["decoder_labels"].shape[1]) == span_lengths(
        128, 0.15, 3.0
    )
    assert (after["segment_ids"] == 1).all() and (after["decoder_weights"] == 1).all()
    assert (after["input_ids"][:, 0] < 1000).all() and (after["input_ids"][:, -2] >= 1000).all()


@pytest.mark.parametrize("padded", [False, True])
def test_spans_put_back_give_the_row(padded):
    batch = batch_of(rows=128, padded=padded, seed=3)
    out = numpied(SPANS, 1, batch)
    for row in range(128):
        was = np.asarray(batch["input_ids"])[row][
            np.asarray(batch["segment_ids"])[row] > 0
        ].tolist()
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


def test_all_divisions_are_equally_likely():
    # 8 tokens, 4 of them noise in 2 spans: 3 divisions of the noise times 3 of the rest.
    batch = {"input_ids": jnp.tile(jnp.arange(10, 18, dtype=jnp.int32), (9000, 1))}
    out = numpied(SentinelSpans(vocab=VOCAB, rate=0.5, mean=2.0), 0, batch)
    _, counts = np.unique(out["input_ids"], axis=0, return_counts=True)
    assert len(counts) == 9
    assert ((counts - 1000) ** 2 / 1000).sum() < 26.1  # 99.9% point, 8 degrees of freedom


def test_an_eos_that_ends_the_row_is_not_doubled():
    """Two documents of a row are one stream."""
    ids = np.array([[10, 11, 12, 13, 14, 15, 16, 1, 0, 0]], np.int32)
    out = numpied(
        SPANS, 0, {"input_ids": ids, "segment_ids": np.array([[1] * 4 + [2] * 4 + [0] * 2])}
    )
    assert (out["input_ids"] == 1).sum() == 1 and set(out["segment_ids"][0]) <= {0, 1}
    inputs, labels = (
        out["input_ids"][out["segment_ids"] > 0],
        out["decoder_labels"][out["decoder_weights"] > 0],
    )
    assert spliced(inputs.tolist(), labels.tolist())[0] == [10, 11, 12, 13, 14, 15, 16]


@pytest.mark.full
def test_the_last_sentinel_of_the_paper():
    batch = batch_of(rows=4, length=32)
    plain, more = (
        numpied(SentinelSpans(vocab=VOCAB, last=last), 0, batch)["decoder_labels"]
        for last in (False, True)
    )
    assert more.shape[1] == plain.shape[1] + 1
    np.testing.assert_array_equal(more[:, :-2], plain[:, :-1])
    spans = noise_counts(32, 0.15, 3.0)[1]
    assert (more[:, -2] == 1099 - spans).all() and (more[:, -1] == 1).all()
