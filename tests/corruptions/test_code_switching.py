"""Words in the language of a dictionary, against a definition row by row."""

import jax
import numpy as np
import pytest

from ptm_jax.core.streams import named
from ptm_jax.corruptions.base import draws
from ptm_jax.corruptions.translation.code_switching import CodeSwitching
from ptm_jax.knowledge.from_text.dictionaries import BilingualDictionary
from ptm_jax.knowledge.mentions import trie
from support import corrupting
from support.corrupting import VOCAB

WORDS = {(i,): [200 + i, 201 + i][: 1 + i % 2] for i in range(20, 120)}
WORDS |= {(i, j): [9] for i in range(20, 40) for j in range(100, 359)}
"""{tokens of a name: tokens of its translation}: a word of one or two, and pairs of words."""
STARTS = np.arange(VOCAB.size) % 5 > 0


def switched(ids, segments, drawn, rate):
    """(token, source, place in the translation) of each new token of a row."""
    size, out = int((segments > 0).sum()), []

    def ends(i):
        return i >= size or segments[i] != segments[i - 1] or STARTS[ids[i]]

    i = 0
    while i < size:
        names = [tuple(ids[i : i + n]) for n in (2, 1) if i + n <= size]
        fits = (n for n in names if n in WORDS and ends(i + len(n)) and STARTS[ids[i]])
        name = next((n for n in fits if len({*segments[i : i + len(n)]}) == 1), None)
        tokens = WORDS[name] if name and drawn[i] < rate else ids[i : i + len(name or "x")]
        if name and drawn[i] < rate:
            out.append([(token, i, n) for n, token in enumerate(tokens)])
        else:
            out += [[(token, i + n, 0)] for n, token in enumerate(tokens)]
        i += len(name or "x")
    room = len(ids) - sum(ids[source] in VOCAB.specials for ((_, source, _), *_) in out)
    fitting = []
    for unit in out:
        special = ids[unit[0][1]] in VOCAB.specials
        room -= 0 if special else len(unit)
        fitting += unit if special or room >= 0 else []
    return fitting


@pytest.mark.parametrize("rate", [0.4, pytest.param(1.0, marks=pytest.mark.full)])
def test_words_of_the_dictionary_are_written_in_its_language(rate):
    starts = STARTS.copy()
    starts[list(VOCAB.specials)] = True
    values = {name: [len(row), *row, 0][:3] for name, row in WORDS.items()}
    lexicon = BilingualDictionary(width=2).filled(trie(values, starts))
    batch = corrupting.documents(rows=24)
    key, masking = jax.random.key(5), CodeSwitching(vocab=VOCAB, dictionary=lexicon, rate=rate)
    out = jax.tree.map(np.asarray, jax.jit(masking)(key, batch))
    drawn = np.asarray(draws(named(key, "words"), batch["rows"], 48))
    batch = jax.tree.map(np.asarray, batch)
    cut = grown = 0
    for row, ids in enumerate(batch["input_ids"]):
        segments = batch["segment_ids"][row]
        wanted = switched(ids, segments, drawn[row], rate)
        size = len(wanted)
        tokens, source, inside = np.array(wanted, int).reshape(size, 3).T
        assert out["input_ids"][row].tolist() == [*tokens, *[VOCAB.pad] * (48 - size)]
        for name in ("segment_ids", "sentences", "token_type_ids"):
            assert out[name][row, :size].tolist() == batch[name][row, source].tolist()
        starts_of = np.where(inside > 0, 0, batch["word_starts"][row, source])
        assert out["word_starts"][row, :size].tolist() == starts_of.tolist()
        counts = [int((segments[source[:n]] == segments[source[n]]).sum()) for n in range(size)]
        assert out["positions"][row, :size].tolist() == counts
        cut += size == 48
        grown += size > (segments > 0).sum()
    assert cut and grown
