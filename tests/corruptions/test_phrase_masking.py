"""ERNIE 1.0's masks on rows of its demo set, token by token as its reader draws them."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.streams import named
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import draw_words, draws
from ptm_jax.corruptions.knowledge.phrase_masking import (
    KnowledgeMasking,
    KnowledgeUnits,
    unit_starts,
)
from ptm_jax.corruptions.masking.units import Masking
from ptm_jax.knowledge.from_text.ngram_lexicon import NGramLexicon
from ptm_jax.knowledge.mentions import trie
from support.corrupting import numpied

ERNIE = Vocab(size=18000, pad=0, cls=1, sep=2, mask=3, unk=17963)
COPIES, SEED = 40, 3


def recorded():
    """The recorded rows, each `COPIES` times, and their labels of words."""
    lines = (Path(__file__).parent / "recorded" / "ernie_demo.txt").read_text().splitlines()[1:]
    rows = [[list(map(int, part.split())) for part in line.split(";")[:4]] for line in lines]
    length = 64
    ids, words = (
        np.array([row[at] + [fill] * (length - len(row[0])) for row in rows * COPIES], np.int32)
        for at, fill in ((0, 0), (3, -1))
    )
    batch = {
        "input_ids": jnp.asarray(ids),
        "segment_ids": jnp.asarray(ids > 0, jnp.int32),
        "word_starts": jnp.asarray(words == 0, jnp.int32),
        "rows": jnp.arange(len(ids), dtype=jnp.int32),
    }
    return batch, ids, words


def released(ids, words, drawn, whole):
    """What becomes of each token of a row: "", "mask", "random" or "same".

    `words` are 0 where a word begins, 1 inside of one, -1 for specials; `drawn` is a number in [0,
    1) for each token, `whole` whether the row masks words.
    """
    fates, end = [""] * len(ids), 0
    for place, mark in enumerate(words):
        if mark == -1 or place < end:
            continue
        end = place + 1
        while whole and end < len(words) and words[end] == 1:
            end += 1
        if drawn[place] >= 0.15:
            continue
        for inside in range(place, end):
            share = drawn[inside] / 0.15 if inside == place else drawn[inside]
            fates[inside] = "same" if share < 0.1 else "random" if share < 0.2 else "mask"
        if not whole:
            end = place + 1
    return fates


@pytest.mark.parametrize(
    "share",
    [pytest.param(1.0, marks=pytest.mark.full), 0.5, pytest.param(0.0, marks=pytest.mark.full)],
)
def test_the_draw_of_ernie_is_the_released_one(share):
    batch, ids, words = recorded()
    made = numpied(KnowledgeMasking(vocab=ERNIE, words=share, level="phrases"), SEED, batch)
    key, rows, length = jax.random.key(SEED), jnp.arange(len(ids)), ids.shape[1]
    drawn = np.asarray(draws(named(key, "choose"), rows, length))
    whole = np.asarray(draws(named(key, "level"), rows, 1))[:, 0] < share
    others = np.asarray(draw_words(named(key, "words"), rows, (length,), ERNIE))
    assert 0.5 < share or 0 < whole.mean() < 1 or share == 0
    count = 0
    for r in range(len(ids)):
        fates = released(ids[r], words[r], drawn[r], bool(whole[r]))
        expected = {
            place: {"mask": ERNIE.mask, "random": others[r, place], "same": ids[r, place]}[fate]
            for place, fate in enumerate(fates)
            if fate
        }
        limit = made["mlm_positions"].shape[1]
        expected = dict([*expected.items()][:limit])
        used = made["mlm_weights"][r] > 0
        positions = made["mlm_positions"][r][used].tolist()
        assert positions == [*expected]
        assert made["mlm_labels"][r][used].tolist() == ids[r, positions].tolist()
        new = ids[r].copy()
        new[positions] = [*expected.values()]
        assert np.array_equal(new, made["input_ids"][r])
        count += len(positions)
    real = (words >= 0).sum()
    spread = 3 * np.sqrt(0.15 * 0.85 / real) * 2
    assert abs(count / real - 0.15) < spread


def test_units_of_a_level():
    """The n-grams (7 8 9) and (9 5) of a lexicon; the words begin where `word_starts` is 1."""
    table = trie({(7, 8, 9): (1,), (9, 5): (2,)}, np.ones(20, bool))
    lexicon = dataclasses.replace(NGramLexicon(), _arrays={"values": table})
    batch = {
        "input_ids": jnp.array([[2, 6, 7, 8, 9, 5, 9, 5, 6, 3]]),
        "word_starts": jnp.array([[0, 1, 0, 1, 0, 0, 1, 1, 0, 0]]),
    }

    def starts(level):
        found = jax.jit(lambda batch: unit_starts(batch, level, lexicon))(batch)
        return np.flatnonzero(found[0]).tolist()

    assert starts("characters") == [*range(10)]
    assert starts("phrases") == [1, 3, 6, 7]
    assert starts("entities") == [1, 2, 5, 6, 8]
    published = Masking(vocab=ERNIE, units=KnowledgeUnits(level="entities", lexicon=lexicon))
    many = {name: jnp.repeat(field, 60, 0) for name, field in batch.items()}
    made = numpied(published, 0, {**many, "rows": jnp.arange(60)})
    seen = {
        tuple(positions[used > 0].tolist())
        for positions, used in zip(made["mlm_positions"], made["mlm_weights"], strict=True)
    }
    assert seen == {(1,), (5,), (8,)}


def test_what_is_wrong_is_one_line():
    with pytest.raises(ValueError, match="expected one of characters, phrases, entities"):
        KnowledgeMasking(vocab=ERNIE, level="words")
    with pytest.raises(ValueError, match="words is 2"):
        KnowledgeMasking(vocab=ERNIE, words=2)
    with pytest.raises(ValueError, match="set examples to Annotated"):
        unit_starts({"input_ids": jnp.zeros((1, 2), jnp.int32)}, "phrases", NGramLexicon())
