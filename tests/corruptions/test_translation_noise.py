"""XLM's noise and MASS' fragments equal the released functions on recorded draws.

`golden/mass_released.npz` has inputs, draws and results of `add_noise` of facebookresearch/XLM, and
of `restricted_mask_sent` and `MaskedLanguagePairDataset` of microsoft/MASS, which
`golden/make_mass.py` ran. Draws of a shuffle are recorded as numbers that sort to its order.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.translation.fragments import (
    FragmentDraws,
    PiecedFragment,
    SentenceFragment,
)
from ptm_jax.corruptions.translation.sentence_noise import NoiseDraws, SentenceNoise

VOCAB = Vocab(size=100, bos=0, eos=1, sep=1, pad=2, unk=3, mask=5, extra=(4, *range(6, 14)))


@pytest.fixture(scope="module")
def released():
    with np.load(Path(__file__).parents[1] / "golden" / "mass_released.npz") as file:
        return dict(file)


def rows(ids, sizes=None, language=1):
    """A batch of one sentence a row, of `sizes` tokens."""
    real = np.ones(ids.shape, bool)
    if sizes is not None:
        real = np.arange(ids.shape[1]) < sizes[:, None]
    fields = {
        "input_ids": np.where(real, ids, VOCAB.pad),
        "segment_ids": real,
        "positions": real * np.arange(ids.shape[1]),
        "language_ids": real * language,
    }
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


def applied(value, draws, batch):
    """The batch after these draws, one value, as numpy arrays."""
    return jax.tree.map(np.asarray, jax.jit(value.apply)(jax.tree.map(jnp.asarray, draws), batch))


def test_noise_is_xlms(released):
    batch = rows(released["noise_ids"], released["noise_length"])
    draws = NoiseDraws(*(released[f"noise_{name}"] for name in NoiseDraws._fields))
    out = applied(SentenceNoise(vocab=VOCAB, drop=0.4), draws, batch)
    np.testing.assert_array_equal(out["input_ids"], released["noise_out"])
    sizes = released["noise_out_length"]
    np.testing.assert_array_equal((out["segment_ids"] > 0).sum(1), sizes)
    assert (sizes == 3).any() and (released["noise_length"] == 4).sum() > 20
    places = np.arange(out["input_ids"].shape[1])
    np.testing.assert_array_equal(out["positions"], places * (places < sizes[:, None]))
    np.testing.assert_array_equal(out["language_ids"], out["segment_ids"])


@pytest.mark.parametrize(
    "name, span",
    [
        ("one", None),
        *(pytest.param(*one, marks=pytest.mark.full) for one in (("even", None), ("pieces2", 2))),
        ("pieces", 3),
    ],
)
def test_an_unsupervised_batch_is_that_of_the_released_code(released, name, span):
    case = {key.removeprefix(f"{name}_"): value for key, value in released.items()}
    ids, length = case["ids"], case["ids"].shape[1]
    drawn = [case[key][:, :length] for key in ("order", "fate", "words")]
    draws = FragmentDraws(case["place"], *drawn, drawn[1], drawn[2])
    out = applied(PiecedFragment(vocab=VOCAB, span=span), draws, rows(ids))
    size = case["labels"].shape[1]
    assert size == round(length / 2)
    np.testing.assert_array_equal(out["input_ids"], case["source"])
    np.testing.assert_array_equal(out["source_segments"], case["source"] != VOCAB.mask)
    for field, key in (("labels", "labels"), ("input_ids", "inputs"), ("positions", "positions")):
        np.testing.assert_array_equal(out[f"decoder_{field}"][:, :size], case[key], field)
    assert (out["decoder_weights"].sum(1) == size).all()
    np.testing.assert_array_equal(
        out["decoder_language_ids"][:, :size], np.ones_like(case["labels"])
    )


@pytest.mark.parametrize("form", ["released", "published"])
def test_a_supervised_batch_is_that_of_the_released_code_or_without_its_shift(released, form):
    case = {key.removeprefix("sup_"): value for key, value in released.items()}
    names = "order", "fate", "words", "seen", "others"
    draws = FragmentDraws(case["place"], *(case[name] for name in names))
    assert SentenceFragment(vocab=VOCAB).form == "published"
    batch = rows(case["ids"], case["length"])
    out = applied(SentenceFragment(vocab=VOCAB, form=form), draws, batch)
    np.testing.assert_array_equal(out["decoder_labels"], case["labels"])
    sizes = np.array([max(1, round(0.5 * n)) for n in case["length"]])
    np.testing.assert_array_equal(out["decoder_weights"].sum(1), sizes)
    if form == "released":
        np.testing.assert_array_equal(out["decoder_input_ids"], case["inputs"])
        np.testing.assert_array_equal(out["input_ids"], case["source"])
        assert (out["decoder_positions"].max(1) == sizes - 1).all()
        return
    for row, (count, size) in enumerate(zip(case["length"], sizes, strict=True)):
        ids, place = case["ids"][row, :count], case["place"][row]
        start = 1 if place >= 0.8 else count - size
        if place < 0.6:
            start = 1 + int(case["order"][row, 0] * (count - size - 1))
        np.testing.assert_array_equal(out["decoder_labels"][row, :size], ids[start : start + size])
        before = slice(start - 1, start + size - 1)
        np.testing.assert_array_equal(out["decoder_input_ids"][row, :size], ids[before])
        np.testing.assert_array_equal(out["decoder_positions"][row, :size], np.r_[before])
        inside = np.zeros(count, bool)
        inside[start : start + size] = True
        fate, words = case["fate"][row, :count], case["words"][row, :count]
        hidden = np.where(fate < 0.8, VOCAB.mask, np.where(fate < 0.9, words, ids))
        seen = np.where(inside, hidden, ids)[1:]
        np.testing.assert_array_equal(
            out["input_ids"][row], np.r_[seen, [VOCAB.pad] * (25 - count)]
        )


@pytest.mark.full
def test_shares_of_the_noise_are_those_of_its_fields():
    ids = np.tile(np.r_[1, np.arange(14, 64), 1], (400, 1))
    noise = SentenceNoise(vocab=VOCAB)
    out = jax.tree.map(np.asarray, jax.jit(noise)(jax.random.key(0), rows(ids)))
    words = out["segment_ids"].sum() - 2 * len(ids)
    total = 50 * len(ids)
    for seen, share, count in (
        (total - words, 0.1, total),
        ((out["input_ids"] == VOCAB.mask).sum(), 0.1, words),
    ):
        assert abs(seen / count - share) < 3 * (0.09 / count) ** 0.5
    shuffled = jax.jit(SentenceNoise(vocab=VOCAB, drop=0, blank=0))(jax.random.key(0), rows(ids))
    distance = np.abs(np.asarray(shuffled["input_ids"])[:, 1:-1] - ids[:, 1:-1])
    assert distance.max() == 2 and (np.asarray(shuffled["input_ids"])[:, [0, -1]] == 1).all()
