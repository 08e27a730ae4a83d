"""A run of TransE and its kin loads with the vectors of its score, and completes triples."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.tasks import completion

NAMES = [f"e{n}" for n in range(8)]


@pytest.fixture(
    scope="module",
    params=["transe_mini", pytest.param("transh_mini", marks=pytest.mark.full)],
)
def workdir(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    every = [f"e{n}" for n in range(135)]
    links = ["next", "back to", *(f"r{n}" for n in range(44))]
    lines = [
        f"{head}\t{links[(i * 7 + j) % 46]}\t{every[(i + j + 1) % 135]}"
        for i, head in enumerate(every)
        for j in range(4)
    ]
    (folder / "graph").mkdir()
    for name in ("train", "dev", "test"):
        (folder / "graph" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    words = ["--data", f"triples:{folder / 'graph'}", "--workdir", str(folder / "run")]
    steps = ["--set", "recipe.phases.0.steps=20", "recipe.phases.0.batch=16"]
    assert main(["train", request.param, *words, *steps]) == 0
    return folder / "run"


def test_the_best_entities_are_those_of_the_ranking(workdir):
    model, scorer = ptm_jax.load(workdir), completion.model_of(workdir)
    entities = list(scorer.entities)
    for head in NAMES:
        for relation in ("next", "back to"):
            x = np.array([scorer.entities[head]])
            y = np.array([scorer.relations["_".join(relation.split())]])
            for what, side in (("tail", {"head": head}), ("head", {"tail": head})):
                scores = np.asarray(scorer.score(x, y, what))[0]
                best = model.complete(relation=relation, **side, top=len(entities))
                assert [one.word for one in best] == [
                    entities[i] for i in np.argsort(-scores, kind="stable")
                ]
                np.testing.assert_allclose(
                    [one.score for one in best], np.sort(scores)[::-1], atol=1e-6
                )


def test_loaded_vectors_are_those_of_the_score(workdir):
    model = ptm_jax.load(workdir)
    lengths = np.linalg.norm(model[[f"e:{name}" for name in NAMES]], axis=1)
    if model.loss.unit:
        np.testing.assert_allclose(lengths, 1, atol=1e-5)
    if "transe" in str(workdir):  # the score by hand, from the loaded vectors alone
        head, relation = model["e:e3"], model["r:next"]
        best = model.complete("e3", "next", top=135)
        every = model[[f"e:{one.word}" for one in best]]
        by_hand = -np.abs(head + relation - every).sum(-1)
        np.testing.assert_allclose([one.score for one in best], by_hand, atol=1e-5)
        assert (np.diff(by_hand) <= 1e-5).all()


def test_by_command(workdir, capsys):
    words = ["predict", str(workdir), "--task", "links", "--top", "3", "--json"]
    assert main([*words, "--text", "e3 | next", "--text", "? | back to | e1"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = ptm_jax.load(workdir)
    assert [one["text"] for one in found[0]["similar"]] == [
        one.word for one in model.complete("e3", "next", top=3)
    ]
    assert [one["text"] for one in found[1]["similar"]] == [
        one.word for one in model.complete(relation="back to", tail="e1", top=3)
    ]
    for text, message in (
        ("e3", "is no query"), ("? | next", "is no query"), ("e3 | next | e4", "is no query"),
        ("e999 | next", "unknown entity 'e999'"), ("e3 | nxt", "unknown relation 'nxt'"),
    ):  # fmt: skip
        assert main([*words, "--text", text]) == 1
        assert message in capsys.readouterr().err


def test_queries_of_a_file(workdir, tmp_path, capsys):
    """Each line is a row: refused ones too, with the reason."""
    queries, output = tmp_path / "q.txt", tmp_path / "out.jsonl"
    queries.write_text("e3 | next\n\nnobody | next\ne3 | next | e4\n? | back to | e1\n")
    words = ["--task", "links", "--input", str(queries), "--output", str(output), "--top", "2"]
    assert main(["predict", str(workdir), *words]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    model = ptm_jax.load(workdir)
    best = model.complete("e3", "next", top=2)
    assert [one["text"] for one in rows[0]["similar"]] == [one.word for one in best]
    reasons = ["it is empty", "unknown entity 'nobody'", "is no query"]
    for row, reason in zip(rows[1:4], reasons, strict=True):
        assert reason in row["error"]
    assert len(rows[4]["similar"]) == 2
    main(["predict", str(workdir), *words])
    assert "is complete: 5 rows" in capsys.readouterr().err


def test_names_beyond_the_vocabulary_are_told(tmp_path, capsys):
    (tmp_path / "graph").mkdir()
    lines = [f"e{i}\tr{(i + j) % 46}\te{(i + j + 1) % 150}" for i in range(150) for j in range(4)]
    (tmp_path / "graph" / "train.tsv").write_text("\n".join(lines) + "\n")
    words = ["--data", f"triples:{tmp_path / 'graph'}", "--workdir", str(tmp_path / "run")]
    main(["train", "transe_mini", *words, "--set", "recipe.phases.0.steps=1"])
    assert "names in the triples are beyond the vocabulary of 184" in capsys.readouterr().err


def test_refusals(workdir):
    model = ptm_jax.load(workdir)
    for names in (
        {"head": "e1"},
        {"relation": "next"},
        {"head": "a", "relation": "b", "tail": "c"},
    ):
        with pytest.raises(UserError, match="complete needs a relation, one of head and tail"):
            model.complete(**names)
    assert "stand in the training triples too" in str(
        completion.evaluate(workdir, [str(workdir.parent / "graph")]).remarks
    )
