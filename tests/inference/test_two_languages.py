"""Word vectors of two languages: canonical correlations against scikit-learn and their definition,
and who is nearest."""

import json

import numpy as np
import pytest
from sklearn.cross_decomposition import CCA

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.words import two_languages
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.knowledge.from_text import dictionaries


def tables(count=80, widths=(6, 5), common=3, noise=0.3, seed=0):
    """Two views of one hidden table of some common directions."""
    draw = np.random.default_rng(seed)
    hidden = draw.normal(size=(count, common))
    return [
        hidden @ draw.normal(size=(common, width)) + noise * draw.normal(size=(count, width)) + 2
        for width in widths
    ]


@pytest.mark.status("ptm align", "matches")
def test_canonical_correlations_are_scikit_learns_and_the_definition():
    first, second = tables()
    found = two_languages.canonical(first, second, keep=1.0)
    theirs = CCA(n_components=3, max_iter=5000, tol=1e-12).fit(first, second)
    a, b = theirs.transform(first, second)
    np.testing.assert_allclose(
        found.correlations[:3], [np.corrcoef(a[:, k], b[:, k])[0, 1] for k in range(3)], atol=1e-4
    )
    # Hotelling: the squared correlations are the eigenvalues of Sxx^-1 Sxy Syy^-1 Syx
    both = np.cov(first.T, second.T)
    xx, xy, yy = both[:6, :6], both[:6, 6:], both[6:, 6:]
    squares = np.sort(np.linalg.eigvals(np.linalg.solve(xx, xy) @ np.linalg.solve(yy, xy.T)).real)[
        ::-1
    ][:5]
    np.testing.assert_allclose(found.correlations, np.sqrt(squares), atol=1e-8)
    projected = [
        found.of(rows, side).astype(np.float64) for side, rows in enumerate((first, second))
    ]
    for rows in projected:
        np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(np.cov(rows.T), np.eye(5), atol=1e-5)
    np.testing.assert_allclose(
        np.cov(*(p.T for p in projected))[:5, 5:], np.diag(found.correlations), atol=1e-5
    )


def test_four_fifths_of_the_directions_are_kept_and_few_pairs_refused():
    first, second = tables()
    whole, kept = (two_languages.canonical(first, second, keep) for keep in (1.0, 0.8))
    assert kept.correlations.tolist() == whole.correlations[:4].tolist()
    np.testing.assert_array_equal(kept.of(first, 0), whole.of(first, 0)[:, :4])
    with pytest.raises(UserError, match="6 pairs of words for vectors of width 6; more"):
        two_languages.canonical(first[:6], second[:6])


@pytest.fixture
def folder(tmp_path):
    """Two languages with a dictionary of half of their words, and another of the rest."""
    first, second = tables(200, (8, 8), common=7, noise=0.1)
    for name, rows in (("a", first), ("b", second)):
        WordVectors.of([f"{name}{i}" for i in range(200)], rows).save(tmp_path / f"{name}.vec")
    (tmp_path / "train.txt").write_text(
        "".join(f"a{i} b{i}\n" for i in range(100)) + "a1 unknown\n"
    )
    (tmp_path / "test.txt").write_text(
        "".join(f"a{i}\tb{i}\n" for i in range(100, 200)) + "a101\tb3\nunknown\tb5\n"
    )
    return tmp_path


def test_translations_are_nearer_after_the_projection(folder, capsys):
    def place(name):
        return str(folder / name)

    asked = ["--task", "dictionary", "--data", place("test.txt"), "--json"]
    assert (
        main(
            [
                "align",
                place("a.vec"),
                place("b.vec"),
                "--dictionary",
                place("train.txt"),
                "--out",
                place("out"),
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == 100 and found["width"] == 6 and len(found["files"]) == 2
    scores = {}
    for name, (a, b) in {
        "before": ("a.vec", "b.vec"),
        "after": ("out/first.txt", "out/second.txt"),
    }.items():
        assert main(["evaluate", place(a), "--beside", place(b), *asked]) == 0
        scores[name] = json.loads(capsys.readouterr().out)
    assert (
        scores["after"]["metrics"]["precision@1"]
        > 4 * scores["before"]["metrics"]["precision@1"] + 0.1
    )
    assert (
        scores["after"]["examples"] == 100 and scores["after"]["metrics"]["coverage"] == 100 / 101
    )


def test_precision_and_retrieval_equal_a_search_word_by_word(folder):
    import ptm_jax

    first, second = (ptm_jax.load(folder / name) for name in ("a.vec", "b.vec"))
    pairs = dictionaries.pairs_of(folder / "test.txt")
    found, count = two_languages.translations(first, second, pairs, tops=(1, 5))
    known = [a for a, _ in dict.fromkeys(pairs) if a in first]
    for top in (1, 5):
        right = 0
        for word in dict.fromkeys(known):
            near = [other for other, _ in second.most_similar(first[word], top=top)]
            right += any((word, other) in pairs for other in near)
        assert found[f"precision@{top}"] == right / 100 and count == 100
    texts = [
        [[f"{name}{i}", f"{name}{(7 * i) % 200}", "unknown"] for i in range(30)] for name in "ab"
    ]

    def unit(v):
        return v / np.linalg.norm(v)

    means = [[unit(np.mean([unit(model[w]) for w in words[:2]], 0)) for words in side]
             for model, side in zip((first, second), texts, strict=True)]  # fmt: skip
    scores = [[a @ b for b in means[1]] for a in means[0]]
    expected = np.mean([int(np.argmax(row)) == i for i, row in enumerate(scores)])
    assert two_languages.sentences(first, second, texts)["forward"] == expected


def test_one_table_of_two_languages_is_parted():
    model = WordVectors.of(["de:haus", "en:house", "en:", "house"], np.eye(4), [4, 3, 2, 1])
    found = two_languages.of_language(model, "en")
    assert (
        list(found.words) == ["house"]
        and found["house"].tolist() == [0, 1, 0, 0]
        and found.table.counts.tolist() == [3]
    )
    with pytest.raises(UserError, match="no word begins with 'fr:'"):
        two_languages.of_language(model, "fr")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--task", "dictionary"], "other language as --beside"),
        (
            ["--task", "dictionary", "--beside", "b.vec", "--languages", "a", "b"],
            "other language as --beside",
        ),
        (["--task", "retrieval", "--beside", "b.vec"], "two files"),
        (["--task", "analogy", "--beside", "b.vec"], "beside is not for --task analogy"),
    ],
)
def test_wrong_options_are_one_line(folder, words, line, capsys):
    assert (
        main(["evaluate", str(folder / "a.vec"), "--data", str(folder / "test.txt"), *words]) == 1
    )
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
