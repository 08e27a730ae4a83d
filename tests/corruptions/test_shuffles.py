"""Shuffled trigrams: how many, where, and that nothing else is touched."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.corruptions.masking.shuffles import TrigramShuffle
from ptm_jax.corruptions.masking.token import TokenMasking
from support.corrupting import THOUSAND as VOCAB
from support.corrupting import bordered, numpied


@pytest.fixture(scope="module")
def drawn():
    """Rows of two documents that meet at 40 without a special token, masked; and shuffled after
    that."""
    masked = numpied(TokenMasking(vocab=VOCAB), 7, bordered(512, border=40))
    return masked, numpied(TrigramShuffle(vocab=VOCAB), 0, masked)


@pytest.mark.full
def test_trigrams_are_permuted_inside_and_nothing_else_changes(drawn):
    masked, out = drawn
    assert out["shuffle_positions"].shape == (512, 9)
    labels = np.take_along_axis(masked["input_ids"], out["shuffle_positions"], 1)
    np.testing.assert_array_equal(out["shuffle_labels"], labels)
    for row in range(512):
        hidden = set(masked["mlm_positions"][row][masked["mlm_weights"][row] > 0].tolist())
        used = out["shuffle_weights"][row] > 0
        places = out["shuffle_positions"][row][used]
        assert not hidden & set(places.tolist())
        rest = np.ones(128, bool)
        for trigram in places.reshape(-1, 3):
            assert (np.diff(trigram) == 1).all()
            assert len(set(masked["segment_ids"][row][trigram])) == 1
            assert sorted(out["input_ids"][row][trigram]) == sorted(
                masked["input_ids"][row][trigram]
            )
            assert not np.isin(masked["input_ids"][row][trigram], VOCAB.specials).any()
            rest[trigram] = False
        np.testing.assert_array_equal(out["input_ids"][row][rest], masked["input_ids"][row][rest])
    for name in ("mlm_positions", "mlm_labels", "mlm_weights"):
        np.testing.assert_array_equal(out[name], masked[name])


def test_five_per_cent_of_the_unmasked_tokens(drawn):
    masked, out = drawn
    words = ((masked["segment_ids"] > 0) & ~np.isin(masked["input_ids"], [0, 2, 3])).sum(
        1
    ) - masked["mlm_weights"].sum(1)
    wanted = [min(3, max(1, int(np.floor(n * 0.05 / 3 + 0.5)))) if n else 0 for n in words]
    trigrams = out["shuffle_weights"].sum(1) / 3
    assert (trigrams <= wanted).all()
    assert (trigrams == wanted)[words > 30].all()


def test_every_order_and_every_place_is_equally_likely():
    rows, length = 8192, 14  # 1.1e5 tokens
    batch = {"input_ids": jnp.broadcast_to(jnp.arange(5, 5 + length), (rows, length))}
    out = numpied(TrigramShuffle(vocab=VOCAB), 1, batch)
    assert (out["shuffle_weights"] == 1).all() and out["shuffle_weights"].shape == (rows, 3)
    now = (
        np.take_along_axis(out["input_ids"], out["shuffle_positions"], 1)
        - out["shuffle_labels"][:, :1]
    )
    orders = [tuple(row) for row in now.tolist()]
    for order in itertools.permutations(range(3)):
        assert abs(orders.count(order) / rows - 1 / 6) < 3 * np.sqrt(5 / 36 / rows)
    counts = np.bincount(out["shuffle_positions"][:, 0], minlength=length)
    assert (counts[12:] == 0).all()
    assert (
        (counts[:12] - rows / 12) ** 2 / (rows / 12)
    ).sum() < 31.3  # 99.9% point of chi-square, 11 degrees
