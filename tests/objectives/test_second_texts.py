"""Objectives that encode a second text, on a real encoder with dropout and behind the corruption
that makes the text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import towers as core_towers
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.views import NGramView, ReplacedWord, TwoCrops
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import Classifier, Pooler
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.contrastive import DIM, InfoNCE, PairwiseRanking

VOCAB = Vocab(size=40, pad=0, cls=1, sep=2, mask=3)
CASES = {
    "infonce": (InfoNCE(), TwoCrops(vocab=VOCAB, share=1.0)),
    "dim": (Joint(parts=((1.0, DIM()),)), NGramView(vocab=VOCAB)),
    "ranking": (PairwiseRanking(), ReplacedWord(vocab=VOCAB)),
}


@pytest.fixture(scope="module")
def tower():
    sizes = {"layers": 1, "width": 8, "heads": 2, "dropout": 0.3}
    encoder = transformer(
        vocab=VOCAB, positions=LearnedPositions(12), initializer=Normal(0.3), **sizes
    )
    module = Model(encoder=encoder, heads={"pool": Pooler(), "score": Classifier(1)})
    init = jax.jit(
        lambda ids: core_towers.init({"main": module}, jax.random.key(0), {"input_ids": ids})
    )
    return module, init(jnp.zeros((1, 4), jnp.int32))["main"]


@pytest.mark.full
@pytest.mark.parametrize(("objective", "view"), CASES.values(), ids=CASES.keys())
def test_the_second_text_has_dropout_of_its_own(objective, view, tower):
    module, params = tower
    ids = np.random.default_rng(0).integers(4, VOCAB.size, (4, 12))
    real = np.arange(12) < 10  # two places for [CLS] and [SEP]
    batch = {
        "input_ids": ids * real,
        "segment_ids": np.broadcast_to(real, ids.shape),
        "rows": np.arange(4),
    }
    batch = {name: jnp.asarray(value, jnp.int32) for name, value in batch.items()}
    batch = view(jax.random.key(0), batch)

    @jax.jit
    def run(key):
        loud = core_towers.Tower(module, params, train=True)
        quiet = core_towers.Tower(module, params)
        return [objective({"main": tower}, batch, key).sum for tower in (loud, quiet)]

    (a, quiet), (again, _), (b, silent) = (run(jax.random.key(seed)) for seed in (1, 1, 2))
    assert float(quiet.sum()) == float(silent.sum()) and np.isfinite(a).all()
    np.testing.assert_array_equal(a, again)
    assert not np.allclose(a, b, rtol=1e-4)
