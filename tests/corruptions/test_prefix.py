"""One stream for source and target: who sees whom, and where the target's hidden states lie."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Visibility, Vocab
from ptm_jax.corruptions.noise import Reconstruct, TokenDeletion
from ptm_jax.corruptions.prefix import SingleStream
from ptm_jax.corruptions.sentinels import SentinelSpans

VOCAB = Vocab(size=1100, pad=0, eos=1, unk=2, extra=tuple(range(1099, 999, -1)))
LENGTH = 48


@dataclasses.dataclass(frozen=True)
class Nothing:
    """A corruption that writes no target."""

    def __call__(self, key, batch):
        return batch


def batch_of(rows=16, seed=0):
    """Rows of two documents and padding."""
    rng = np.random.default_rng(seed)
    real = rng.integers(16, LENGTH + 1, rows)[:, None]
    segments = np.where(np.arange(LENGTH) < real, 1 + (np.arange(LENGTH) >= real // 2), 0)
    ids = np.where(segments > 0, rng.integers(3, 1000, (rows, LENGTH)), 0)
    fields = {"input_ids": ids, "segment_ids": segments, "token_type_ids": segments, "rows": np.arange(rows)}
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


PARTS = {
    "sentinels": SentinelSpans(vocab=VOCAB),
    "packed": Reconstruct(vocab=VOCAB, noise=TokenDeletion(vocab=VOCAB, rate=0.3)),
}


@pytest.fixture(scope="module", params=PARTS)
def streams(request):
    part, batch = PARTS[request.param], batch_of()
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


def test_a_slice_gives_a_slice_and_another_key_another_row(streams):
    _, one, part = streams
    cut = {name: value[4:8] for name, value in batch_of().items()}
    run = jax.jit(SingleStream(part=part))
    for name, value in run(jax.random.key(0), cut).items():
        np.testing.assert_array_equal(one[name][4:8], value)
    # Short rows have a single span, which T5's segmentation always puts at the end: all rows are compared.
    assert (np.asarray(run(jax.random.key(1), batch_of())["input_ids"]) != one["input_ids"]).any()


def system_of(encoder):
    return SimpleNamespace(towers={"main": SimpleNamespace(encoder=encoder)})


def test_an_encoder_that_does_not_obey_order_is_refused():
    stream = SingleStream(part=PARTS["sentinels"])
    assert stream.refusal(system_of(SimpleNamespace(obeys_order=True))) is None
    assert "reads who sees whom from the batch" in stream.refusal(system_of(SimpleNamespace()))


def test_what_the_part_refuses_is_refused():
    part = SimpleNamespace(refusal=lambda system: "no")
    assert SingleStream(part=part).refusal(system_of(SimpleNamespace(obeys_order=True))) == "no"


def test_a_part_without_a_target_is_named():
    with pytest.raises(ValueError, match="Nothing writes no decoder_input_ids"):
        SingleStream(part=Nothing())(jax.random.key(0), batch_of())
