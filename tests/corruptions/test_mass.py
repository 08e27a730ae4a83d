"""MASS' span against its definition: what the encoder does not see is what the decoder predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.spans import MASSSpan

VOCAB = Vocab(size=1000, pad=0, unk=1, cls=2, sep=3, mask=4)


def batch_of(rows=2048, length=64, seed=0):
    """Rows of two documents [CLS] words [SEP] and padding."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 1000, (rows, length)).astype(np.int32)
    real = rng.integers(12, length + 1, rows)[:, None]
    place, border = np.arange(length), real // 3
    segments = np.where(place < real, 1 + (place >= border), 0).astype(np.int32)
    ids = np.where((place == 0) | (place == border), 2, np.where((place == real - 1) | (place == border - 1), 3, ids))
    fields = {"input_ids": np.where(segments > 0, ids, 0), "segment_ids": segments}
    fields["positions"] = np.where(segments == 2, place - border, np.where(segments == 1, place, 0))
    fields["rows"] = np.arange(rows)
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


@pytest.fixture(scope="module")
def run():
    return jax.jit(MASSSpan(vocab=VOCAB))


@pytest.fixture(scope="module")
def drawn(run):
    batch = batch_of()
    return jax.tree.map(np.asarray, (batch, run(jax.random.key(0), batch)))


def documents(before, after):
    """(ids, their noisy form, labels, decoder inputs, decoder positions) of every document."""
    for row in range(len(before["input_ids"])):
        for number in (1, 2):
            here, there = before["segment_ids"][row] == number, after["decoder_segment_ids"][row] == number
            decoded = (after[f"decoder_{name}"][row][there] for name in ("labels", "input_ids", "positions"))
            yield before["input_ids"][row][here], after["input_ids"][row][here], *decoded


def test_the_decoder_predicts_one_span_of_half_of_each_document(drawn):
    for ids, noisy, labels, inputs, positions in documents(*drawn):
        words = len(ids) - 2
        assert len(labels) == words // 2
        if len(labels) == 0:
            continue
        first = positions[0]
        np.testing.assert_array_equal(positions, np.arange(first, first + len(labels)))
        np.testing.assert_array_equal(labels, ids[positions])
        np.testing.assert_array_equal(inputs, [4, *labels[:-1]])
        outside = np.ones(len(ids), bool)
        outside[positions] = False
        np.testing.assert_array_equal(noisy[outside], ids[outside])
        assert not np.isin(labels, VOCAB.specials).any()


def test_the_code_tells_every_token_from_the_one_before_it(drawn):
    """microsoft/MASS: `target_i = words[pos_i - 1]` at the positions `pos_i - 1`; all else is the paper's form."""
    batch, paper = drawn
    code = jax.tree.map(np.asarray, jax.jit(MASSSpan(vocab=VOCAB, previous=True))(jax.random.key(0), batch))
    for ids, _, labels, inputs, positions in documents(batch, code):
        np.testing.assert_array_equal(inputs, ids[positions])
        np.testing.assert_array_equal(labels, ids[positions + 1])
    changed = {name for name in paper if not np.array_equal(paper[name], code[name])}
    assert changed == {"decoder_input_ids", "decoder_positions"}
    bare = {"input_ids": jnp.tile(jnp.arange(10, 20, dtype=jnp.int32), (40, 1))}  # no token before the first word
    out = jax.tree.map(np.asarray, MASSSpan(vocab=VOCAB, previous=True)(jax.random.key(0), bare))
    first, start = out["decoder_input_ids"][:, 0], out["decoder_labels"][:, 0]
    np.testing.assert_array_equal(first, np.where(start == 10, 4, start - 1))
    assert (start == 10).any() and (start > 10).any()


def test_the_decoder_may_read_what_is_not_masked(drawn):
    before, after = drawn
    masked = after["input_ids"] == 4
    np.testing.assert_array_equal(after["source_segments"], np.where(masked, 0, before["segment_ids"]))
    assert masked.any(1).all()


def test_shapes_and_weights(drawn):
    before, after = drawn
    assert after["decoder_labels"].shape == (2048, 32)
    np.testing.assert_array_equal(after["decoder_weights"], after["decoder_segment_ids"] > 0)
    np.testing.assert_array_equal(after["segment_ids"], before["segment_ids"])
    assert (after["decoder_labels"][after["decoder_weights"] == 0] == 0).all()


def test_shares_are_80_10_10_within_three_standard_errors(drawn):
    now = np.concatenate([noisy[positions] for _, noisy, _, _, positions in documents(*drawn)])
    labels = np.concatenate([labels for _, _, labels, _, _ in documents(*drawn)])
    assert len(labels) > 30_000
    for share, expected in (((now == 4).mean(), 0.8), ((now == labels).mean(), 0.1 + 0.1 / 995)):
        assert abs(share - expected) < 3 * np.sqrt(expected * (1 - expected) / len(labels))


def test_the_span_begins_as_published():
    batch = {"input_ids": jnp.tile(jnp.arange(10, 20, dtype=jnp.int32), (12000, 1))}
    out = jax.jit(MASSSpan(vocab=VOCAB))(jax.random.key(0), batch)
    counts = np.bincount(np.asarray(out["decoder_positions"])[:, 0], minlength=6)
    expected = np.array([0.3, 0.1, 0.1, 0.1, 0.1, 0.3]) * 12000
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # 99.9% point, 5 degrees of freedom


def test_same_key_slice_and_other_key(drawn, run):
    before, after = drawn
    part = {name: jnp.asarray(value[32:64]) for name, value in before.items()}
    again = run(jax.random.key(0), part)
    for name in ("input_ids", "decoder_labels", "decoder_input_ids", "decoder_positions"):
        np.testing.assert_array_equal(after[name][32:64], again[name])
    assert (np.asarray(run(jax.random.key(1), part)["input_ids"]) != after["input_ids"][32:64]).any()


def test_a_row_of_padding_predicts_nothing():
    batch = {"input_ids": jnp.zeros((2, 8), jnp.int32), "segment_ids": jnp.zeros((2, 8), jnp.int32)}
    out = jax.jit(MASSSpan(vocab=VOCAB))(jax.random.key(0), batch)
    assert out["decoder_weights"].sum() == 0 and (out["input_ids"] == 0).all()


@pytest.mark.parametrize("fields", [{"rate": 0.0}, {"mask": 0.95, "random": 0.1}, {"ends": 0.6}])
def test_impossible_shares_are_refused(fields):
    with pytest.raises(ValueError, match="must be"):
        MASSSpan(vocab=VOCAB, **fields)
