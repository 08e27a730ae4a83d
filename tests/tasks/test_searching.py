"""`ptm evaluate --task search`: measures against a brute force in numpy, and wrong folders."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.tasks import searching
from ptm_jax.tasks.metrics import ranks
from support.tiny_checkpoint import WORDS


def folder_of(path, documents=12, queries=5, seed=0):
    """A folder of random texts, with grades 0 to 2 of a third of the pairs."""
    draw = np.random.default_rng(seed)
    (path / "qrels").mkdir()

    def lines(prefix, count):
        for n in range(count):
            text = " ".join(draw.choice(WORDS, draw.integers(3, 9)))
            yield json.dumps({"_id": f"{prefix}{n}", "title": "", "text": text}) + "\n"

    (path / "corpus.jsonl").write_text("".join(lines("d", documents)))
    (path / "queries.jsonl").write_text("".join(lines("q", queries)))
    grades = {(q, q): 2 for q in range(queries)} | {
        (q, d): int(draw.integers(0, 3)) for q in range(queries) for d in range(5, documents, 3)
    }
    rows = [f"q{q}\td{d}\t{grade}" for (q, d), grade in grades.items()]
    (path / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return grades


def brute(grades, scores, top=10):
    """nDCG, the reciprocal rank and recall, query by query."""
    figures = []
    for q, row in enumerate(scores):
        order = sorted(range(len(row)), key=lambda d: -row[d])[:top]
        gains = [grades.get((q, d), 0) for d in order]
        ideal = sorted((g for (one, _), g in grades.items() if one == q), reverse=True)[:top]
        dcg, best = (sum(g / np.log2(n + 2) for n, g in enumerate(x)) for x in (gains, ideal))
        first = next((n for n, g in enumerate(gains, 1) if g), np.inf)
        every = sum(g > 0 for (one, _), g in grades.items() if one == q)
        figures.append((dcg / best, 1 / first, sum(g > 0 for g in gains) / every))
    return np.mean(figures, 0)


@pytest.mark.full
def test_measures_are_those_of_a_brute_force(published, tmp_path, capsys):
    grades = folder_of(tmp_path)
    command = ["evaluate", str(published), "--task", "search", "--data", str(tmp_path), "--json"]
    assert main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    model = ptm_jax.load(published)
    texts = [list(searching.texts_of(tmp_path / f"{n}.jsonl").values())
             for n in ("queries", "corpus")]  # fmt: skip
    a, b = (model.encode(part, normalize=True) for part in texts)
    names = "ndcg_at_10", "mrr_at_10", "recall_at_10"
    metrics = [printed["metrics"][name] for name in names]
    np.testing.assert_allclose(metrics, brute(grades, a @ b.T), rtol=1e-6)
    assert printed["metrics"]["recall_at_100"] == 1 and printed["documents"] == 12


def test_measures_by_hand():
    found = ranks.of_lists([[0, 2, 1], [0, 0, 0]], [[2, 1, 1, 0], [1]])
    dcg, best = 2 / np.log2(3) + 1 / 2, 2 + 1 / np.log2(3) + 1 / 2
    assert found == pytest.approx({
        "ndcg_at_10": dcg / best / 2, "mrr_at_10": 1 / 4, "recall_at_10": 1 / 3,
        "recall_at_100": 1 / 3,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("corpus.jsonl", '{"_id": "d0", "text": "twice"}', "the id d0 has a text already"),
        ("queries.jsonl", '{"_id": "q9", "text": ""}', "the column text is empty"),
        ("qrels/test.tsv", "q0\td99\t1", "there is no document d99"),
        ("qrels/test.tsv", "q0\td1\tgood", "expected a number"),
    ],
)
def test_a_wrong_folder_is_one_line(file, line, message, tmp_path):
    folder_of(tmp_path)
    with (tmp_path / file).open("a") as stream:
        stream.write(f"\n{line}\n")
    with pytest.raises(UserError, match=message) as caught:
        texts = [searching.texts_of(tmp_path / f"{n}.jsonl") for n in ("corpus", "queries")]
        searching.grades_of(tmp_path, "test", *texts)
    assert "\n" not in str(caught.value)
