"""One stream for source and target: who sees whom, and where the target's hidden states lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Visibility
from ptm_jax.corruptions.noise import Reconstruct, TokenDeletion
from ptm_jax.corruptions.sentinels import SentinelSpans
from ptm_jax.corruptions.source_target import SingleStream
from support.corrupting import VOCAB, documents

PARTS = {
    "sentinels": SentinelSpans(vocab=VOCAB),
    "packed": Reconstruct(vocab=VOCAB, noise=TokenDeletion(vocab=VOCAB, rate=0.3)),
}


@pytest.fixture(scope="module", params=PARTS)
def streams(request):
    part, batch = PARTS[request.param], documents(rows=16)
    run = jax.jit(lambda key, b: (part(key, b), SingleStream(part=part)(key, b)))
    return jax.tree.map(np.asarray, run(jax.random.key(0), batch)) + (part,)


def test_source_then_target(streams):
    two, one, _ = streams
    source = two["input_ids"].shape[1]
    np.testing.assert_array_equal(one["input_ids"][:, :source], two["input_ids"])
    np.testing.assert_array_equal(one["input_ids"][:, source:], two["decoder_input_ids"])
    np.testing.assert_array_equal(one["decoder_labels"], two["decoder_labels"])
    np.testing.assert_array_equal(one["decoder_weights"], two["decoder_weights"])
    assert not {"decoder_input_ids", "decoder_segment_ids", "decoder_positions", "token_type_ids"} & set(one)
    for name in ("segment_ids", "positions", "order"):
        assert one[name].shape == one["input_ids"].shape


def test_positions_go_on_inside_each_document(streams):
    _, one, _ = streams
    for row in range(16):
        for document in range(1, one["segment_ids"][row].max() + 1):
            at = one["positions"][row][one["segment_ids"][row] == document]
            np.testing.assert_array_equal(at, np.arange(len(at)))


def test_the_source_sees_itself_and_the_target_what_is_behind_it(streams):
    two, one, _ = streams
    source = two["input_ids"].shape[1]
    segments, order = jnp.asarray(one["segment_ids"]), jnp.asarray(one["order"])
    seen = np.asarray(Visibility(segments, segments, order, order).dense())[:, 0]
    place = np.arange(segments.shape[1])
    allowed = (place[None] < source) | ((place[:, None] >= source) & (place[None] <= place[:, None]))
    same = one["segment_ids"][:, :, None] == one["segment_ids"][:, None]
    np.testing.assert_array_equal(seen, allowed & same & (one["segment_ids"][:, None] > 0))
