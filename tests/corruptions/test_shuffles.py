"""Shuffled trigrams: how many, where, and that nothing else is touched."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.shuffles import TrigramShuffle
from ptm_jax.corruptions.token import TokenMasking

VOCAB = Vocab(size=1000, pad=0, unk=1, cls=2, sep=3, mask=4)
CHAIN = Chain(parts=(TokenMasking(vocab=VOCAB), TrigramShuffle(vocab=VOCAB)))


def batch_of(rows=1024, length=128, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 1000, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, 60] = 2, 3
    real = rng.integers(3, length + 1, rows)
    real[0] = 0
    segments = (np.arange(length) < real[:, None]).astype(np.int32)
    segments[:, 40:] *= 2  # a border without a special token
    return {"input_ids": jnp.asarray(np.where(segments > 0, ids, 0)), "segment_ids": jnp.asarray(segments)}


@pytest.fixture(scope="module")
def drawn():
    shuffle, masking = TrigramShuffle(vocab=VOCAB), jax.jit(CHAIN.parts[0])
    masked = masking(jax.random.key(7), batch_of())
    return jax.tree.map(np.asarray, (masked, jax.jit(shuffle)(jax.random.key(0), masked)))


def test_trigrams_are_permuted_inside_and_nothing_else_changes(drawn):
    masked, out = drawn
    assert out["shuffle_positions"].shape == (1024, 9)
    labels = np.take_along_axis(masked["input_ids"], out["shuffle_positions"], 1)
    np.testing.assert_array_equal(out["shuffle_labels"], labels)
    for row in range(1024):
        hidden = set(masked["mlm_positions"][row][masked["mlm_weights"][row] > 0].tolist())
        used = out["shuffle_weights"][row] > 0
        assert (out["shuffle_positions"][row][~used] == 0).all()
        places = out["shuffle_positions"][row][used]
        assert len(set(places.tolist())) == len(places) and not hidden & set(places.tolist())
        rest = np.ones(128, bool)
        for trigram in places.reshape(-1, 3):
            assert (np.diff(trigram) == 1).all()
            assert len(set(masked["segment_ids"][row][trigram])) == 1
            assert sorted(out["input_ids"][row][trigram]) == sorted(masked["input_ids"][row][trigram])
            assert not np.isin(masked["input_ids"][row][trigram], VOCAB.specials).any()
            rest[trigram] = False
        np.testing.assert_array_equal(out["input_ids"][row][rest], masked["input_ids"][row][rest])
    for name in ("mlm_positions", "mlm_labels", "mlm_weights"):
        np.testing.assert_array_equal(out[name], masked[name])


def test_five_per_cent_of_the_unmasked_tokens(drawn):
    masked, out = drawn
    words = ((masked["segment_ids"] > 0) & ~np.isin(masked["input_ids"], [0, 2, 3])).sum(1) - masked["mlm_weights"].sum(1)
    wanted = [min(3, max(1, int(np.floor(n * 0.05 / 3 + 0.5)))) if n else 0 for n in words]
    trigrams = out["shuffle_weights"].sum(1) / 3
    assert (trigrams <= wanted).all()
    assert (trigrams == wanted)[words > 30].all()


def test_every_order_and_every_place_is_equally_likely():
    rows, length = 8192, 14  # 1.1e5 tokens
    batch = {"input_ids": jnp.broadcast_to(jnp.arange(5, 5 + length), (rows, length))}
    out = jax.tree.map(np.asarray, jax.jit(TrigramShuffle(vocab=VOCAB))(jax.random.key(1), batch))
    assert (out["shuffle_weights"] == 1).all() and out["shuffle_weights"].shape == (rows, 3)
    now = np.take_along_axis(out["input_ids"], out["shuffle_positions"], 1) - out["shuffle_labels"][:, :1]
    orders = [tuple(row) for row in now.tolist()]
    for order in itertools.permutations(range(3)):
        assert abs(orders.count(order) / rows - 1 / 6) < 3 * np.sqrt(5 / 36 / rows)
    counts = np.bincount(out["shuffle_positions"][:, 0], minlength=length)
    assert (counts[12:] == 0).all()
    assert ((counts[:12] - rows / 12) ** 2 / (rows / 12)).sum() < 31.3  # 99.9% point of chi-square, 11 degrees


def test_a_row_is_drawn_by_its_global_index_and_by_the_key():
    corruption, batch = jax.jit(CHAIN), batch_of(rows=64)
    whole, again, other = (corruption(jax.random.key(key), {**batch, "rows": jnp.arange(64)}) for key in (0, 0, 1))
    order = np.roll(np.arange(64), 16)  # the same shapes, so that it is compiled once
    moved = corruption(jax.random.key(0), {field: value[order] for field, value in batch.items()} | {"rows": order})
    for field in whole:
        np.testing.assert_array_equal(whole[field][order], moved[field])
        np.testing.assert_array_equal(whole[field], again[field])
    assert (whole["shuffle_positions"] != other["shuffle_positions"]).any()


def test_a_chain_passes_an_objection_on():
    class Objects:
        def refusal(self, system):
            return f"not with {system}"

    assert Chain(parts=(TrigramShuffle(vocab=VOCAB), Objects())).refusal("this") == "not with this"
    assert CHAIN.refusal("this") is None


@pytest.mark.parametrize("fields", [{"rate": 0.0}, {"rate": 2.0}, {"size": 1}])
def test_impossible_values_are_refused(fields):
    with pytest.raises(ValueError, match="rate"):
        TrigramShuffle(vocab=VOCAB, **fields)
