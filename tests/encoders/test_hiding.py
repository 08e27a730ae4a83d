"""What is hidden from the encoder is no key of the decoder's cross-attention; the encoder itself attends to it."""

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems.seq2seq import hiding, seq2seq

VOCAB = Vocab(size=40, pad=0, mask=4)


def test_hidden_places_are_read_through_the_others_only():
    wide = Normal(0.5)
    kinds = dict(positions=LearnedPositions(8, initializer=wide), initializer=wide, dropout=0.0, attention_dropout=0.0)
    plain = seq2seq(vocab=VOCAB, layers=1, width=8, heads=2, **kinds)
    tower, other = (Model(encoder=both, heads={"lm": LMHead()}) for both in (hiding(plain), plain))
    ids = jnp.asarray([[7, 4, 9, 10, 4, 0]], jnp.int32)
    segments = jnp.asarray([[1, 1, 1, 1, 1, 0]])
    target = {"decoder_input_ids": ids[:, :3], "decoder_segment_ids": segments[:, :3]}
    batch = {"input_ids": ids, "segment_ids": segments, **target}
    hidden = {**batch, "source_segments": jnp.where(ids == 4, 0, segments)}
    params = jax.jit(lambda: tower.init(jax.random.key(0), batch, method="initialise")["params"])()
    encode = jax.jit(lambda module, batch: module.apply({"params": params}, batch, method="encode"), static_argnums=0)
    found = encode(tower, batch).hidden
    np.testing.assert_array_equal(found, encode(other, batch).hidden)

    @jax.jit
    def reads(source):
        """d hidden / d source, [Ls]: which states of the encoder the decoder reads."""

        def decoded(source):
            inner = {**hidden, "input_ids": target["decoder_input_ids"], "segment_ids": target["decoder_segment_ids"]}
            given, table = params["encoder"]["decoder"], params["encoder"]["encoder"]["embed"]["token"]
            out = tower.encoder.decoder.apply({"params": given}, inner, False, None, source, segments, table)
            return (out.hidden * jnp.linspace(1.0, 2.0, 8)).sum()

        return jnp.abs(jax.grad(decoded)(source)).sum((0, 2))

    source = jax.random.normal(jax.random.key(1), (1, 6, 8))
    np.testing.assert_array_equal(np.asarray(reads(source)) > 0, [True, False, True, True, False, False])
    first = encode(tower, hidden)
    np.testing.assert_array_equal(first.extra["source"], encode(tower, batch).extra["source"])
    assert np.abs(first.hidden - found).max() > 1e-3
