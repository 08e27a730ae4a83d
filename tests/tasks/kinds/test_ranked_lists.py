"""Lists for cross-encoders: files, rows, measures, and a run to a CrossEncoder's folder."""

import json
import types

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.pair_scores import pair_scores
from ptm_jax.inference.text.vectors import similarity
from ptm_jax.tasks.formats.ranked_texts import RankedTexts
from ptm_jax.tasks.formats.text_groups import Group
from ptm_jax.tasks.kinds import ranked_lists
from ptm_jax.tasks.kinds.base import rows_of
from ptm_jax.tasks.metrics import ranks
from support.tiny_checkpoint import WORDS

ROWS = [
    {"query": "a", "positive": ["the film", "a story"], "negative": ["sad"]},
    {"question": "b", "docs": ["good", "bad", "very bad"], "labels": [2, 0, 1]},
    {"anchor": "c", "answer": "end", "score": 0.5},
]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_lists_are_read_and_have_a_row_for_each_text(tmp_path, models_of):
    path = written(tmp_path / "a.jsonl", ROWS)
    spec = RankedTexts().settled([path, path])
    examples = list(spec.read(path))
    assert [(e.texts, e.scores) for e in examples] == [
        (("a", "the film", "a story", "sad"), (1.0, 1.0, 0.0)),
        (("b", "good", "bad", "very bad"), (2.0, 0.0, 1.0)),
        (("c", "end"), (0.5,)),
    ]
    assert spec.readings == 3
    assert "reads query, positive, negative" in spec.reads(path)
    (model,) = models_of(spec)
    groups, _ = rows_of(model, spec, examples, 16)
    tokenizer = model.tokenizer
    expected = tokenizer.frame(*tokenizer.encode_batch(["a", "a story"]))[0]
    np.testing.assert_array_equal(groups[0][1]["input_ids"], expected)
    assert [len(row["input_ids"]) > 0 for row in groups[2]] == [True, False, False]
    np.testing.assert_array_equal(groups[1][0]["list_scores"], [2, 0, 1])


