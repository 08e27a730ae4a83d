"""The search with copies in 8 bits finds what all cosines find."""

import numpy as np
import pytest

from ptm_jax.inference.words import word_vectors
from ptm_jax.kernels import words
from ptm_jax.kernels.words.nearest import Rounded


@pytest.mark.full
@pytest.mark.parametrize("width", [3, 50, 301])
def test_a_large_table_is_searched_exactly(width, monkeypatch):
    if isinstance(why := words.library("nearest"), str):
        pytest.skip(f"no native kernel here: {why}")
    monkeypatch.setattr(word_vectors, "MANY", 1)
    draw = np.random.default_rng(0)
    rows = draw.normal(0, 10.0 ** draw.integers(-3, 3, (5000, 1)), (5000, width)).astype(np.float32)
    rows[7] = 0
    rows[100:2000] = rows[100] + 1e-3 * np.abs(rows[100]).max() * draw.normal(
        size=(1900, width)
    )  # many near neighbours
    model = word_vectors.WordVectors.of([f"w{n}" for n in range(len(rows))], rows)
    assert model._rounded is not None
    units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    for word, top, among in [
        (0, 10, None),
        (100, 10, None),
        (150, 300, 1000),
        (4999, 1, 5000),
        (3, 10_000, 50),
    ]:
        cosines = (units.astype(np.float64) @ units[word])[:among]
        cosines[word : word + 1] = -np.inf
        best = np.sort(cosines)[::-1][: min(top, len(cosines) - (word < len(cosines)))]
        found = model.most_similar(f"w{word}", top=top, among=among)
        np.testing.assert_allclose([score for _, score in found], best, atol=1e-6)
        np.testing.assert_allclose([cosines[int(name[1:])] for name, _ in found], best, atol=1e-6)


def test_rounding_errors_are_bounds():
    rows = np.random.default_rng(0).normal(size=(30, 20)).astype(np.float32)
    rounded = Rounded.of(rows)
    lost = rows - rounded.numbers[:, :20] * rounded.scales[:, None]
    np.testing.assert_allclose(rounded.errors, np.linalg.norm(lost, axis=1), rtol=1e-4)
    assert rounded.numbers.shape == (30, 32) and np.abs(lost).max() <= 0.5001 * rounded.scales.max()
