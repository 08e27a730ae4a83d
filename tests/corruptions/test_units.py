"""Masking of tokens, whole words, n-grams and spans against sequential definitions, and their laws
of length."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.streams import named
from ptm_jax.corruptions.base import draws
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.corruptions.masking.units import (
    Masking,
    NGrams,
    NormalSpans,
    Spans,
    Units,
    WholeWords,
    draw_lengths,
)
from support.corrupting import THOUSAND as VOCAB
from support.corrupting import bordered, numpied

UNITS = {
    "tokens": None,
    "words": WholeWords(),
    "albert": NGrams(),
    "unilm": NGrams(shares=(0.8, 0.1, 0.1), whole_words=False),
    "spanbert": Spans(),
    "infoword": NormalSpans(),
}
BY_WORDS, BOUNDED = ("words", "albert", "spanbert"), ("spanbert", "infoword")


def maskable(batch):
    return (batch["segment_ids"] > 0) & ~np.isin(batch["input_ids"], VOCAB.specials)


def words_of(batch, row, allowed):
    """The words of a row as lists of positions: a new one at a start, after a gap, and at a
    document's border."""
    words, ids = [], np.flatnonzero(allowed[row])
    for at in ids:
        follows = words and words[-1][-1] == at - 1
        same = follows and batch["segment_ids"][row, at] == batch["segment_ids"][row, at - 1]
        if same and not batch["word_starts"][row, at]:
            words[-1].append(at)
        else:
            words.append([at])
    return words


@pytest.fixture(scope="module")
def before():
    return jax.tree.map(np.asarray, bordered(1024))


@pytest.fixture(scope="module")
def masked():
    @functools.cache
    def of(name, together=False):
        tokens = TokenMasking(vocab=VOCAB)
        masking = (
            tokens
            if name == "tokens"
            else Masking(vocab=VOCAB, units=UNITS[name], together=together)
        )
        return numpied(masking, 0, bordered(1024))

    return of


def chosen_of(after, shape):
    """[B, L] True at the used positions, which are ascending and first."""
    chosen = np.zeros(shape, bool)
    for row, (positions, weights) in enumerate(
        zip(after["mlm_positions"], after["mlm_weights"], strict=True)
    ):
        used = positions[weights > 0]
        assert (np.diff(used) > 0).all() and (np.diff(weights) <= 0).all()
        chosen[row, used] = True
    return chosen


def budget(batch):
    """[B] the largest number of tokens to mask."""
    return np.array(
        [min(20, max(1, math.floor(n * 0.15 + 0.5))) if n else 0 for n in maskable(batch).sum(1)]
    )


@pytest.mark.full
@pytest.mark.parametrize("name", UNITS)
def test_only_maskable_tokens_change_and_labels_are_the_tokens(name, before, masked):
    after = masked(name)
    assert after["mlm_positions"].shape == after["mlm_weights"].shape == (1024, 20)
    chosen = chosen_of(after, before["input_ids"].shape)
    assert not (chosen & ~maskable(before)).any()
    np.testing.assert_array_equal(after["input_ids"][~chosen], before["input_ids"][~chosen])
    assert not np.isin(after["input_ids"][chosen], [0, 2, 3]).any()
    labels = np.take_along_axis(before["input_ids"], after["mlm_positions"], 1)
    np.testing.assert_array_equal(after["mlm_labels"], labels)
    if name in ("tokens", "unilm", "infoword"):
        assert (chosen.sum(1) == budget(before))[before["segment_ids"].sum(1) > 40].all(), (
            "tokens use the whole budget"
        )


def sequential(words, segments, priority, lengths, left):
    """The unit of each token of a row, one unit after the other: whole words, in one stretch,
    within the budget."""
    units = np.zeros(len(segments), int)
    for unit, length in enumerate(lengths, 1):
        free = [k for k, word in enumerate(words) if not units[word[0]] and len(word) <= left]
        if not free:
            break
        first = max(free, key=lambda k: priority[words[k][0]])
        last = words[first][0] - 1
        for word in words[first : first + length]:
            goes_on = word[0] == last + 1 and segments[word[0]] == segments[words[first][0]]
            if not goes_on or units[word[0]] or len(word) > left:
                break
            units[word], left, last = unit, left - len(word), word[-1]
    return units


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in UNITS if name != "tokens"])
def test_selection_is_the_sequential_one(name, before, masked):
    kind, count, key = UNITS[name], budget(before), named(jax.random.key(0), "choose")
    propose = jax.jit(lambda key, batch, count: kind.propose(key, batch, VOCAB, count, 20))
    found = np.asarray(propose(key, before, jnp.asarray(count)))
    np.testing.assert_array_equal(found > 0, chosen_of(masked(name), found.shape))
    rows, allowed = jnp.arange(1024), maskable(before)
    if name in BOUNDED:  # a token of the same document on both sides
        segments = np.pad(before["segment_ids"], ((0, 0), (1, 1)), constant_values=-1)
        allowed &= (segments[:, :-2] == segments[:, 1:-1]) & (segments[:, 2:] == segments[:, 1:-1])
    priority = np.asarray(draws(named(key, "starts"), rows, 128))
    lengths = np.asarray(draw_lengths(named(key, "lengths"), rows, 20, kind.distribution()))
    for row in range(0, 1024, 7):
        words = (
            words_of(before, row, allowed)
            if name in BY_WORDS
            else [[at] for at in np.flatnonzero(allowed[row])]
        )
        expected = sequential(
            words, before["segment_ids"][row], priority[row], lengths[row], count[row]
        )
        np.testing.assert_array_equal(found[row], expected, err_msg=f"row {row}")


