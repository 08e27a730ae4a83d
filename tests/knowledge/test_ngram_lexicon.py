"""The lexicon of n-grams against counts of every window of a text."""

import collections
import dataclasses
import itertools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.knowledge.from_text.ngram_lexicon import NGramLexicon
from ptm_jax.statistics import bigrams

VOCAB = Vocab(size=30, pad=0, unk=1, cls=2, sep=3, mask=4)


def text():
    """Two blocks of sentences: the words (5 6), (7 8 9) and (10 11 12 13) among single tokens."""
    draw, blocks = np.random.default_rng(1), []
    words = [(5, 6), (7, 8, 9), (10, 11, 12, 13), *((t,) for t in range(14, 24)), (1,)]
    for _ in range(2):
        sentences = [
            [t for w in draw.integers(0, len(words), draw.integers(1, 9)) for t in words[w]]
            for _ in range(60)
        ]
        lengths = np.array([len(one) for one in sentences], np.int32)
        tokens = np.array([t for one in sentences for t in one], np.int32)
        blocks.append(Block(tokens, lengths, np.array([60], np.int32), np.zeros(1, bool)))
    return blocks


def corpus():
    blocks = text()
    counts = np.bincount(np.concatenate([b.tokens for b in blocks]), minlength=VOCAB.size)
    return types.SimpleNamespace(
        vocab=VOCAB,
        counts=lambda split: counts,
        bigrams=lambda: bigrams.count(blocks, VOCAB.size),
        blocks=lambda split: blocks,
    )


def defined(longest, least, pmi):
    """[n-gram] by falling count, from all windows of all sentences."""
    sentences = [
        part.tolist() for b in text() for part in np.split(b.tokens, b.sentence_starts[1:-1])
    ]
    words = collections.Counter(t for one in sentences for t in one)
    pairs = collections.Counter(p for one in sentences for p in itertools.pairwise(one))

    def close(a, b):
        together = pairs[a, b] / pairs.total()
        chance = words[a] / words.total() * words[b] / words.total()
        return math.log(together / chance) >= pmi and 1 not in (a, b)

    found = collections.Counter(
        tuple(one[at : at + n])
        for one in sentences
        for n in range(2, longest + 1)
        for at in range(len(one) - n + 1)
        if all(itertools.starmap(close, itertools.pairwise(one[at : at + n])))
    )
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [gram for gram, count in ranked if count >= least]


def test_the_lexicon_of_a_text():
    given = NGramLexicon(longest=3, least=4, pmi=1.0)
    lexicon = given.filled(given.read(corpus()))
    grams = defined(3, 4, 1.0)
    assert {(5, 6), (7, 8), (7, 8, 9), (10, 11, 12)} <= {*grams} and (10, 11, 12, 13) not in grams
    ids = jnp.array([[*gram, 24] for gram in grams if len(gram) == 3])
    rows = np.asarray(jax.jit(lexicon.every)(ids, jnp.ones_like(ids)))[:, 0]
    numbers = [lexicon.values[row[2], 3] for row in rows]
    assert numbers == [1 + grams.index(gram) for gram in grams if len(gram) == 3]
    wide = dataclasses.replace(given, size=3)
    kept = wide.filled(wide.read(corpus())).values[VOCAB.size + 1 :, 3]
    assert sorted(kept[kept > 0]) == [1, 2]


def test_a_lexicon_in_a_file(tmp_path):
    file = tmp_path / "ngram.txt"
    file.write_text("ab,30\nabc,20\nq,5\n")
    letters = types.SimpleNamespace(
        pieces=[*"....abcdefg"],
        encode_batch=lambda texts: [
            np.array(["....abcdefg".find(c) for c in t], np.int32) for t in texts
        ],
    )
    lexicon = NGramLexicon(file=str(file))
    lexicon = lexicon.filled(lexicon.of_tokenizer(letters))
    found = jax.jit(lexicon.find)(jnp.array([[4, 5, 6, 4, 5]]), jnp.ones((1, 5), jnp.int32))
    assert found.first.tolist() == [[0, 0, 0, 3, 3]]
    assert found.values[0, :, 0].tolist() == [2, 2, 2, 1, 1]
    file.write_text("ab,30\nabc\n")
    with pytest.raises(UserError, match=r"ngram.txt:2 is 'abc'; expected n-gram,count"):
        NGramLexicon(file=str(file)).of_tokenizer(letters)
    with pytest.raises(UserError, match="no such lexicon"):
        NGramLexicon(file=str(tmp_path / "absent")).of_tokenizer(letters)
    with pytest.raises(UserError, match="lower its `least`"):
        NGramLexicon(least=10_000).read(corpus())
    assert NGramLexicon().of_tokenizer(letters) is None
