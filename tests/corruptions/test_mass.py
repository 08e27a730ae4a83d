"""MASS' span against its definition: what the encoder does not see is what the decoder predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.corruptions.masking.spans import MASSSpan
from support import corrupting
from support.corrupting import VOCAB, numpied

ROWS = 1024


@pytest.fixture(scope="module")
def drawn():
    batch = corrupting.documents(rows=ROWS, length=64)
    return jax.tree.map(np.asarray, batch), numpied(MASSSpan(vocab=VOCAB), 0, batch)


def documents(before, after):
    """(ids, their noisy form, labels, decoder inputs, decoder positions) of every document."""
    for row in range(2, ROWS):
        for number in (1, 2):
            here, there = (
                before["segment_ids"][row] == number,
                after["decoder_segment_ids"][row] == number,
            )
            decoded = (
                after[f"decoder_{name}"][row][there]
                for name in ("labels", "input_ids", "positions")
            )
            yield before["input_ids"][row][here], after["input_ids"][row][here], *decoded


@pytest.mark.full
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


@pytest.mark.full
def test_the_code_predicts_every_token_from_the_one_before_it(drawn):
    """microsoft/MASS: `target_i = words[pos_i - 1]` at the positions `pos_i - 1`; all else is the
    paper's form."""
    batch, paper = drawn
    code = numpied(MASSSpan(vocab=VOCAB, previous=True), 0, batch)
    for ids, _, labels, inputs, positions in documents(batch, code):
        np.testing.assert_array_equal(inputs, ids[positions])
        np.testing.assert_array_equal(labels, ids[positions + 1])
    changed = {name for name in paper if not np.array_equal(paper[name], code[name])}
    assert changed == {"decoder_input_ids", "decoder_positions"}
    bare = {
        "input_ids": jnp.tile(jnp.arange(10, 20, dtype=jnp.int32), (40, 1))
    }  # no token before the first word
    out = numpied(MASSSpan(vocab=VOCAB, previous=True), 0, bare)
    first, start = out["decoder_input_ids"][:, 0], out["decoder_labels"][:, 0]
    np.testing.assert_array_equal(first, np.where(start == 10, 4, start - 1))
    assert (start == 10).any() and (start > 10).any()


def test_the_decoder_may_read_what_is_not_masked_and_has_a_static_width(drawn):
    before, after = drawn
    masked = after["input_ids"] == 4
    np.testing.assert_array_equal(
        after["source_segments"], np.where(masked, 0, before["segment_ids"])
    )
    assert masked[2:].any(1).all() and after["decoder_labels"].shape == (ROWS, 32)
    np.testing.assert_array_equal(after["decoder_weights"], after["decoder_segment_ids"] > 0)
    np.testing.assert_array_equal(after["segment_ids"], before["segment_ids"])


def test_shares_are_80_10_10_within_three_standard_errors(drawn):
    now = np.concatenate([noisy[positions] for _, noisy, _, _, positions in documents(*drawn)])
    labels = np.concatenate([labels for _, _, labels, _, _ in documents(*drawn)])
    assert len(labels) > 15_000
    for share, expected in (((now == 4).mean(), 0.8), ((now == labels).mean(), 0.1 + 0.1 / 354)):
        assert abs(share - expected) < 3 * np.sqrt(expected * (1 - expected) / len(labels))


@pytest.mark.full
def test_the_span_begins_as_published():
    batch = {"input_ids": jnp.tile(jnp.arange(10, 20, dtype=jnp.int32), (6000, 1))}
    counts = np.bincount(
        numpied(MASSSpan(vocab=VOCAB), 0, batch)["decoder_positions"][:, 0], minlength=6
    )
    expected = np.array([0.3, 0.1, 0.1, 0.1, 0.1, 0.3]) * 6000
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # 99.9% point, 5 degrees of freedom