LAWS = {
    "albert": [6 / 11, 3 / 11, 2 / 11],
    "unilm": [0.8, 0.1, 0.1],
    "spanbert": [0.2 * 0.8**n / (1 - 0.8**10) for n in range(10)],
    # P(N(5, 1) rounds to n), from tables of the normal distribution.
    "infoword": [
        0.00023,
        0.00598,
        0.06060,
        0.24173,
        0.38292,
        0.24173,
        0.06060,
        0.00598,
        0.00023,
        0.0,
    ],
}


@pytest.mark.parametrize("name", LAWS)
def test_lengths_follow_the_law_within_three_standard_errors(name):
    lengths = np.asarray(
        draw_lengths(jax.random.key(5), jnp.arange(4096), 8, UNITS[name].distribution())
    )
    expected = np.asarray(LAWS[name])
    shares = np.bincount(lengths.ravel(), minlength=len(expected) + 1)[1:] / lengths.size
    assert (
        np.abs(shares - expected) < 3 * np.sqrt(expected * (1 - expected) / lengths.size) + 1e-4
    ).all(), shares


def test_the_mean_span_of_spanbert_is_the_published_one():
    mean = sum(n * share for n, share in enumerate(Spans().distribution(), 1))
    assert round(mean, 1) == 3.8
    assert NormalSpans(mean=30.0).distribution()[-1] == pytest.approx(1.0)


@pytest.mark.full
@pytest.mark.parametrize("name", BOUNDED)
def test_boundaries_are_the_unmasked_tokens_beside_the_span(name, before, masked):
    after = masked(name)
    chosen = chosen_of(after, before["input_ids"].shape)
    for row in range(0, 1024, 5):
        for p in range(20):
            left, right, offset = (
                int(after[f"span_{field}"][row, p]) for field in ("left", "right", "offset")
            )
            if after["mlm_weights"][row, p] == 0:
                assert (left, right, offset) == (0, 0, 0)
                continue
            at = int(after["mlm_positions"][row, p])
            assert left < at < right and offset == at - left - 1
            assert (
                chosen[row, left + 1 : right].all()
                and not chosen[row, left]
                and not chosen[row, right]
            )
            assert len(set(before["segment_ids"][row, left : right + 1])) == 1


@pytest.mark.full
def test_one_draw_for_a_span(before, masked):
    after = masked("spanbert", together=True)
    fates = []
    for row in range(1024):
        used = after["mlm_weights"][row] > 0
        for left in set(after["span_left"][row, used]):
            places = after["mlm_positions"][row, used & (after["span_left"][row] == left)]
            if (
                len(places) == 1
            ):  # a random word may be the old one: several are all alike or none is
                continue
            now, then = after["input_ids"][row, places], before["input_ids"][row, places]
            kinds = {"mask": now == 4, "same": now == then, "random": (now != 4) & (now != then)}
            fates.append(next((kind for kind, here in kinds.items() if here.all()), "mixed"))
    n = len(fates)
    assert n > 1500
    assert fates.count("mixed") <= 2  # 0.1 / 995 of the tokens of 200 random spans
    for kind, expected in (("mask", 0.8), ("same", 0.1), ("random", 0.1)):
        assert abs(fates.count(kind) / n - expected) < 3 * np.sqrt(expected * (1 - expected) / n)


@pytest.mark.parametrize("name", UNITS)
def test_shares_are_80_10_10_within_three_standard_errors(name, masked):
    after = masked(name)
    used = after["mlm_weights"] > 0
    now = np.take_along_axis(after["input_ids"], after["mlm_positions"], 1)[used]
    labels, n = after["mlm_labels"][used], used.sum()
    assert n > 9_000
    for share, expected in (((now == 4).mean(), 0.8), ((now == labels).mean(), 0.1 + 0.1 / 995)):
        assert abs(share - expected) < 3 * np.sqrt(expected * (1 - expected) / n)


def test_a_chooser_of_ones_own():
    class Everything(Units):
        def propose(self, key, batch, vocab, count, most):
            return (jnp.arange(batch["input_ids"].shape[1]) < count[:, None]).astype(jnp.int32)

    batch = {"input_ids": jnp.full((2, 20), 7)}
    out = jax.jit(Masking(vocab=VOCAB, units=Everything(), mask=1.0, random=0.0))(
        jax.random.key(0), batch
    )
    assert out["mlm_positions"].tolist() == [[0, 1, 2]] * 2
    assert (out["input_ids"][:, :3] == 4).all() and "span_left" not in out
