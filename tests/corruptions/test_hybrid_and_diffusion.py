"""The rows of GPT-BERT's hybrid, and the noise of masked diffusion, against numpy and torch's
formulas."""

import numpy as np
import pytest

from ptm_jax.corruptions.masking.diffusion import DiffusionMasking
from ptm_jax.corruptions.masking.hybrid import HybridMasking
from ptm_jax.corruptions.masking.token import LinearRate, ScheduledMasking, TokenMasking
from support import corrupting
from support.corrupting import VOCAB

ROWS = 512


def test_one_row_in_sixteen_is_causal_and_the_others_are_masked():
    batch = corrupting.documents(rows=64)
    after = corrupting.numpied(HybridMasking(vocab=VOCAB, rate=0.3), 0, batch)
    plain = corrupting.numpied(TokenMasking(vocab=VOCAB, rate=0.3), 0, batch)
    causal = after["causal"] > 0
    assert causal.tolist() == [row % 16 == 15 for row in range(64)]
    assert np.array_equal(after["input_ids"][causal], np.asarray(batch["input_ids"])[causal])
    assert (after["order"][causal] == np.arange(48)).all() and not after["order"][~causal].any()
    assert not after["mlm_weights"][causal].any()
    for field in ("input_ids", "mlm_positions", "mlm_labels", "mlm_weights"):
        assert np.array_equal(after[field][~causal], plain[field][~causal]), field


@pytest.mark.parametrize(("share", "rows"), [(0.5, 32), (0.25, 16), (0.0, 0), (1.0, 64)])
def test_the_share_of_causal_rows_is_exact(share, rows):
    after = corrupting.numpied(
        HybridMasking(vocab=VOCAB, causal=share), 0, corrupting.documents(rows=64)
    )
    assert after["causal"].sum() == rows


def test_the_masking_rate_in_training_is_that_of_scheduled_masking():
    falling = LinearRate(first=0.4, last=0.1, steps=10)
    scheduled = ScheduledMasking(vocab=VOCAB, training_rate=falling)
    masking = HybridMasking(vocab=VOCAB, training_rate=falling)
    batch = corrupting.documents(rows=64)
    counts = {}
    for step in (0, 5, 20, None):
        stepped = batch if step is None else {**batch, "step": np.int32(step)}
        after = corrupting.numpied(masking, 0, stepped)
        masked = after["causal"] == 0
        plain = corrupting.numpied(scheduled, 0, stepped)
        assert np.array_equal(after["input_ids"][masked], plain["input_ids"][masked])
        counts[step] = after["mlm_weights"].sum()
    words = corrupting.words(batch)[masked].sum()
    shares = {step: count / words for step, count in counts.items()}
    expected = {0: 0.4, 5: 0.25, 20: 0.1, None: 0.15}
    assert all(abs(shares[step] - rate) < 0.02 for step, rate in expected.items()), shares


@pytest.mark.parametrize("noise", ["loglinear", "linear"])
def test_hidden_shares_and_factors_are_the_published_ones(noise):
    """MDLM: sigma = -log1p(-(1 - eps) t), p = 1 - exp(-sigma), factor sigma' / expm1(sigma). LLaDA:
    p = (1 - eps) t + eps, factor 1 / p."""
    eps, uniform = 1e-3, np.linspace(0, 0.999, 50)
    share, scale = DiffusionMasking(vocab=VOCAB, noise=noise).levels(uniform)
    if noise == "linear":
        expected = (1 - eps) * uniform + eps
        factor = 1 / expected
    else:
        time = (1 - eps) * uniform + eps
        sigma, slope = -np.log1p(-(1 - eps) * time), (1 - eps) / (1 - (1 - eps) * time)
        expected, factor = 1 - np.exp(-sigma), slope / np.expm1(sigma)
    np.testing.assert_allclose(share, expected, rtol=1e-5)
    np.testing.assert_allclose(scale, factor, rtol=1e-5)


def test_each_row_hides_its_own_share_of_its_words():
    batch = corrupting.documents(rows=ROWS)
    masking = DiffusionMasking(vocab=VOCAB, strata=ROWS)
    after = corrupting.numpied(masking, 0, batch)
    words, hidden = corrupting.words(batch), after["input_ids"] == VOCAB.mask
    assert not hidden[~words].any() and np.array_equal(after["diffusion_weights"] > 0, words)
    time = 1 / after["diffusion_scale"]
    stratum = np.arange(ROWS) / ROWS  # row i draws from the i-th of the equal parts of [0, 1)
    assert (time >= 1e-3 + 0.999 * stratum - 1e-5).all()
    assert (time <= 1e-3 + 0.999 * (stratum + 1 / ROWS) + 1e-5).all()
    count, share = words.sum(1), 0.999 * time
    error = np.sqrt((count * share * (1 - share)).sum())
    assert abs((hidden.sum(1) - count * share).sum()) < 3 * error
    original = np.asarray(batch["input_ids"])
    for i in range(8):
        used = after["mlm_weights"][i] > 0
        places = after["mlm_positions"][i][used]
        assert np.array_equal(places, np.flatnonzero(hidden[i]))
        assert np.array_equal(after["mlm_labels"][i][used], original[i, places])


def test_a_share_of_the_batches_is_cut_to_one_length():
    batch = corrupting.documents(rows=64)
    masking = DiffusionMasking(vocab=VOCAB, noise="linear", random_length=0.5)
    before, cut = np.asarray(batch["segment_ids"]), []
    for key in range(24):
        after = corrupting.numpied(masking, key, batch)["segment_ids"]
        length = (after > 0).any(0).sum()
        assert np.array_equal(after, np.where(np.arange(48) < length, before, 0))
        cut.append(length < 48)
    assert 5 <= sum(cut) <= 19  # 12 of 24, three standard errors


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"noise": "cosine"}, "noise is 'cosine'"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"strata": 0}, "strata is 0"),
        ({"random_length": 2.0}, "random_length is 2.0"),
    ],
)
def test_settings_outside_their_range_are_named(fields, word):
    with pytest.raises(ValueError, match=word):
        DiffusionMasking(vocab=VOCAB, **fields)
