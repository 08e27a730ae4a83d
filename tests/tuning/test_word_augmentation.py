"""Augmentation for students: candidates, rates and what stays, on models that are arrays."""

import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.tuning.augmentation.word_augmentation import replaced, rewritten

WORDS = [
    "[PAD]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "fine",
    "good",
    "great",
    "film",
    "un",
    "##seen",
    ".",
]
IDS = {word: i for i, word in enumerate(WORDS)}


class Tokenizer:
    def encode_batch(self, texts):
        def pieces(word):
            return ["un", "##seen"] if word == "unseen" else [word]

        return [
            np.array([IDS[p] for word in text.split() for p in pieces(word)], np.int32)
            for text in texts
        ]

    def frame(self, first, second=None):
        second = () if second is None else second
        ids = np.array([1, *first, 2, *second, 2], np.int32)
        return ids, np.array([0] * (len(first) + 2) + [1] * (len(second) + 1), np.int32)

    def decode(self, ids):
        return " ".join(WORDS[i] for i in ids)


class Model:
    """Prefers "great", then "fine", then a piece, at every place."""

    head, tokenizer, system = "mlm", Tokenizer(), types.SimpleNamespace(name="m")
    vocab = types.SimpleNamespace(mask=3, pad=0)

    def __init__(self):
        self.seen = []

    def __call__(self, ids, mask, kinds):
        self.seen += [tuple(row[real > 0]) for row, real in zip(ids, mask, strict=True)]
        logits = np.zeros((*ids.shape, len(WORDS)))
        for rank, word in enumerate(("great", "##seen", "fine")):
            logits[..., IDS[word]] = 3 - rank
        return types.SimpleNamespace(logits=logits)


class Vectors:
    def __contains__(self, word):
        return word == "unseen"

    def most_similar(self, word, top):
        return [types.SimpleNamespace(word="hidden")][:top]


def test_words_become_candidates_of_the_model_or_neighbours():
    model = Model()
    (copies,) = replaced(
        model, ["a good unseen film ."], Vectors(), rate=0.4, candidates=3, times=400, skip={"a"}
    )
    words = [copy.split() for copy in copies]
    assert {w[0] for w in words} == {"a"} and {w[4] for w in words} == {"."}, (
        "stop words and signs stay"
    )
    assert {w[1] for w in words} == {"good", "great", "fine"} and {w[2] for w in words} == {
        "unseen",
        "hidden",
    }
    assert len(set(copies)) == len(copies) and "a good unseen film ." not in copies
    masked = [4, 3, 9, 10, 8, 11]
    assert model.seen[0] == (1, *masked, 2, *(4, 6, 9, 10, 8, 11), 2), (
        "the masked text and the text, as a pair"
    )
    assert len(model.seen) == 2, "good and film: unseen has two tokens"
    with pytest.raises(UserError, match="rate is 2"):
        replaced(model, ["a"], rate=2)


def test_words_are_masked_exchanged_and_dropped_at_their_rates():
    texts = [" ".join(f"{kind}{n}" for n in range(40) for kind in "nv")] * 2

    def tag(words):
        return [word[0] for word in words]

    (copies, _) = rewritten(texts, tag, ngram=0.25, times=400)
    whole = [copy.split() for copy in copies if len(copy.split()) > 5]
    short = [copy.split() for copy in copies if len(copy.split()) <= 5]
    assert abs(len(short) / len(copies) - 0.25) < 3 * np.sqrt(0.25 * 0.75 / len(copies))
    assert {len(copy) for copy in short} == {1, 2, 3, 4, 5}
    words, count = texts[0].split(), 80 * len(whole)
    pairs = [(old, new) for copy in whole for old, new in zip(words, copy, strict=True)]
    masked = sum(new == "[MASK]" for _, new in pairs) / count
    moved = [(old, new) for old, new in pairs if new not in (old, "[MASK]")]
    assert abs(masked - 0.1) < 3 * np.sqrt(0.09 / count)
    assert abs(len(moved) / count - 0.1 * 39 / 40) < 3 * np.sqrt(0.09 / count)
    assert all(old[0] == new[0] for old, new in moved), "the part of speech stays"
    with pytest.raises(UserError, match="probabilities"):
        rewritten(texts, tag, hide=0.9, exchange=0.2)
