"""The memory of pooled string embeddings against all occurrences so far."""

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.inference.words.pooled_strings import PooledStrings

CALLS = [["a b a", "c"], ["b a", "a"], ["d"]]


class Model:
    """Every occurrence has another vector."""

    def __init__(self):
        self.draw = np.random.default_rng(0)

    def encode(self, texts, layers):
        assert layers
        return [self.draw.normal(size=(1, len(text.split()), 3)) for text in texts]


@pytest.mark.parametrize(("pooling", "of"), [("min", np.min), ("max", np.max), ("mean", np.mean)])
def test_a_word_has_the_pooled_vector_of_its_occurrences_so_far(pooling, of):
    pooled, own, seen = PooledStrings(Model(), pooling), Model(), {}
    for texts in CALLS:
        found, vectors = pooled(texts), own.encode(texts, True)
        for text, rows in zip(texts, vectors, strict=True):
            for word, vector in zip(text.split(), rows[0], strict=True):
                seen.setdefault(word, []).append(vector)
        for text, rows, got in zip(texts, vectors, found, strict=True):
            expected = [of(seen[word], axis=0) for word in text.split()]
            np.testing.assert_allclose(got, np.concatenate([expected, rows[0]], -1), atol=1e-12)
    pooled.clear()
    last = pooled(["a"])[0]
    np.testing.assert_array_equal(last[:, :3], last[:, 3:])
    with pytest.raises(UserError, match="pooling"):
        PooledStrings(Model(), "median")
