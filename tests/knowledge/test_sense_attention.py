"""Polarities in context against thu-coai/SentiLARE's definition (preprocess/prep_sent.py), written
out in numpy."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.core.types import Vocab
from ptm_jax.knowledge.graphs import graph_folder
from ptm_jax.knowledge.graphs.compiling import compile_graph
from ptm_jax.knowledge.graphs.formats import sources
from ptm_jax.knowledge.graphs.graph_store import open_graph
from ptm_jax.knowledge.sense_attention import SenseAttention
from ptm_jax.knowledge.word_classes import POLARITIES, WordClasses

PLAIN = [f"c{n}" for n in range(12)]
PIECES = ["[PAD]", "[UNK]", *PLAIN, "cold", "bad", "odd", "thin", "##s"]
SENSES = {  # word: (rank, positive, negative, words of the gloss)
    "cold": [(1, 0.25, 0.0, "c0 c1 c2"), (2, 0.0, 0.375, "c3 c4"), (3, 0.125, 0.25, "c5")],
    "odd": [(1, 0.0, 0.125, "c6 c7"), (2, 0.5, 0.0, "nothing known"), (3, 0.0, 0.5, "c8 c1")],
    "thin": [(2, 0.125, 0.0, "c9"), (1, 0.0, 0.125, "c10 c11")],
    "bad": [(1, 0.0, 0.625, "c0"), (2, 0.0, 0.0, "c4")],
}
DRAW = np.random.default_rng(0)
SPACE = {word: DRAW.normal(size=3) for word in [*PLAIN, "odd"]}


def tokenizer():
    def encode(texts):
        return [
            np.array([PIECES.index(w) if w in PIECES else 1 for w in text.split()])
            for text in texts
        ]

    def starts():
        return np.array([not piece.startswith(("##", "[")) for piece in PIECES])

    special, vocab = {"[PAD]": 0, "[UNK]": 1}, Vocab(size=len(PIECES), pad=0, unk=1)
    return types.SimpleNamespace(
        pieces=PIECES, special_pieces=special, word_starts=starts, encode_batch=encode, vocab=vocab
    )


@pytest.fixture
def files(tmp_path):
    lines = ["# SentiWordNet v3.0.0", "# POS\tID\tPosScore\tNegScore\tSynsetTerms\tGloss"]
    senses = [(word, *sense) for word in SENSES for sense in SENSES[word]]
    lines += [
        f'a\t{n}\t{p}\t{m}\t{word}#{r}\t{g}; "c5 c5 c5"'
        for n, (word, r, p, m, g) in enumerate(senses)
    ]
    (tmp_path / "swn.txt").write_text(
        "\n".join([*lines, "n\t9\t0\t0.5\tcold#1\tthe illness"]) + "\n"
    )
    rows = [f"{word} {' '.join(map(str, row))}" for word, row in SPACE.items()]
    (tmp_path / "space.vec").write_text("\n".join(rows) + "\n")
    return str(tmp_path / "swn.txt"), str(tmp_path / "space.vec")


def lexicon(files):
    made = SenseAttention(file=files[0], vectors=files[1])
    return made.filled(made.of_tokenizer(tokenizer()))


def score(word, text, of=SENSES):
    """The weighted score of the senses of a word in a text, a list of words."""

    def mean(words):
        return np.sum([SPACE[w] for w in words if w in SPACE] or [np.zeros(3)], 0)

    def cosine(a, b):
        return a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12)

    weights, scores = [], []
    for rank, positive, negative, gloss in of[word]:
        weights.append(np.exp((cosine(mean(gloss.split()), mean(text)) + 1) / (2 * rank)))
        scores.append(positive - negative)
    return np.dot(weights, scores) / np.sum(weights)


def sign(word, text, of=SENSES):
    found = score(word, text, of) if word in of else 0.0
    return POLARITIES.index("+" if found > 0 else "-" if found < 0 else "0")


def drawn(count):
    """Rows of two texts of 6 and 8 words, and their words."""
    texts = [
        [DRAW.choice([*PLAIN, *SENSES, "##s"], size).tolist() for size in (6, 8)]
        for _ in range(count)
    ]
    texts = [[["c0", *text[1:]] for text in pair] for pair in texts]  # a text begins with a word
    ids = [[*(PIECES.index(word) for text in pair for word in text), 0] for pair in texts]
    segments = [[*[1] * 6, *[2] * 8, 0]] * count
    return texts, {"input_ids": jnp.array(ids), "segment_ids": jnp.array(segments)}


def whole(text, place):
    """The word at a place, or none where it goes on or is a piece inside a word."""
    return (
        text[place]
        if text[place] != "##s" and (place + 1 == len(text) or text[place + 1] != "##s")
        else ""
    )


def test_polarities_are_signs_of_weighted_senses(files):
    texts, batch = drawn(80)
    found = np.asarray(jax.jit(lexicon(files).classes)(batch)["polarities"])
    signs = {word: set() for word in SENSES}
    for row, pair in zip(found, texts, strict=True):
        wanted = [(whole(text, place), text) for text in pair for place in range(len(text))]
        assert row.tolist() == [*(sign(*one) for one in wanted), POLARITIES.index("0")]
        for word, text in wanted:
            if word:
                signs.get(word, set()).add(sign(word, text))
    assert all(len(signs[word]) > 1 for word in ("cold", "odd")) and signs["bad"] == {0}


def test_the_text_of_a_word_is_its_sentence_where_sentences_are_known(files):
    texts, batch = drawn(40)
    sentences = jnp.array([[*[1] * 3, *[2] * 3, *[1] * 8, 0]] * 40)
    classes = jax.jit(lexicon(files).classes)({**batch, "sentences": sentences})
    found = np.asarray(classes["polarities"])
    other = 0
    for row, (first, second) in zip(found, texts, strict=True):
        parts = [(whole(first, p), first[:3] if p < 3 else first[3:], first) for p in range(6)]
        wanted = [sign(word, part) for word, part, _ in parts] + [
            sign(whole(second, p), second) for p in range(8)
        ]
        assert row[:-1].tolist() == wanted
        other += sum(
            bool(word) and sign(word, part) != sign(word, text) for word, part, text in parts
        )
    assert other > 0


def test_senses_of_a_compiled_graph_of_wordnet_and_sentiwordnet(files, tmp_path):
    """Ranks are in the order of the graph's senses of a word."""
    synsets = [(word, *sense) for word in ("cold", "odd") for sense in SENSES[word]]

    def line(n, word, gloss):
        return f'{n:08d} 00 a 01 {word} 0 000 | {gloss}; "c5 c5 c5"  '

    (tmp_path / "wn").mkdir()
    (tmp_path / "wn" / "data.noun").write_text("00000099 05 n 01 thin 0 000 | c3  \n")
    rows = [line(n, word, gloss) for n, (word, *_, gloss) in enumerate(synsets, 1)]
    (tmp_path / "wn" / "data.adj").write_text("\n".join(rows) + "\n")
    scores = [f"a\t{n:08d}\t{p}\t{m}\t{w}#{r}\t{g}" for n, (w, r, p, m, g) in enumerate(synsets, 1)]
    (tmp_path / "swn3.txt").write_text("\n".join(["# SentiWordNet v3.0.0", *scores]) + "\n")
    compile_graph(
        sources([f"wordnet:{tmp_path / 'wn'}", f"sentiwordnet:{tmp_path / 'swn3.txt'}"]),
        tmp_path / "out",
    )
    order = dict(graph_folder.senses(open_graph(tmp_path / "out")))
    texts, batch = drawn(30)
    made = lexicon((str(tmp_path / "out"), files[1]))
    found = np.asarray(jax.jit(made.classes)(batch)["polarities"])
    ranked = {  # senses of one weight may stand in any order
        word: [
            (sense.number, max(sense.score, 0), max(-sense.score, 0), sense.gloss.split(";")[0])
            for sense in order[word]
        ]
        for word in ("cold", "odd")
    }

    def net(senses):
        return {(positive - negative, gloss) for _, positive, negative, gloss in senses}

    assert all(net(ranked[word]) == net(SENSES[word]) for word in ranked)
    for row, pair in zip(found, texts, strict=True):
        words = [(whole(text, place), text) for text in pair for place in range(len(text))]
        wanted = [
            sign(word, text, ranked) if word in ranked else POLARITIES.index("0")
            for word, text in words
        ]
        assert row[:-1].tolist() == wanted


def test_without_vectors_senses_are_those_of_equal_similarities(files):
    _, batch = drawn(8)
    found = {}
    for kind in (SenseAttention, WordClasses):
        made = kind(file=files[0])
        found[kind] = jax.jit(made.filled(made.of_tokenizer(tokenizer())).classes)(batch)
    assert all(
        np.array_equal(found[SenseAttention][name], found[WordClasses][name])
        for name in found[WordClasses]
    )


def test_the_record_of_a_stand_in():
    made = facts.stand_ins(SenseAttention(), Vocab(size=100, pad=0, unk=1))
    ids = jnp.asarray(np.random.default_rng(0).integers(2, 100, (4, 16)))
    found = jax.jit(made.classes)({"input_ids": ids})["polarities"]
    assert {*np.unique(found)} == {0, 1, 2}
