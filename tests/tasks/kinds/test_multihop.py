"""HotpotQA: its formats, rows and edges, the heads and losses by hand, the official figures, and
the real questions."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Encoded
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.questions.hotpot import HopHead, PairRanker
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.tasks.hotpot import DocumentPairs, HopAnswers
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.hops import Hop, names_in
from ptm_jax.tasks.formats.hotpot import HopDocuments, HopReading
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds import multihop
from support import tiny_checkpoint
from support.by_hand import DRAW, dense, gelu, head_of, softmax, tower_with

DOCUMENTS = [
    ["Ann Bell", ["Ann Bell wrote the film The Sad End.", " She was born in 1912."]],
    ["A bad plot", ["The story is long."]],
    [
        "The Sad End",
        ["The Sad End is a film.", " It was made by Bob Fox in 1950.", " Ann Bell saw it."],
    ],
]
ROW = {
    "_id": "5a8b", "question": "who made the film that Ann Bell wrote", "answer": "Bob Fox",
    "type": "bridge",
    "supporting_facts": [["Ann Bell", 0], ["The Sad End", 1]], "context": DOCUMENTS,
}  # fmt: skip


def hotpot(*rows):
    return json.dumps(list(rows), indent=1)


@pytest.fixture
def hop(tmp_path):
    (tmp_path / "a.json").write_text(hotpot(ROW))
    (found,) = HopReading().read(tmp_path / "a.json")
    return found


@pytest.mark.status("hotpot", "built")
def test_the_official_format_and_the_one_by_columns(hop, tmp_path):
    assert (
        hop.gold == (0, 2)
        and hop.kind == "span"
        and hop.facts == (("Ann Bell", 0), ("The Sad End", 1))
    )
    assert hop.index == "5a8b" and hop.place.endswith("a.json:3: question 5a8b")
    columns = {
        **{name: ROW[name] for name in ("question", "answer")},
        "supporting_facts": {"title": ["Ann Bell", "The Sad End"], "sent_id": [0, 1]},
        "context": {"title": [t for t, _ in DOCUMENTS], "sentences": [s for _, s in DOCUMENTS]},
    }
    (tmp_path / "b.json").write_text(hotpot(columns))
    (other,) = HopDocuments().read(tmp_path / "b.json")
    assert other == hop._replace(place=other.place, index="0") and other.place.endswith(
        "b.json: question 1"
    )
    (tmp_path / "c.json").write_text(
        hotpot({name: ROW[name] for name in ("_id", "question", "context")})
    )
    (bare,) = HopReading().read(tmp_path / "c.json", labels=False)
    assert bare.facts == () and bare.kind == ""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"question": " "}, "a.json:3: question 5a8b: the question or its documents are empty"),
        (
            {"supporting_facts": [["Bob", 0]]},
            "5a8b: a fact names the document .Bob., which is not there",
        ),
        ({"context": {"title": []}}, "5a8b has no field sentences; it has: title"),
        ({"answer": "Carl", "supporting_facts": [["Ann Bell", 9]]}, None),
    ],
)
def test_errors_are_raised_or_counted(tmp_path, more, message):
    (tmp_path / "a.json").write_text(hotpot(ROW | more))
    remarks = Remarks()
    if message is None:
        list(HopReading().read(tmp_path / "a.json", remarks))
        assert sorted(remarks.values()) == [1, 1]
        return
    with pytest.raises(UserError, match=message):
        list(HopReading().read(tmp_path / "a.json", remarks))


@pytest.fixture(scope="module")
def tokenizer():
    return make(
        TokenizerSpec(kind="wordpiece", vocab=100), [" ".join(s) + t for t, s in DOCUMENTS] * 9
    )


def test_rows_know_answer_sentences_and_names(hop, tokenizer):
    spec = HopReading(sentences=6)
    records = spec.encode(tokenizer, [hop])
    (reading,), remarks = spec.readings_of(tokenizer, records, 256, [(0, 2)])
    row, record = reading.row, records[0]
    assert not sum(remarks.values()) and reading.sentences == [
        (0, 1),
        (0, 2),
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    first, last = (
        reading.places[row[f"answer_{name}"] - reading.offset] for name in ("start", "end")
    )
    assert (
        hop.text(2)[record["starts"][first] : record["ends"][last]] == "Bob Fox"
        and row["answer_kind"] == 0
    )
    assert row["facts"].tolist() == [1, 0, 0, 1, 0] and row["sentence_document"].tolist() == [
        1,
        1,
        2,
        2,
        2,
    ]
    assert row["sentence_asked"].tolist() == [1, 0, 0, 0, 1], "Ann Bell"
    a, _, c, _, e = row["sentence_names"].tolist()
    assert a & c and a & e and not c & e and row["sentence_names"][[1, 3]].tolist() == [0, 0]
    text = "".join(
        hop.text(int(record["document"][p]))[record["starts"][p] : record["ends"][p]] for p, slot in
        zip(reading.places, row["sentence_of"][reading.offset :], strict=False) if slot == 4
    )  # fmt: skip
    assert text == "ItwasmadebyBobFoxin1950."
    # A row without room loses the ends of the longer document, and counts it.
    (short,), remarks = spec.readings_of(
        tokenizer, records, len(record["question"]) + 3 + 20, [(0, 2)]
    )
    owner = record["document"][short.places]
    assert (
        remarks["cut"] == 1
        and (owner == 0).sum() == (owner == 2).sum() == 10
        and short.row["answer_start"] == -1
    )
    (yes,), _ = spec.features(
        tokenizer, spec.encode(tokenizer, [hop._replace(kind="yes", answer="yes")]), 256
    )
    assert yes[0]["answer_kind"] == 1 and yes[0]["answer_start"] == -1


@pytest.mark.status("hotpot_rank", "built")
def test_a_document_has_a_grade(hop, tokenizer):
    spec = HopDocuments(documents=4)
    (rows,), remarks = spec.features(tokenizer, spec.encode(tokenizer, [hop]), 64)
    assert (
        [row["grade"] for row in rows] == [1, 0, 2, -1]
        and not rows[3]["segment_ids"].any()
        and not remarks["cut"]
    )
    assert (
        set(rows[0]) == set(rows[3]) == set(spec.spec(64, tokenizer.vocab)) and spec.readings == 4
    )
    assert names_in("In 1950 he met Ann Bell, The Sad End's star.") == {
        "1950",
        "ann bell",
        "sad end's",
    }


GRAPH = {
    "document": np.array([[1, 1, 2, 2, 0], [1, 2, 0, 0, 0]]),
    "asked": np.array([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]]),
    "names": np.array([[2, 1, 1, 4, 0], [3, 2, 0, 0, 0]]),
}  # fmt: skip


def edges():
    """[2, 3, 5, 5]: sentences of one document, of two that share a name with the question, of two
    that share a name."""
    (d1, d2), (a1, a2), (n1, n2) = (
        (x[:, :, None], x[:, None]) for x in (GRAPH[n] for n in ("document", "asked", "names"))
    )
    real = (d1 > 0) & (d2 > 0) & ~np.eye(5, dtype=bool)
    return np.stack(
        [real & (d1 == d2), real & (d1 != d2) & (a1 * a2 > 0), real & (d1 != d2) & (n1 & n2 > 0)], 1
    )


def passed(p, h, hops):
    """Message by message."""
    for _ in range(hops):
        new = h.copy()
        for row in range(len(h)):
            for j in range(h.shape[1]):
                u = dense(p, "own", h[row, j])
                for r in range(3):
                    near = np.flatnonzero(edges()[row, r, j])
                    u = u + sum(
                        (dense(p, f"relation{r}", h[row, n]) for n in near), np.zeros(1)
                    ) / max(1, len(near))
                g = 1 / (1 + np.exp(-dense(p, "gate", np.concatenate([u, h[row, j]]))))
                new[row, j] = g * gelu(u) + (1 - g) * h[row, j]
        h = new
    return h


@pytest.mark.full
def test_a_reader_scores_span_kind_and_facts():
    """Sections 3.2 and 3.3 in plain numpy."""
    h = DRAW.normal(size=(2, 8, 4)).astype(np.float32)
    of = np.array([[0, 1, 1, 2, 3, 3, 4, 0], [0, 1, 2, 2, 0, 0, 0, 0]])
    rows = {"input_ids": jnp.ones((2, 8), jnp.int32), "sentence_of": jnp.asarray(of)}
    rows |= {f"sentence_{name}": jnp.asarray(value) for name, value in GRAPH.items()}
    head = HopHead(hops=2, initializer=Normal(0.7))
    p, (start, end, kinds, facts) = head_of(head, *head.reads(Encoded(jnp.asarray(h)), rows))

    def two(name, x):
        return dense(p, f"{name}_score", gelu(dense(p, f"{name}_hidden", x)))

    np.testing.assert_allclose(np.stack([start, end], -1), two("ends", h), atol=1e-5)
    scores, sentences = two("read", h)[..., 0] + start + end, np.zeros((2, 5, 4), np.float32)
    for row in range(2):
        for n in range(1, of[row].max() + 1):
            here = of[row] == n
            sentences[row, n - 1] = softmax(scores[row][here]) @ h[row][here]
    states = passed(p["graph"], sentences, 2)
    expected, real = two("facts", states)[..., 0], GRAPH["document"] > 0
    np.testing.assert_allclose(facts[real], expected[real], rtol=1e-4, atol=1e-4)
    assert (facts[~real] < -1e29).all()
    pooled = np.stack(
        [softmax(expected[row][real[row]]) @ states[row][real[row]] for row in range(2)]
    )
    np.testing.assert_allclose(kinds, two("kinds", pooled), rtol=1e-4, atol=1e-4)
    _loss(head, h, (start, end, kinds, facts))


def _loss(head, h, scores):
    start, end, kinds, facts = scores
    rows = {
        "input_ids": jnp.ones((2, 8), jnp.int32), "answer_start": jnp.array([2, -1]),
        "answer_end": jnp.array([3, -1]),
        "answer_kind": jnp.array([0, 2]), "facts": jnp.array([[1, 0, 0, 1, -1],
        [0, 1, -1, -1, -1]]),
    }  # fmt: skip
    loss = HopAnswers(gamma=0.5).of(tower_with("hop", scores), Encoded(h), rows)

    def nll(row, place):
        return np.log(np.exp(row).sum()) - row[place]

    sign = np.where(np.asarray(rows["facts"]) > 0, -1, 1)
    found = np.log1p(np.exp(sign * facts))[GRAPH["document"] > 0].mean()
    which = (nll(kinds[0], 0) + nll(kinds[1], 2)) / 2
    np.testing.assert_allclose(
        float(loss.value()), (nll(start[0], 2) + nll(end[0], 3)) / 4 + found + which, rtol=1e-4
    )


@pytest.mark.full
def test_documents_are_compared_in_pairs():
    head = PairRanker(3, heads=2, summary=Summary("none"), initializer=Normal(0.7))
    h = DRAW.normal(size=(6, 5, 4)).astype(np.float32)
    segments = jnp.asarray([[1] * 5] * 5 + [[0] * 5])
    p, found = head_of(
        head, *head.reads(Encoded(jnp.asarray(h)), {"input_ids": segments, "segment_ids": segments})
    )
    states, real, a = h[:, 0].reshape(2, 3, 4), np.array([[1, 1, 1], [1, 1, 0]]), p["Attention_0"]
    q, k, v = (
        np.einsum("bld,dhk->bhlk", states, a[n]["kernel"]) + a[n]["bias"][:, None]
        for n in ("query", "key", "value")
    )
    weights = softmax(np.where(real[:, None, None] > 0, q @ k.swapaxes(-1, -2) / np.sqrt(2), -1e30))
    states = states + np.einsum("bhlk,hkd->bld", weights @ v, a["out"]["kernel"]) + a["out"]["bias"]
    pairs = gelu(dense(p, "first", states)[:, :, None] + dense(p, "second", states)[:, None])
    np.testing.assert_allclose(found, dense(p, "score", pairs)[..., 0], rtol=1e-4, atol=1e-5)
    grade = np.array([[1, 0, 2], [0, 2, -1]])
    loss = DocumentPairs().of(
        tower_with("rank", found), None, {"grade": jnp.asarray(grade.ravel())}
    )
    every = [
        np.log1p(np.exp((-1 if grade[b, i] > grade[b, j] else 1) * found[b, i, j]))
        for b in range(2) for i in range(3) for j in range(3) if i != j and grade[b,
            i] >= 0 and grade[b, j] >= 0
    ]  # fmt: skip
    assert len(every) == 8
    np.testing.assert_allclose(float(loss.value()), np.mean(every), rtol=1e-5)


def test_the_official_figures():
    """hotpot_evaluate_v1.py on these, by hand."""
    gold = [
        Hop("q", (), "the Bob Fox", "p", "a", "span", (("x", 0), ("y", 1))),
        Hop("q", (), "yes", "p", "b", "yes", (("x", 0), ("y", 1))),
        Hop("q", (), "no", "p", "c", "no", (("x", 0),)),
    ]
    found = [
        multihop.HopAnswer("Bob Fox jr", "span", (("x", 0), ("z", 1), ("y", 1))),
        multihop.HopAnswer("yes indeed", "span", ()),
        multihop.HopAnswer("No.", "no", (("x", 0),)),
    ]
    metrics = multihop.measure(gold, found)
    p, r = 2 / 3, 1.0  # of both, in the first question
    both = 2 * p * p * r * r / (p * p + r * r)
    expected = {
        "exact": 1 / 3,
        "f1": (0.8 + 0 + 1) / 3,
        "precision": (p + 1) / 3,
        "recall": 2 / 3,
        "sp_exact": 1 / 3,
    }
    expected |= {
        "sp_f1": (0.8 + 1) / 3,
        "sp_precision": (p + 1) / 3,
        "sp_recall": 2 / 3,
        "joint_exact": 1 / 3,
    }
    expected |= {
        "joint_f1": (both + 1) / 3,
        "joint_precision": (p * p + 1) / 3,
        "joint_recall": 2 / 3,
    }
    assert metrics == pytest.approx(expected) and next(iter(metrics)) == "joint_f1"
    (line,) = evaluating.lines(catalogue.get("hotpot"), gold, found)
    assert json.loads(line) == {
        "answer": {"a": "Bob Fox jr", "b": "yes indeed", "c": "No."},
        "sp": {"a": [["x", 0], ["z", 1], ["y", 1]], "b": [], "c": [["x", 0]]},
    }
    ranked = [multihop.Ranking((1, 0, 2), (2, 1, 0))] * 2
    hops = [
        Hop("q", (("x", ()), ("y", ()), ("z", ())), "", "p", "a", "span", ((t, 0), ("y", 0)))
        for t in "xz"
    ]
    assert multihop.ranking(hops, ranked) == {"exact": 0.5, "recall": 0.75}
    first = json.loads(next(evaluating.lines(catalogue.get("hotpot_rank"), hops, ranked)))
    assert first["prediction"] == ["y", "x", "z"]


@pytest.mark.full
def test_two_models_answer(models_of, hop, tmp_path):
    (tmp_path / "a.json").write_text(
        hotpot(ROW, ROW | {"_id": "other", "context": DOCUMENTS[::-1]})
    )
    models = {
        task: models_of(catalogue.get(task).examples)[0] for task in ("hotpot_rank", "hotpot")
    }
    task, source = catalogue.get("hotpot"), Source(str(tmp_path / "a.json"))
    found = evaluating.evaluate(models["hotpot"], task, source, beside=models["hotpot_rank"])
    ranked = evaluating.evaluate(models["hotpot_rank"], catalogue.get("hotpot_rank"), source)
    assert all(sorted(one.order) == [0, 1, 2] for one in ranked.predictions) and set(
        ranked.metrics
    ) == {"exact", "recall"}
    chosen = {found.examples[0].documents[n][0] for n in ranked.predictions[0].order[:2]}
    assert {title for title, _ in found.predictions[0].facts} <= chosen and len(found.metrics) == 12
    alone = evaluating.evaluate(models["hotpot"], task, source)
    assert any("with their gold documents" in remark for remark in alone.remarks)
    (tmp_path / "c.json").write_text(
        hotpot({name: ROW[name] for name in ("_id", "question", "context")})
    )
    with pytest.raises(UserError, match="as --beside"):
        evaluating.evaluate(models["hotpot"], task, Source(str(tmp_path / "c.json")), labels=False)


@pytest.mark.full
def test_the_real_questions(data, tmp_path, capsys):
    """A small BERT of words of the questions learns both stages from 54 of them, by the commands of
    the README."""
    file = data / "qa" / "hotpotqa" / "dev_distractor_60.json"
    found = list(HopReading().read(file))
    assert (
        len(found) == 60
        and sum(one.kind == "span" for one in found) == 50
        and all(len(one.gold) == 2 for one in found)
    )
    right = [multihop.HopAnswer(one.answer, one.kind, one.facts) for one in found]
    assert set(multihop.measure(found, right).values()) == {1.0}
    texts = [text for one in found for text in HopReading().texts(one)]
    model = tiny_checkpoint.write(
        tmp_path / "model", texts, vocab=1000, max_position_embeddings=256
    )
    for task, rows, length in (("hotpot_rank", "2", "96"), ("hotpot", "16", "256")):
        words = [
            "train",
            "--init",
            str(model),
            "--task",
            task,
            "--data",
            str(file),
            "--epochs",
            "1",
            "--batch",
            rows,
        ]
        assert (
            main(
                [
                    *words,
                    "--length",
                    length,
                    "--lr",
                    "1e-3",
                    "--workdir",
                    str(tmp_path / task),
                    "--json",
                ]
            )
            == 0
        )
        document = json.loads(capsys.readouterr().out)
        assert document["examples"] == 6 and all(np.isfinite(list(document["heldout"].values())))
    words = [
        "evaluate",
        str(tmp_path / "hotpot"),
        "--task",
        "hotpot",
        "--beside",
        str(tmp_path / "hotpot_rank"),
        "--json",
    ]
    assert main(words) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert (
        len(metrics) == 12
        and 0 <= metrics["joint_f1"] <= min(metrics["f1"], metrics["sp_f1"]) + 1e-9 <= 1
    )
