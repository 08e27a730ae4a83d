"""Hard negatives: rows of sentence-transformers on the same vectors, blocks, files, the command."""

import json
import types

import numpy as np
import pytest
import recorded_mining as recorded

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.vectors import similarity
from ptm_jax.tasks import mining
from ptm_jax.tasks.formats.text_groups import Group, TextGroups
from ptm_jax.tasks.mining import Mining

RECORDED = json.loads(recorded.FILE.read_text(encoding="utf8"))
CORPUS = [f"t{n}" for n in range(recorded.TEXTS)]


class Drawn:
    """A model whose vectors are those of the record."""

    system, sentence = types.SimpleNamespace(name="drawn", examples=None), None
    similarity = staticmethod(similarity)

    def encode(self, texts, **options):
        return np.stack([recorded.vectors()[text] for text in texts])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(mining, "BLOCK", 7)
    monkeypatch.setattr(mining, "ANCHORS", 4)
    monkeypatch.setattr(mining, "has_encoder", lambda model: True)
    scores = lambda model, a, b, batch: np.array(  # noqa: E731
        [recorded.logit(*pair) for pair in zip(a, b, strict=True)], np.float32
    )
    monkeypatch.setattr(mining, "pair_scores", scores)


def groups():
    return [Group(pair, (), "", n) for n, pair in enumerate(recorded.pairs())]


@pytest.mark.parametrize("name", recorded.CASES)
def test_rows_are_those_of_sentence_transformers(name, small_blocks):
    """It leaves out rows without any negative, and gives the texts after the anchor as one list."""
    options = dict(recorded.CASES[name])
    cross = Drawn() if options.pop("rescored", False) else None
    result = mining.mined(Drawn(), groups(), CORPUS, Mining(**options), rescorer=cross, scores=True)
    rows = {
        (row["anchor"], row["positive"]): (row["negatives"], row["scores"]) for row in result.rows
    }
    peers = {(row[0], row[1][0]): (row[1][1:], row[2]) for row in RECORDED[name]}
    assert {pair: texts for pair, (texts, _) in rows.items() if texts} == {
        pair: texts for pair, (texts, _) in peers.items()
    }
    for pair, (_, scores) in peers.items():
        np.testing.assert_allclose(rows[pair][1], scores, atol=2e-6)
    assert result.texts == recorded.TEXTS
    wanted = options.get("negatives", 3) * len(rows)
    assert result.missing == wanted - sum(len(texts) for texts, _ in rows.values())


def test_a_draw_takes_candidates_of_the_window(small_blocks):
    window = Mining(negatives=6, range_min=1, range_max=7)
    every = [set(r["negatives"]) for r in mining.mined(Drawn(), groups(), CORPUS, window).rows]
    drawn = [
        mining.mined(
            Drawn(), groups(), CORPUS,
            Mining(negatives=2, range_min=1, range_max=7, sampling="random", seed=seed),
        ).rows
        for seed in (0, 0, 1)
    ]  # fmt: skip
    assert drawn[0] == drawn[1] != drawn[2]
    for row, window in zip(drawn[0], every, strict=True):
        assert len(row["negatives"]) == 2 and set(row["negatives"]) <= window


def test_negatives_of_a_row_stay_and_are_scored(tmp_path, small_blocks):
    rows = [{"anchor": "q0", "positive": "t0", "negatives": ["t5", "t6"]}]
    (only,) = ptm_jax.mine(Drawn(), rows, negatives=0, scores=True)
    vectors = recorded.vectors()
    expected = similarity(vectors["q0"], np.stack([vectors[t] for t in ("t0", "t5", "t6")]))[0]
    assert only["negatives"] == ["t5", "t6"]
    np.testing.assert_allclose(only["scores"], expected, atol=1e-6)
    (more,) = ptm_jax.mine(Drawn(), rows, CORPUS, negatives=2)
    assert more["negatives"][:2] == ["t5", "t6"] and len({*more["negatives"], "t0"}) == 5
    path = tmp_path / "mined.jsonl"
    path.write_text(json.dumps(only) + "\n")
    (group,) = TextGroups().read(path)
    assert group.texts == ("q0", "t0", "t5", "t6") and len(group.scores) == 3


def test_a_corpus_is_read_from_a_file(tmp_path, small_blocks):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(["", *CORPUS, *CORPUS]) + "\n")
    rows = [{"anchor": a, "positive": p} for a, p in recorded.pairs()]
    assert ptm_jax.mine(Drawn(), rows, path) == ptm_jax.mine(Drawn(), rows, CORPUS)
    assert list(mining.Texts(["t1"], path)) == ["t1", "t0", *CORPUS[2:]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negatives": -1}, "must be at least 0"),
        ({"range_min": 5, "range_max": 6}, "hold 1 candidates for 3 negatives"),
        ({"sampling": "best"}, "sampling"),
    ],
)
def test_settings_that_do_not_fit(options, message):
    with pytest.raises(UserError, match=message):
        Mining(**options)


def test_mistakes_of_the_command_are_one_line(tmp_path, capsys):
    data, out = tmp_path / "a.tsv", tmp_path / "b.jsonl"
    data.write_text("anchor\tpositive\na\t\n")
    words = ["mine", "m", "--data", str(data), "--out"]
    out_of = {"column positive is empty": out, "written as .jsonl": tmp_path / "b.csv"}
    for message, path in out_of.items():
        assert main([*words, str(path)]) == 1
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    out.write_text("")
    assert main([*words, str(out)]) == 1 and "--overwrite" in capsys.readouterr().err


@pytest.mark.full
def test_the_command_s_rows_train(published, tmp_path, capsys):
    words = "film story end plot".split()
    rows = [f"the {a} was good {b}\tthe {b} is {a}" for a in words for b in words if a != b]
    data, out = tmp_path / "pairs.tsv", tmp_path / "mined.jsonl"
    data.write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    assert main(["mine", str(published), "--data", str(data), "--out", str(out), "--scores"]) == 0
    assert "12 rows with negatives from 12 texts" in capsys.readouterr().out
    made = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(len(row["negatives"]) == 3 and len(row["scores"]) == 4 for row in made)
    words = ["train", "--init", str(published), "--task", "contrast", "--data", str(out)]
    words += ["--batch", "4", "--length", "16", "--epochs", "1", "--workdir", str(tmp_path / "r")]
    assert main([*words, "--set", "objective=MarginError()"]) == 0
