"""HIBERT's masking of whole sentences against its definition, slot by slot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.sentence_masking import SentenceMasking
from support import corrupting
from support.corrupting import numpied

VOCAB = Vocab(size=1000, pad=1, unk=0, cls=2, sep=3, mask=4)
SLOTS, WIDTH, ROWS = 20, 8, 768
HIDE = SentenceMasking(vocab=VOCAB, sentences=SLOTS, width=WIDTH)


@pytest.fixture(scope="module")
def hidden():
    batch = corrupting.slots(ROWS, SLOTS, WIDTH, vocab=VOCAB)
    return jax.tree.map(np.asarray, batch), numpied(HIDE, 0, batch)


def slots(batch, row, name="input_ids"):
    return batch[name][row].reshape(SLOTS, WIDTH)


def chosen(after, row):
    return after["sentence_positions"][row][after["sentence_weights"][row] > 0]


def test_the_number_is_exact_and_the_sentences_are_there(hidden):
    before, after = hidden
    assert after["sentence_positions"].shape == (ROWS, 3)
    for row in range(1, ROWS):
        there = slots(before, row, "segment_ids").any(1)
        at = chosen(after, row)
        assert len(at) == max(1, int(there.sum() * 0.15 + 0.5)) == len(set(at.tolist()))
        assert there[at].all()


def test_a_chosen_sentence_is_masked_replaced_or_kept_and_no_other_changes(hidden):
    before, after = hidden
    fates = {"masked": 0, "replaced": 0, "kept": 0}
    for row in range(ROWS):
        was, now = slots(before, row), slots(after, row)
        at = chosen(after, row)
        others = np.setdiff1d(np.arange(SLOTS), at)
        np.testing.assert_array_equal(was[others], now[others])
        real = slots(after, row, "segment_ids")
        np.testing.assert_array_equal(real, np.where(now != 1, 1 + np.arange(SLOTS)[:, None], 0))
        np.testing.assert_array_equal(
            slots(after, row, "positions"), np.where(now != 1, np.arange(WIDTH), 0)
        )
        if not was[1:].any() or (was[1] == 1).all():
            continue  # one sentence has no other to become
        for slot in at:
            frame = np.isin(was[slot], [1, 2, 3])
            if (now[slot] == np.where(frame, was[slot], 4)).all():
                fates["masked"] += 1
            elif (now[slot] == was[slot]).all():
                fates["kept"] += 1
            else:
                assert any(
                    (now[slot] == was[k]).all() and (was[k] != 1).any()
                    for k in range(SLOTS)
                    if k != slot
                )
                fates["replaced"] += 1
    count = sum(fates.values())
    for fate, share in {"masked": 0.8, "replaced": 0.1, "kept": 0.1}.items():
        assert abs(fates[fate] / count - share) < 3 * np.sqrt(share * (1 - share) / count), fates


def test_the_decoder_reads_each_sentence_as_it_was(hidden):
    before, after = hidden
    assert after["decoder_labels"].shape == (ROWS, 3 * WIDTH)
    for row in range(0, ROWS, 3):
        was = slots(before, row)
        for number, slot in enumerate(chosen(after, row)):
            sentence = was[slot][was[slot] != 1]
            here = slice(number * WIDTH, number * WIDTH + len(sentence) - 1)
            np.testing.assert_array_equal(after["decoder_input_ids"][row][here], sentence[:-1])
            np.testing.assert_array_equal(after["decoder_labels"][row][here], sentence[1:])
            np.testing.assert_array_equal(
                after["decoder_positions"][row][here], np.arange(len(sentence) - 1)
            )
            assert (after["decoder_segment_ids"][row][here] == number + 1).all()
            assert (after["decoder_weights"][row][here] == 1).all()
        sizes = [(was[slot] != 1).sum() - 1 for slot in chosen(after, row)]
        assert after["decoder_weights"][row].sum() == sum(sizes)
    unused = after["decoder_weights"] == 0
    assert (after["decoder_segment_ids"][unused] == 0).all() and (
        after["decoder_input_ids"][unused] == 1
    ).all()


def test_the_sentence_that_takes_a_place_is_any_other():
    swap = SentenceMasking(vocab=VOCAB, sentences=4, width=2, mask=0.0, random=1.0)
    ids = jnp.tile(jnp.array([[2, 10, 2, 11, 2, 12, 2, 13]], jnp.int32), (6000, 1))
    out = numpied(swap, 0, {"input_ids": ids})
    at = out["sentence_positions"][:, 0]
    new = np.take_along_axis(out["input_ids"][:, 1::2], at[:, None], 1)[:, 0] - 10
    counts = np.bincount(at * 4 + new, minlength=16).reshape(4, 4)
    assert (np.diag(counts) == 0).all()
    others = counts[~np.eye(4, dtype=bool)]
    assert ((others - 500) ** 2 / 500).sum() < 31.3  # 99.9% point, 11 degrees of freedom


def test_one_sentence_has_no_other_and_a_row_of_padding_none():
    swap = SentenceMasking(vocab=VOCAB, sentences=4, width=2, mask=0.0, random=1.0)
    ids = jnp.array([[1, 1, 2, 10, 1, 1, 1, 1], [1] * 8], jnp.int32)
    segments = jnp.array([0, 0, 2, 2, 0, 0, 0, 0]) * (ids != 1)
    out = jax.jit(swap)(jax.random.key(0), {"input_ids": ids, "segment_ids": segments})
    np.testing.assert_array_equal(out["input_ids"], ids)
    assert out["sentence_weights"].sum(1).tolist() == [1, 0]
    assert out["decoder_weights"].sum(1).tolist() == [1, 0]
    assert out["sentence_positions"].tolist() == [[1], [0]]
