"""Summands of the embeddings that a lexicon gives, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.knowledge.english_words import SUPERSENSES
from ptm_jax.nn.embeddings.lexical import Senses, WordClass
from ptm_jax.nn.initializers import Normal
from support import bare_layers
from support.corrupting import VOCAB, documents


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_supersenses_are_summed_as_senseberts_or_averaged(combine):
    """(S M)[:, w] of Levine et al. 2020, Eq. 8: M[s, w] = 1 where w allows s."""
    part, batch = facts.stand_ins(Senses(len(SUPERSENSES), combine=combine), VOCAB), documents()
    params = bare_layers.begun(part, batch, None, 8, Normal(0.5))
    found = np.asarray(bare_layers.run(part, params, batch, None, 8, Normal(0.5)))
    vectors = np.asarray(params["senses"], np.float64)
    bits = np.asarray(jax.jit(part.lexicon.classes)(batch)["senses"])
    several = set()
    for place in np.ndindex(bits.shape[:2]):
        some = [
            s
            for s in range(45)
            if (int(bits[place][0]) >> s if s < 24 else int(bits[place][1]) >> s - 24) & 1
        ]
        rows = vectors[some] if some else np.zeros((1, 8))
        np.testing.assert_allclose(
            found[place], rows.sum(0) if combine == "sum" else rows.mean(0), atol=1e-5
        )
        several.add(len(some))
    assert {0, 2} <= several


def test_classes_that_a_batch_gives_go_before_the_lexicons():
    part, batch = facts.stand_ins(WordClass(3, classes="polarities"), VOCAB), documents()
    params = bare_layers.begun(part, batch, None, 8, Normal(0.5))
    vectors = np.asarray(params["polarities"])

    def apply(batch):
        return np.asarray(bare_layers.run(part, params, batch, None, 8, Normal(0.5)))

    np.testing.assert_array_equal(
        apply(batch), vectors[np.asarray(jax.jit(part.lexicon.classes)(batch)["polarities"])]
    )
    given = jnp.asarray(
        np.random.default_rng(0).integers(0, 3, batch["input_ids"].shape), jnp.int32
    )
    np.testing.assert_array_equal(apply({**batch, "polarities": given}), vectors[np.asarray(given)])
