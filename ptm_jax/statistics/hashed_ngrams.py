"""Character n-grams of words, hashed into buckets as in fastText.

Bojanowski et al. 2017, arXiv 1607.04606, section 3.2. The hash is FNV-1a over the bytes of an
n-gram, with fastText's sign extension: a byte above 127 enters as a negative number. An n-gram
consists of characters, not of bytes. `<` and `>` mark the ends of a word; alone they are no n-gram.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BEGIN, END = b"<", b">"
OFFSET, PRIME = 2166136261, 16777619
"""FNV-1a for 32 bits."""
STEP = 116049371
"""Multiplier of the hash of n-grams of words (fastText's Dictionary::addWordNgrams)."""


def fnv1a(text: bytes) -> int:
    """Returns the 32-bit hash of bytes, with the sign extension of fastText's Dictionary::hash."""
    value = OFFSET
    for byte in text:
        value = ((value ^ (byte | (0xFFFFFF00 if byte > 127 else 0))) * PRIME) & 0xFFFFFFFF
    return value


def ngrams_of(
    words: Sequence[bytes], shortest: int, longest: int, buckets: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (bucket [M] of every n-gram of all words, bounds [n + 1]).

    The n-grams of word i are at bounds[i] to bounds[i + 1].

    words   UTF-8 without `<` and `>`; n-grams have `shortest` to `longest` characters, in
            fastText's order
    """
    if longest < 1 or buckets < 1 or not words:
        return np.zeros(0, np.int64), np.zeros(len(words) + 1, np.int64)
    text = np.frombuffer(b"".join(BEGIN + word + END for word in words) + BEGIN, np.uint8)
    sizes = np.array([len(word) + 2 for word in words])
    ends = np.cumsum(sizes)
    word_of = np.repeat(np.arange(len(words)), sizes)
    first = (text & 0xC0) != 0x80  # of a character
    starts = np.flatnonzero(first[:-1])
    begins, until = (ends - sizes)[word_of[starts]], ends[word_of[starts]]
    signed = text.astype(np.int8).astype(np.int32).view(np.uint32)
    value, count, here, ngrams = (
        np.full(len(starts), OFFSET, np.uint32),
        np.zeros(len(starts), np.int64),
        starts,
        [],
    )
    while len(here):
        value = (value ^ signed[here]) * np.uint32(PRIME)
        here = here + 1
        complete = first[here] | (here == until)
        count = count + complete
        edge = (count == 1) & ((starts == begins) | (here == until))
        chosen = complete & (count >= shortest) & (count <= longest) & ~edge
        ngrams.append((starts[chosen], value[chosen]))
        go = (here < until) & ~(complete & (count >= longest))
        value, count, here, starts, begins, until = (
            x[go] for x in (value, count, here, starts, begins, until)
        )
    places, values = (np.concatenate(parts) for parts in zip(*ngrams, strict=True))
    order = np.argsort(
        places, kind="stable"
    )  # by the first character; shorter n-grams were found first
    bounds = np.searchsorted(word_of[places[order]], np.arange(len(words) + 1))
    return (values[order] % np.uint32(buckets)).astype(np.int64), bounds
