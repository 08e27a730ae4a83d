"""Properties that linear models read off vectors, against closed forms and hand-made measures."""

import numpy as np
import pytest
import scipy.optimize

from ptm_jax.core.errors import UserError
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.tasks import properties

WORDS = [f"w{i}" for i in range(40)]
X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
SIZE = X @ [1.0, -2.0, 0.5, 0.0] * 10 + np.random.default_rng(1).normal(size=40) + 100
ANIMAL = (X @ [1.0, 1.0, 0.0, 0.0] + 0.3 * np.random.default_rng(2).normal(size=40) > 0).astype(int)


def table(tmp_path, split=True):
    head = [
        "word",
        "size",
        "taxonomic/animal",
        "attributive/small",
        "constant",
        *(["split"] if split else []),
    ]
    lines = ["\t".join(head)]
    for i, word in enumerate([*WORDS, "unknown"]):
        row = min(i, 39)
        size = "" if i == 3 else f"{SIZE[row]}"
        cells = [
            word,
            size,
            f"{ANIMAL[row]}",
            f"{row % 2}",
            "1",
            *(["test" if i % 4 == 0 else "train"] if split else []),
        ]
        lines.append("\t".join(cells))
    (tmp_path / "p.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path / "p.tsv"


def ridge(x, y, new):
    """(Xc'Xc + I)^-1 Xc'yc with centred columns."""
    mean, low = x.mean(0), y.mean()
    w = np.linalg.solve((x - mean).T @ (x - mean) + np.eye(x.shape[1]), (x - mean).T @ (y - low))
    return (new - mean) @ w + low


def logistic(x, y, new):
    """Minimises the sum of the losses plus half of the squared weights."""
    sign = 2 * y - 1

    def loss(p):
        return np.log1p(np.exp(-sign * (x @ p[:-1] + p[-1]))).sum() + 0.5 * p[:-1] @ p[:-1]

    p = scipy.optimize.minimize(loss, np.zeros(x.shape[1] + 1), tol=1e-10).x
    return (new @ p[:-1] + p[-1] > 0).astype(int)


@pytest.mark.status("ptm evaluate --task properties", "matches")
def test_each_measure_equals_its_definition(tmp_path):
    found = properties.evaluate(WordVectors.of(WORDS, X), table(tmp_path)).metrics
    x, test = X.astype(np.float64), np.arange(40) % 4 == 0
    guess, truth = logistic(x[~test], ANIMAL[~test], x[test]), ANIMAL[test]
    hits = (guess * truth).sum()
    assert found["taxonomic/animal f1"] == pytest.approx(2 * hits / (guess.sum() + truth.sum()))
    assert found["taxonomic/animal accuracy"] == (guess == truth).mean()
    known = np.arange(40) != 3
    y = (SIZE - SIZE[known].min()) / np.ptp(SIZE[known])
    guess, truth = ridge(x[~test & known], y[~test & known], x[test & known]), y[test & known]
    assert found["size r2"] == pytest.approx(
        1 - ((truth - guess) ** 2).sum() / ((truth - truth.mean()) ** 2).sum(), rel=1e-6
    )
    ranks = [
        np.mean([abs(other - g) < abs(t - g) for other in truth])
        for g, t in zip(guess, truth, strict=True)
    ]
    assert found["size rank"] == pytest.approx(np.mean(ranks))
    assert found["f1"] == pytest.approx(
        (found["taxonomic/animal f1"] + found["attributive/small f1"]) / 2
    )
    assert found["taxonomic f1"] == found["taxonomic/animal f1"] and found["coverage"] == 40 / 41
    assert not any("constant" in name for name in found)


def test_without_a_split_every_word_is_predicted_once_by_the_others(tmp_path):
    found = properties.evaluate(WordVectors.of(WORDS, X), table(tmp_path, split=False))
    order, guess = np.random.default_rng(0).permutation(40), np.zeros(40, int)
    for fold in range(10):
        held = order[fold::10]
        rest = np.setdiff1d(order, held)
        guess[held] = logistic(X[rest].astype(np.float64), ANIMAL[rest], X[held].astype(np.float64))
    assert found.metrics["taxonomic/animal accuracy"] == (guess == ANIMAL).mean()
    assert found.metrics["taxonomic f1"] > found.metrics["attributive f1"] and found.examples == 40
    assert sum(found.remarks.values()) == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "no first line"),
        ("word\ta\ta\nx\t1\t1\n", "different names"),
        ("word\ta\nx\tred\n", "line 2: .* a value that is no number"),
        ("word\ta\nx\t1\t2\n", "line 2 has 3 cells; expected 2"),
        ("word\ta\nx\tinf\n", "finite numbers"),
        ("word\ta\tsplit\nx\t1\tdev\n", "train or test"),
        ("word\ta\n", "no words below"),
        ("word\ta\nx\t1\n", "0 of its 1 words"),
        ("word\ta\n" + "".join(f"w{i}\t1\n" for i in range(9)), "no property with enough"),
    ],
)
def test_broken_files_are_one_line(tmp_path, text, line):
    (tmp_path / "p.tsv").write_text(text)
    with pytest.raises(UserError, match=line) as error:
        properties.evaluate(WordVectors.of(WORDS, X), tmp_path / "p.tsv")
    assert "\n" not in str(error.value)
