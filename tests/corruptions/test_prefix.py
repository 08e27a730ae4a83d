"""One stream for source and target: who sees whom, and where the target's hidden states lie."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Visibility
from ptm_jax.corruptions.masking.noise import Reconstruct, TokenDeletion
from ptm_jax.corruptions.masking.sentinels import SentinelSpans
from ptm_jax.corruptions.masking.source_target import SingleStream
from support.corrupting import VOCAB, documents, numpied

PARTS = {
    "sentinels": SentinelSpans(vocab=VOCAB),
    "packed": Reconstruct(vocab=VOCAB, noise=TokenDeletion(vocab=VOCAB, rate=0.3)),
}


@pytest.mark.full
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_source_then_target(part):
    two, one = (
        numpied(corruption, 0, documents(rows=16)) for corruption in (part, SingleStream(part=part))
    )
    source = two["input_ids"].shape[1]
    np.testing.assert_array_equal(
        one["input_ids"], np.concatenate([two["input_ids"], two["decoder_input_ids"]], 1)
    )
    for name in ("decoder_labels", "decoder_weights"):
        np.testing.assert_array_equal(one[name], two[name])
    assert not {
        "decoder_input_ids",
        "decoder_segment_ids",
        "decoder_positions",
        "token_type_ids",
    } & set(one)
    for segments, positions in zip(one["segment_ids"], one["positions"], strict=True):
        for document in range(1, segments.max() + 1):
            at = positions[segments == document]
            np.testing.assert_array_equal(
                at, np.arange(len(at)), err_msg="positions go on inside each document"
            )
    # The source sees itself, the target also what lies before it.
    segments, order = jnp.asarray(one["segment_ids"]), jnp.asarray(one["order"])
    seen = np.asarray(Visibility(segments, segments, order, order).dense())[:, 0]
    place = np.arange(segments.shape[1])
    allowed = (place[None] < source) | (
        (place[:, None] >= source) & (place[None] <= place[:, None])
    )
    same = one["segment_ids"][:, :, None] == one["segment_ids"][:, None]
    np.testing.assert_array_equal(seen, allowed & same & (one["segment_ids"][:, None] > 0))
