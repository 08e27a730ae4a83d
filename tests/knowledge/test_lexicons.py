"""Lexicons: the formats of their files, and the package's small ones."""

import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.knowledge.english_words import SUPERSENSES
from ptm_jax.knowledge.graphs.compiling import compile_graph
from ptm_jax.knowledge.graphs.formats import sources
from ptm_jax.knowledge.lexicons import Branches, Entities, TypedNames
from ptm_jax.knowledge.triples import Triples
from ptm_jax.knowledge.word_classes import PARTS, POLARITIES, WordClasses

WORDS = "[PAD] [UNK] good bad dog hot new york city ##s".split()


def tokenizer():
    def encode(texts):
        return [
            np.array([WORDS.index(w) if w in WORDS else 1 for w in text.split()]) for text in texts
        ]

    def starts():
        return np.array([not word.startswith("##") for word in WORDS])

    return types.SimpleNamespace(
        vocab=Vocab(size=len(WORDS), pad=0, unk=1), encode_batch=encode, word_starts=starts
    )


def read(lexicon):
    return lexicon.entries(tokenizer())


def test_sense_keys_of_wordnet(tmp_path):
    lines = [
        "dog%1:05:00:: 02086723 1 42",
        "dog%2:38:00:: 02005890 1 2",
        "hot_dog%1:13:00:: 07697537 1 0",
    ]
    (tmp_path / "index.sense").write_text("\n".join(lines) + "\n")
    found = read(WordClasses(file=str(tmp_path / "index.sense")))

    def senses(low, high):
        return [SUPERSENSES[i] for i in range(45) if (low >> i if i < 24 else high >> i - 24) & 1]

    assert senses(*found["dog"][2:]) == ["noun.animal", "verb.motion"] and senses(
        *found["hot dog"][2:]
    ) == ["noun.food"]
    assert PARTS[found["dog"][0] - 1] == "n"
    (tmp_path / "index.sense").write_text("dog%1:05:00:: 1\nnothing here\n")
    with pytest.raises(UserError, match="line 2"):
        read(WordClasses(file=str(tmp_path / "index.sense")))


def test_scores_of_sentiwordnet(tmp_path):
    """softmax(1 / rank) of (0.75, 0, -0.5): 0.4747, 0.2879, 0.2374; positive minus negative."""
    head = "# SentiWordNet v3.0.0\n# POS\tID\tPosScore\tNegScore\tSynsetTerms\tGloss\n"
    rows = [
        "a\t1\t0.75\t0\tgood#1\tx",
        "a\t2\t0\t0\tgood#2\tx",
        "a\t3\t0\t0.5\tgood#3\tx",
        "a\t4\t0\t0.625\tbad#1\tx",
    ]
    (tmp_path / "swn.txt").write_text(
        head + "\n".join([*rows, "n\t5\t0\t0\tdog#1 hot_dog#2\tx"]) + "\n"
    )
    found = read(WordClasses(file=str(tmp_path / "swn.txt")))
    assert {word: POLARITIES[row[1] - 1] for word, row in found.items()} == {
        "good": "+",
        "bad": "-",
        "dog": "0",
        "hot dog": "0",
    }
    (tmp_path / "swn.txt").write_text(head + "a\t1\tmuch\t0\tgood#1\tx\n")
    with pytest.raises(UserError, match="line 3"):
        read(WordClasses(file=str(tmp_path / "swn.txt")))


def test_lines_of_words_classes(tmp_path):
    (tmp_path / "words.tsv").write_text("dog,bad\tn\t0\tnoun.animal\ndog\tv\t-\tverb.motion\n")
    low, high = read(WordClasses(file=str(tmp_path / "words.tsv")))["dog"][2:]
    assert (low, high) == (1 << 5, 1 << 38 - 24)
    (tmp_path / "words.tsv").write_text("dog\tn\t0\tnoun.animals\n")
    with pytest.raises(UserError, match="line 1 has 'noun.animals'"):
        read(WordClasses(file=str(tmp_path / "words.tsv")))


def test_entities_of_a_name_by_prior(tmp_path):
    (tmp_path / "aliases.tsv").write_text(
        "new york\tQ60\t0.7\nnew york\tQ1384\t0.3\ncity\tQ515\t1\n"
    )
    found = read(Entities(file=str(tmp_path / "aliases.tsv"), candidates=2))
    assert found["new york"] == [3, 1, 700000, 300000] and found["city"] == [2, 0, 1000000, 0]
    with pytest.raises(UserError, match="set entities to at least 4"):
        read(Entities(file=str(tmp_path / "aliases.tsv"), entities=3))
    (tmp_path / "aliases.tsv").write_text("new york Q60\n")
    with pytest.raises(UserError, match="line 1"):
        read(Entities(file=str(tmp_path / "aliases.tsv")))


def test_what_the_package_brings():
    assert (
        len(read(WordClasses())) > 600
        and len(read(Branches())) > 60
        and len(read(Entities())) > 100
    )
    assert {row[1] - 1 for row in read(WordClasses()).values()} == {0, 1, 2}
    senses = np.bitwise_or.reduce([row[2:] for row in read(WordClasses()).values()])
    assert bin(senses[0]).count("1") + bin(senses[1]).count("1") >= 42


def test_a_lexicon_of_another_language_is_refused(tmp_path):
    (tmp_path / "words.tsv").write_text("собака\tn\t0\t\n")
    with pytest.raises(UserError, match="no name that this tokenizer can write"):
        WordClasses(file=str(tmp_path / "words.tsv")).of_tokenizer(tokenizer())


def test_a_compiled_graph_is_a_lexicon(tmp_path):
    folder = tmp_path / "graph"
    folder.mkdir()
    texts = {
        "train.tsv": "d\tisa\tc\nn\tpart\tc\n",
        "entity2text.txt": "d\tdog\nn\tnew york\nc\tcity\n",
        "entity2textlong.txt": "d\thot dog\n",
        "relation2text.txt": "isa\tgood\npart\tbad\n",
        "entity2type.txt": "d\tnoun.animal\nn\tnoun.location\nc\tnoun.location\n",
        "aliases.txt": "d\tdog\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    compile_graph(sources([str(folder)]), tmp_path / "out")
    file = str(tmp_path / "out")
    assert [*read(Branches(file=file, width=2))] == ["dog", "new york"]
    assert read(Branches(file=file, width=2))["dog"] == [1, 3, 9, 0, 0]
    assert read(Entities(file=file))["dog"][0] == 2 and set(read(Entities(file=file))) == {
        "city",
        "dog",
        "new york",
    }
    classes = read(WordClasses(file=file))
    assert classes["dog"] == (4, 3, 1 << 5, 0) and classes["new york"][2] == 1 << SUPERSENSES.index(
        "noun.location"
    )
    kinds = {name: row[1] for name, row in read(TypedNames(file=file)).items()}
    assert kinds["city"] == kinds["new york"] != kinds["dog"]
    graph = Triples(file=file, width=3)
    graph = graph.filled(graph.of_tokenizer(tokenizer()))
    assert graph.sizes == (2, 3, 2) and (5, 4) in {
        tuple(row[row > 0] - 1) for row in graph.entities()
    }
    with pytest.raises(UserError, match="no compiled graph"):
        read(Branches(file=str(tmp_path)))
