"""Analogies and similarity sets: a plain loop, damaged files, and gensim's figures on the published
sets."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.tasks import wordsets

DRAW = np.random.default_rng(0)
WORDS = [
    "Paris",
    "paris",
    "france",
    "Rome",
    "Italy",
    "italy",
    "king",
    "queen",
    "man",
    "woman",
    "bread",
]
MODEL = WordVectors.of(WORDS, DRAW.standard_normal((len(WORDS), 4)))
QUESTIONS = "Paris France Rome Italy\n"
QUESTIONS += (
    "Rome Italy Paris France\nking queen man woman\nman king woman queen\nParis France "
    "Oslo Norway\n"
)


def by_loop(model, questions, score):
    """The first spelling of a word counts; no spelling of a given word is an answer."""
    capitals = [word.upper() for word in model.words]
    units = model.vectors / np.linalg.norm(model.vectors, axis=1, keepdims=True)
    right = []
    for a, b, c, d in (line.upper().split() for line in questions):
        if not {a, b, c, d} <= set(capitals):
            continue
        x, y, z = (units[capitals.index(word)] for word in (a, b, c))
        scores = [
            -np.inf if capitals[i] in (a, b, c) else score(units[i], x, y, z)
            for i in range(len(units))
        ]
        right.append(capitals[int(np.argmax(scores))] == d)
    return right


SCORES = {
    "3cosadd": lambda u, a, b, c: u @ (b - a + c),
    "3cosmul": lambda u, a, b, c: (1 + u @ b) * (1 + u @ c) / 4 / ((1 + u @ a) / 2 + 1e-6),
}


@pytest.mark.status("ptm evaluate --task analogy", "matches")
@pytest.mark.parametrize("method", SCORES)
def test_analogies_equal_a_plain_loop(tmp_path, method):
    path = tmp_path / "q.txt"
    lines = QUESTIONS.splitlines()
    path.write_text(
        "\n".join([": capitals", *lines[:2], ": gram-family", *lines[2:4], ": gram2", lines[4]])
    )
    found = wordsets.analogies(MODEL, path, method)
    right = by_loop(MODEL, lines, SCORES[method])
    assert (
        found.metrics["accuracy"] == np.mean(right)
        and found.examples == 4
        and found.metrics["coverage"] == 0.8
    )
    assert found.metrics["semantic"] == np.mean(right[:2]) and found.metrics[
        "syntactic"
    ] == np.mean(right[2:])
    assert found.metrics["capitals"] == np.mean(right[:2]) and sum(found.remarks.values()) == 1


@pytest.mark.status("ptm evaluate --task similarity", "matches")
def test_similarities_equal_the_definition(tmp_path, capsys):
    path = tmp_path / "s.tsv"
    pairs = [
        ("paris", "rome", 3.0),
        ("king", "queen", 9.0),
        ("man", "bread", 1.5),
        ("ITALY", "France", 4.0),
    ]
    path.write_text(
        "Word 1\tWord 2\tmean\n# a remark\n"
        + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in pairs)
        + "oslo\tking\t1\n"
    )
    names = [("Paris", "Rome"), ("king", "queen"), ("man", "bread"), ("Italy", "france")]
    cosines = [MODEL.similarity(a, b) for a, b in names]
    gold = [score for _, _, score in pairs]
    MODEL.save(tmp_path / "v.txt")
    assert (
        main(
            [
                "evaluate",
                str(tmp_path / "v.txt"),
                "--task",
                "similarity",
                "--data",
                str(path),
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 4 and found["metrics"]["coverage"] == 0.8
    assert found["metrics"]["spearman"] == pytest.approx(
        scipy.stats.spearmanr(gold, cosines).statistic
    )
    assert found["metrics"]["pearson"] == pytest.approx(
        scipy.stats.pearsonr(gold, cosines).statistic, abs=1e-6
    )


@pytest.mark.parametrize(
    ("task", "text", "why"),
    [
        ("analogy", ": a\nking queen man\n", "line 2 has 3 words"),
        ("analogy", ": a\nx y z u\n", "none of its 1 analogies"),
        ("similarity", "king\tqueen\t1\nking\tman\n", "line 2 is"),
        ("similarity", "king queen 1\n", "1 of its 1 pairs"),
        ("similarity", "king queen 1\n\xff", "expected two words and a number"),
    ],
)
def test_a_bad_set_ends_in_one_line_with_its_place(tmp_path, task, text, why):
    path = tmp_path / "set.txt"
    path.write_text(text, encoding="utf8")
    with pytest.raises(UserError, match=why):
        wordsets.evaluate(MODEL, task, path)


def test_the_command_refuses_other_tasks_and_options(tmp_path, capsys):
    MODEL.save(tmp_path / "v.txt")
    for words, why in (
        (["--task", "sst2"], "give --task analogy"),
        (["--task", "analogy"], "give one file"),
    ):
        assert (
            main(["evaluate", str(tmp_path / "v.txt"), *words]) == 1
            and why in capsys.readouterr().err
        )
    assert main(["evaluate", str(tmp_path / "none"), "--method", "3cosmul"]) == 1
    assert "--method is for word vectors" in capsys.readouterr().err


@pytest.mark.full
def test_figures_equal_gensims_on_the_published_sets(data):
    """Vectors of the vocabulary of the sets themselves: random, with the planted offset of a
    country or a plural."""
    gensim = pytest.importorskip("gensim")
    sets, theirs = data / "wordsim", Path(gensim.__file__).parent / "test" / "test_data"
    lines = (sets / "analogy" / "questions-words.txt").read_text(encoding="utf8").splitlines()
    pairs = dict.fromkeys(
        tuple(line.split()[i : i + 2]) for line in lines if not line.startswith(":") for i in (0, 2)
    )
    draw, vectors = np.random.default_rng(1), {}
    offset = draw.standard_normal(20) * 1.5
    for a, b in pairs:
        vectors.setdefault(a, draw.standard_normal(20))
        vectors.setdefault(b, vectors[a] + offset + 0.7 * draw.standard_normal(20))
    vectors |= {word.lower(): draw.standard_normal(20) for word in list(vectors)[:500]} | {
        "paris": offset
    }
    others = (theirs / "simlex999.txt").read_text().split() + (
        theirs / "wordsim353.tsv"
    ).read_text().split()
    vectors |= {
        word: draw.standard_normal(20) for word in others if word.isalpha() and word not in vectors
    }
    dropped = set(list(vectors)[::17])
    words = [word for word in vectors if word not in dropped]
    model = WordVectors.of(words, np.stack([vectors[word] for word in words]).astype(np.float32))
    known = gensim.models.KeyedVectors(20)
    known.add_vectors(words, model.vectors)
    score, sections = known.evaluate_word_analogies(str(sets / "analogy" / "questions-words.txt"))
    found = wordsets.analogies(model, sets / "analogy" / "questions-words.txt")
    print(
        f"analogies: {found.metrics['accuracy']:.4f} of {found.examples:,} here, {score:.4f} "
        "by gensim"
    )
    assert found.metrics["accuracy"] == pytest.approx(score, abs=1e-9) and 0.05 < score < 0.95
    for part in sections[:-1]:
        right, wrong = len(part["correct"]), len(part["incorrect"])
        assert right + wrong == 0 or found.metrics[part["section"]] == pytest.approx(
            right / (right + wrong), abs=1e-9
        )
    files = [
        *sorted((sets / "word-sim").glob("*.txt")),
        theirs / "simlex999.txt",
        theirs / "wordsim353.tsv",
    ]
    assert len(files) >= 8
    for file in files:
        pearson, spearman, missing = known.evaluate_word_pairs(str(file))
        found = wordsets.similarities(model, file)
        assert found.metrics["spearman"] == pytest.approx(spearman[0], abs=1e-5), file
        assert found.metrics["pearson"] == pytest.approx(pearson[0], abs=1e-5), file
        assert 100 * (1 - found.metrics["coverage"]) == pytest.approx(missing, abs=1e-6), file


@pytest.mark.full
def test_a_file_of_gensims_gives_gensims_figures(data):
    gensim = pytest.importorskip("gensim")
    path = Path(gensim.__file__).parent / "test" / "test_data" / "euclidean_vectors.bin"
    known = gensim.models.KeyedVectors.load_word2vec_format(str(path), binary=True)
    file = data / "wordsim" / "word-sim" / "EN-WS-353-ALL.txt"
    assert wordsets.similarities(ptm_jax.load(path), file).metrics["spearman"] == pytest.approx(
        known.evaluate_word_pairs(str(file))[1][0], abs=1e-5
    )