WRONG = {
    "other scores": ([{"query": "a", "docs": ["b", "c"], "labels": [1]}], "1 scores for 2 texts"),
    "no texts": ([{"query": "a", "labels": [1]}], "no field positive"),
    "an empty text": ([{"query": "a", "docs": ["b", ""], "labels": [1, 0]}], "docs is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_list_is_one_line(name, tmp_path):
    rows, message = WRONG[name]
    with pytest.raises(UserError, match=message) as caught:
        list(RankedTexts().read(written(tmp_path / "a.jsonl", rows)))
    assert "\n" not in str(caught.value)


def test_measures_are_those_of_scikit_learn():
    from sklearn.metrics import average_precision_score, ndcg_score

    draw, lists, expected = np.random.default_rng(2), [], []
    for size in (3, 8, 15, 20):
        grades = draw.permutation([0.0, 2.0, *draw.integers(0, 3, size - 2)])
        scores = draw.normal(size=size)
        order = np.argsort(-scores)
        lists.append(grades[order])
        first = next((n for n, g in enumerate(grades[order][:10], 1) if g), np.inf)
        average = average_precision_score(grades > 0, scores)
        expected.append((ndcg_score([grades], [scores], k=10), 1 / first, average))
    found = ranks.of_reranked(lists)
    names = "ndcg_at_10", "mrr_at_10", "map"
    np.testing.assert_allclose([found[n] for n in names], np.mean(expected, 0), rtol=1e-6)


class Words:
    """A sentence encoder whose vector of a text counts its letters."""

    system, sentence = types.SimpleNamespace(name="words", examples=None), None
    module = types.SimpleNamespace(heads={})
    similarity = staticmethod(similarity)

    def encode(self, texts, **options):
        return np.array([[text.count(c) for c in "abcde"] for text in texts], np.float32)


def test_a_sentence_encoder_is_measured_by_its_similarities(monkeypatch):
    monkeypatch.setattr(ranked_lists, "has_encoder", lambda model: True)
    texts = [("ab", "abb", "c", "a"), ("cd", "e", "cdd")]
    grades = [(1.0, 0.0, 0.0), (0.0, 1.0)]
    examples = [Group(t, g, "", n) for n, (t, g) in enumerate(zip(texts, grades, strict=True))]
    scores, _ = ranked_lists.predict(Words(), RankedTexts(negatives=2), examples, 8, 4)
    vectors = [Words().encode(part) for part in texts]
    for row, part in zip(scores, vectors, strict=True):
        np.testing.assert_allclose(row, similarity(part[:1], part[1:])[0])
    assert ranked_lists.reranking(examples, scores)["map"] == 1.0


def reranked(published, run, model, texts, folder, capsys):
    """The lines that a search finds are in the order of the cross-encoder's logits of all lines."""
    texts = [*dict.fromkeys(texts)]
    (lines := folder / "lines.txt").write_text("\n".join(texts) + "\n")
    words = ["predict", str(published), "--task", "search", "--input", str(lines), "--json"]
    words += ["--text", "dog naps", "--top", "3"]
    assert main([*words, "--rerank", run, "--candidates", "30"]) == 0
    (found,) = [one["found"] for one in json.loads(capsys.readouterr().out)]
    logits = pair_scores(model, ["dog naps"] * len(texts), texts)
    best = np.argsort(-logits, kind="stable")[:3]
    assert [one["text"] for one in found] == [texts[n] for n in best]
    np.testing.assert_allclose([one["score"] for one in found], logits[best], atol=1e-6)
    assert main([*words, "--rerank", str(published)]) == 1
    assert "gives no number for a pair of texts" in capsys.readouterr().err


@pytest.mark.full
def test_from_the_command_to_a_cross_encoder(published, tmp_path, capsys):
    draw = np.random.default_rng(0)

    def text():
        return " ".join(draw.choice(WORDS, draw.integers(2, 8)))

    rows = [
        {"query": text(), "positive": text(), "negative": [text() for _ in range(n % 3)]}
        for n in range(30)
    ]
    data, run, out = written(tmp_path / "a.jsonl", rows), str(tmp_path / "run"), tmp_path / "out"
    words = ["train", "--init", str(published), "--task", "rank", "--data", data, "--workdir", run]
    assert main([*words, "--batch", "4", "--length", "32", "--epochs", "1"]) == 0
    assert "ndcg_at_10" in capsys.readouterr().out
    assert main(["export", run, "--out", str(out)]) == 0
    capsys.readouterr()
    lists = written(tmp_path / "b.jsonl", [row for row in rows if row["negative"]])
    assert main(["evaluate", str(out), "--task", "rank", "--data", lists, "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    model = ptm_jax.load(run)
    pairs = [(row["query"], row["positive"]) for row in rows]
    scores = pair_scores(model, *zip(*pairs, strict=True))
    np.testing.assert_allclose(
        scores, pair_scores(ptm_jax.load(out), *zip(*pairs, strict=True)), atol=1e-6
    )
    reranked(published, run, model, [row["positive"] for row in rows], tmp_path, capsys)
    torch = pytest.importorskip("torch")
    peers = pytest.importorskip("sentence_transformers")
    evaluators = pytest.importorskip("sentence_transformers.cross_encoder.evaluation")
    peer = peers.CrossEncoder(str(out), device="cpu", activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(peer.predict(pairs), scores, atol=1e-5)
    samples = [{**row, "positive": [row["positive"]]} for row in rows if row["negative"]]
    expected = evaluators.CrossEncoderRerankingEvaluator(samples, write_csv=False)(peer)
    names = {"map": "map", "mrr_at_10": "mrr@10", "ndcg_at_10": "ndcg@10"}
    for ours, theirs in names.items():
        assert metrics[ours] == pytest.approx(expected[theirs], rel=1e-5), ours
