"""Token masking against its definition: exact counts, shares, and what must never be touched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import capacity, choose, draw_words
from ptm_jax.corruptions.token import TokenMasking

VOCAB = Vocab(size=1000, pad=0, unk=1, cls=2, sep=3, mask=4)


def batch_of(rows=1024, length=128, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 1000, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, 60] = 2, 3
    real = rng.integers(3, length + 1, rows)
    segments = (np.arange(length) < real[:, None]).astype(np.int32)
    segments[:, 61:] *= 2  # two documents in a row
    ids = np.where(segments > 0, ids, 0)
    return {"input_ids": jnp.asarray(ids), "segment_ids": jnp.asarray(segments)}


@pytest.fixture(scope="module")
def drawn():
    batch = batch_of()
    out = jax.jit(TokenMasking(vocab=VOCAB))(jax.random.key(0), batch)
    return jax.tree.map(np.asarray, (batch, out))


def test_capacity_is_the_published_one():
    assert (capacity(128, 0.15), capacity(512, 0.15)) == (20, 77)


def test_count_is_exact_in_every_row(drawn):
    before, after = drawn
    maskable = ((before["segment_ids"] > 0) & ~np.isin(before["input_ids"], [0, 2, 3, 4])).sum(1)
    wanted = [min(20, max(1, int(np.floor(n * 0.15 + 0.5)))) if n else 0 for n in maskable]
    assert after["mlm_weights"].sum(1).tolist() == wanted
    assert after["mlm_positions"].shape == (1024, 20)


def test_labels_are_the_original_tokens_at_distinct_maskable_places(drawn):
    before, after = drawn
    for row in range(0, 1024, 37):
        used = after["mlm_weights"][row] > 0
        places = after["mlm_positions"][row][used]
        assert len(set(places.tolist())) == len(places)
        assert (before["segment_ids"][row, places] > 0).all()
        assert not np.isin(before["input_ids"][row, places], VOCAB.specials).any()
        np.testing.assert_array_equal(after["mlm_labels"][row][used], before["input_ids"][row, places])


def test_nothing_else_changes(drawn):
    before, after = drawn
    chosen = np.zeros(before["input_ids"].shape, bool)
    for row in range(1024):
        chosen[row, after["mlm_positions"][row][after["mlm_weights"][row] > 0]] = True
    np.testing.assert_array_equal(after["input_ids"][~chosen], before["input_ids"][~chosen])
    assert not np.isin(after["input_ids"][chosen], [0, 2, 3]).any()


def test_shares_are_80_10_10_within_three_standard_errors(drawn):
    before, after = drawn
    used = after["mlm_weights"] > 0
    now = np.take_along_axis(after["input_ids"], after["mlm_positions"], 1)[used]
    labels = after["mlm_labels"][used]
    n = len(labels)
    assert n > 10_000
    shares = {"mask": (now == 4).mean(), "same": (now == labels).mean()}
    # A random word equals the original one time in 995: a part of the 10% counts as kept.
    for name, expected in {"mask": 0.8, "same": 0.1 + 0.1 / 995}.items():
        error = np.sqrt(expected * (1 - expected) / n)
        assert abs(shares[name] - expected) < 3 * error, (name, shares[name], expected)


def test_every_maskable_place_is_equally_likely():
    batch = {"input_ids": jnp.full((4096, 32), 7), "segment_ids": jnp.ones((4096, 32), jnp.int32)}
    out = TokenMasking(vocab=VOCAB)(jax.random.key(3), batch)
    counts = np.bincount(np.asarray(out["mlm_positions"])[np.asarray(out["mlm_weights"]) > 0], minlength=32)
    expected = 4096 * 5 / 32
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < 61.1  # 99.9% point of chi-square with 31 degrees of freedom


def test_random_words_are_uniform_over_the_words():
    words = np.asarray(draw_words(jax.random.key(0), jnp.arange(2000), (50,), VOCAB))
    assert not np.isin(words, VOCAB.specials).any()
    counts = np.bincount(words.ravel(), minlength=1000)[[1, *range(5, 1000)]]
    expected = words.size / 996
    assert ((counts - expected) ** 2 / expected).sum() < 1140  # 99.9% point, 995 degrees of freedom


def test_same_key_same_draw_other_key_other_draw():
    batch, corruption = batch_of(rows=64), TokenMasking(vocab=VOCAB)
    first, again, other = (corruption(jax.random.key(k), batch)["input_ids"] for k in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_a_row_is_drawn_by_its_global_index_wherever_it_lies():
    batch, corruption = batch_of(rows=64), TokenMasking(vocab=VOCAB)
    whole = corruption(jax.random.key(0), {**batch, "rows": jnp.arange(64)})
    part = {name: value[16:32] for name, value in batch.items()}
    half = corruption(jax.random.key(0), {**part, "rows": jnp.arange(16, 32)})
    for name in ("input_ids", "mlm_positions", "mlm_labels", "mlm_weights"):
        np.testing.assert_array_equal(whole[name][16:32], half[name])


def test_a_row_of_padding_has_no_predictions():
    batch = {"input_ids": jnp.zeros((2, 16), jnp.int32), "segment_ids": jnp.zeros((2, 16), jnp.int32)}
    out = TokenMasking(vocab=VOCAB)(jax.random.key(0), batch)
    assert out["mlm_weights"].sum() == 0
    assert (out["input_ids"] == 0).all()


def test_choose_takes_every_place_when_all_are_wanted():
    places, weights = choose(jax.random.key(0), jnp.arange(2), jnp.ones((2, 6), bool), jnp.array([6, 2]), 6)
    assert places[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert weights.sum(1).tolist() == [6, 2]


@pytest.mark.parametrize("fields", [{"rate": 0.0}, {"rate": 1.5}, {"mask": 0.95, "random": 0.1}, {"mask": -0.1}])
def test_impossible_rates_are_refused(fields):
    with pytest.raises(ValueError, match="rate|shares"):
        TokenMasking(vocab=VOCAB, **fields)


def test_a_vocabulary_without_a_mask_token_is_refused():
    with pytest.raises(ValueError, match="no mask token"):
        TokenMasking(vocab=Vocab(size=10))(jax.random.key(0), {"input_ids": jnp.ones((1, 8), jnp.int32)})
