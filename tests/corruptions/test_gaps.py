"""Gap sentences against a plain ROUGE-1 F, and by putting the sentences back."""

import dataclasses
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.gaps import GapSentences
from support.corrupting import numpied

VOCAB = Vocab(size=1000, pad=0, eos=1, unk=2, sep=3, mask=4)
LENGTH, WIDTH = 96, 64


def batch_of(rows=64, seed=0):
    """Rows of sentences of 2 to 11 words from 30 different ones, so that they overlap, then eos and
    padding."""
    rng = np.random.default_rng(seed)
    ids, sentences = np.zeros((2, rows, LENGTH), np.int32)
    for row in range(rows):
        at = 0
        for number in range(1, rng.integers(2, 13)):
            size = min(rng.integers(2, 12), LENGTH - 1 - at)
            ids[row, at : at + size] = rng.integers(10, 40, size)
            sentences[row, at : at + size] = number
            at += size
        ids[row, at] = 1
    segments = (ids > 0).astype(np.int32)
    fields = {"input_ids": ids, "segment_ids": segments, "sentences": sentences}
    fields["positions"] = np.arange(LENGTH) * segments
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()} | {
        "rows": jnp.arange(rows)
    }


def sentences_of(batch, row):
    number, ids = np.asarray(batch["sentences"])[row], np.asarray(batch["input_ids"])[row]
    return [ids[number == n].tolist() for n in range(1, number.max() + 1) if (number == n).any()]


def rouge(summary, rest, unique):
    """ROUGE-1 F by its definition: harmonic mean of precision and recall of the words."""
    a, b = Counter(summary), Counter(rest)
    if unique:
        a, b = Counter(set(summary)), Counter(set(rest))
    overlap = sum((a & b).values())
    if not overlap:
        return 0.0
    precision, recall = overlap / sum(a.values()), overlap / sum(b.values())
    return 2 * precision * recall / (precision + recall)


def selected(sentences, select, rate=0.3):
    """The chosen sentences by the paper's description, as a set of indices."""
    count = min(max(1, int(len(sentences) * rate + 0.5)), len(sentences) - 1)
    unique, everything = select.endswith("uniq"), range(len(sentences))

    def score(chosen):
        summary = [word for k in sorted(chosen) for word in sentences[k]]
        rest = [word for k in everything if k not in chosen for word in sentences[k]]
        return round(rouge(summary, rest, unique), 9)

    if select == "lead":
        return set(range(count))
    if select.startswith("ind"):
        return set(sorted(everything, key=lambda k: (-score({k}), k))[:count])
    chosen = set()
    for _ in range(count):
        chosen |= {
            min((k for k in everything if k not in chosen), key=lambda k: (-score(chosen | {k}), k))
        }
    return chosen


@pytest.fixture(scope="module")
def outputs():
    batch = batch_of()
    kinds = ("ind_orig", "ind_uniq", "seq_orig", "seq_uniq", "lead", "random")
    return batch, {
        kind: numpied(GapSentences(vocab=VOCAB, select=kind, width=WIDTH), 0, batch)
        for kind in kinds
    }


def hidden_in(batch, out, row):
    """Indices of the sentences of a row that its input lacks."""
    there = set(
        out["sentences"][row][(out["input_ids"][row] != 4) & (out["sentences"][row] > 0)].tolist()
    )
    return {n - 1 for n in range(1, len(sentences_of(batch, row)) + 1) if n not in there}


@pytest.mark.full
@pytest.mark.parametrize("select", ["ind_orig", "ind_uniq", "seq_orig", "seq_uniq", "lead"])
def test_the_chosen_sentences_are_those_of_the_definition(outputs, select):
    batch, outs = outputs
    for row in range(64):
        sentences = sentences_of(batch, row)
        assert hidden_in(batch, outs[select], row) == selected(sentences, select), row


def test_the_four_scores_differ(outputs):
    batch, outs = outputs
    ways = [
        outs[select]["input_ids"] for select in ("ind_orig", "ind_uniq", "seq_orig", "seq_uniq")
    ]
    assert all((a != b).any() for i, a in enumerate(ways) for b in ways[:i])


def test_random_choices_are_uniform_and_of_the_same_number(outputs):
    batch, outs = outputs
    for row in range(64):
        assert len(hidden_in(batch, outs["random"], row)) == len(
            selected(sentences_of(batch, row), "lead")
        )
    tens = jnp.tile(jnp.minimum(1 + jnp.arange(LENGTH) // 8, 10), (4000, 1))
    row = {"input_ids": jnp.full((4000, LENGTH), 9), "sentences": tens}
    chosen = GapSentences(vocab=VOCAB, select="random").chosen(
        jax.random.key(1), row, row["sentences"]
    )
    counts = np.asarray(chosen).sum(0)[1:11]
    assert counts.sum() == 3 * 4000
    assert (abs(counts - 1200) < 4 * np.sqrt(4000 * 0.3 * 0.7)).all()


@pytest.mark.parametrize("select", ["ind_orig", "random"])
def test_sentences_put_back_give_the_row(outputs, select):
    batch, outs = outputs
    out = outs[select]
    for row in range(64):
        hidden = sorted(hidden_in(batch, out, row))
        sentences = sentences_of(batch, row)
        target = [word for k in hidden for word in sentences[k]] + ([1] if hidden else [])
        labels = out["decoder_labels"][row][out["decoder_weights"][row] > 0].tolist()
        assert labels == target[:WIDTH]
        real = out["segment_ids"][row] > 0
        back = []
        for word, number in zip(
            out["input_ids"][row][real], out["sentences"][row][real], strict=True
        ):
            back += sentences[number - 1] if word == 4 else [word]
        assert (
            back
            == np.asarray(batch["input_ids"])[row][
                np.asarray(batch["segment_ids"])[row] > 0
            ].tolist()
        )
        assert (out["input_ids"][row] == 4).sum() == len(hidden)
        assert (
            out["decoder_input_ids"][row][: len(labels)].tolist()
            == [0, *labels[:-1]][: len(labels)]
        )
        assert (np.diff(real.astype(int)) <= 0).all() and (out["input_ids"][row][~real] == 0).all()
        np.testing.assert_array_equal(out["positions"][row][real], np.arange(real.sum()))


def test_words_may_be_masked_as_well():
    batch = batch_of()
    vocab = dataclasses.replace(VOCAB, extra=(999,))
    out = numpied(GapSentences(vocab=vocab, mask_rate=0.15, gap=999), 0, batch)
    assert out["decoder_labels"].shape == (64, 48), "half of the row where no width is given"
    used = out["mlm_weights"] > 0
    assert used.any(1).all()
    assert not np.isin(out["mlm_labels"][used], [0, 1, 4, 999]).any()
    assert (out["input_ids"] == 999).any()


def test_a_row_of_one_sentence_and_a_row_of_padding_predict_nothing():
    ids = jnp.array([[10, 11, 12, 1, 0, 0], [0] * 6], jnp.int32)
    batch = {
        "input_ids": ids,
        "segment_ids": (ids > 0).astype(jnp.int32),
        "sentences": (ids > 5).astype(jnp.int32),
    }
    out = numpied(GapSentences(vocab=VOCAB), 0, batch)
    np.testing.assert_array_equal(out["input_ids"], ids)
    assert out["decoder_weights"].sum() == 0
