"""Tokens hidden from the decoder are no keys of its cross-attention; the encoder itself attends to
them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.sequence_to_sequence.bart import hiding, seq2seq
from support.bare_layers import sees
from support.tiny_decoders import drawn


@pytest.mark.full
def test_hidden_places_are_read_through_the_others_only():
    vocab = Vocab(size=40, pad=0, mask=4)
    plain = seq2seq(
        vocab=vocab, layers=1, width=8, heads=2, positions=LearnedPositions(8), initializer=Normal()
    )
    hides, other = (Model(encoder=both, heads={}) for both in (hiding(plain), plain))
    ids, segments = jnp.asarray([[7, 4, 9, 10, 4, 0]], jnp.int32), jnp.asarray([[1, 1, 1, 1, 1, 0]])
    target = {"input_ids": ids[:, :3], "segment_ids": segments[:, :3]}
    batch = {"input_ids": ids, "segment_ids": segments} | {
        f"decoder_{name}": field for name, field in target.items()
    }
    hidden = {"source_segments": jnp.where(ids == 4, 0, segments)}
    params = jax.tree.map(jnp.asarray, drawn(hides, 0, 0.5, batch).params)
    encode = jax.jit(lambda module, batch: Tower(module, params)(batch), static_argnums=0)
    found, first = encode(hides, batch), encode(hides, batch | hidden)
    np.testing.assert_array_equal(found.hidden, encode(other, batch).hidden)
    np.testing.assert_array_equal(first.extra["source"], found.extra["source"])
    assert np.abs(first.hidden - found.hidden).max() > 1e-3

    def decoded(given):
        parts, table = params["encoder"]["decoder"], params["encoder"]["encoder"]["embed"]["token"]
        options = {"source": given["source"][None], "source_segments": segments, "table": table}
        return hides.encoder.decoder.apply({"params": parts}, target | hidden, **options).hidden[0]

    read = sees(
        decoded,
        {"source": np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)},
        "source",
    )
    np.testing.assert_array_equal(read, [[True, False, True, True, False, False]] * 3)
