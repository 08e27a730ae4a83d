"""CoQA: its format, histories, spans for free answers, the reader's head and loss by hand, and the
official judgement."""

import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Encoded
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference.text import answering
from ptm_jax.nn.heads.questions.answers import RationaleHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.tasks.answers import ConversationAnswers
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.conversations import KINDS, Conversations, closest_span
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds import conversation
from ptm_jax.tasks.metrics import squad
from support.by_hand import dense, head_of, softmax, tower_with
from support.tiny_checkpoint import WORDS

STORY = "the film is a good story and the plot was not bad . ann saw it in 1912 ."
TURNS = (
    ("what is good", "the film is a good story", "the film"),
    ("is the plot bad", "the plot was not bad", "No"),
    ("when was it seen", "ann saw it in 1912 .", "in the year 1912"),
    ("who wrote it", None, "unknown"),
)


def row_of(passage, answer, turn, story=STORY):
    start = story.index(passage) if passage else -1
    end = start + len(passage) if passage else -1
    return {
        "span_start": start,
        "span_end": end,
        "span_text": passage or "unknown",
        "input_text": answer,
        "turn_id": turn,
    }


def coqa(turns=TURNS, **more):
    story = {
        "source": "cnn", "id": "3abc", "filename": "x.txt", "story": STORY,
        "questions": [{"input_text": question, "turn_id": n} for n,
        (question, _, _) in enumerate(turns, 1)],
        "answers": [row_of(passage, answer, n) for n, (_, passage, answer) in enumerate(turns, 1)],
        "additional_answers": {
            "0": [row_of(passage, f"the {answer}", n) for n,
            (_, passage, answer) in enumerate(turns, 1)],
        },
    } | more  # fmt: skip
    return json.dumps({"version": "1.0", "data": [story]}, indent=1)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "coqa-dev-v1.0.json").write_text(coqa())
    return tmp_path / "coqa-dev-v1.0.json"


def test_turns_stand_behind_two_turns_and_their_answers(path):
    found = list(Conversations().read(path))
    assert [turn.kind for turn in found] == ["span", "no", "span", "unknown"]
    assert (
        found[0].question == "what is good"
        and found[1].question == "what is good the film is the plot bad"
    )
    assert found[3].question == "is the plot bad No when was it seen in the year 1912 who wrote it"
    assert found[0].answers == (("film", 4),) and found[2].answers == (
        ("in 1912", STORY.index("in 1912")),
    )
    assert found[2].index == ("3abc", 3) and found[2].place == f"{path}:6: story 3abc, turn 3"
    assert (
        found[2].gold == ("in the year 1912", "the in the year 1912") and found[2].source == "cnn"
    )
    assert [turn.question for turn in Conversations(history=0).read(path)] == [
        question for question, _, _ in TURNS
    ]
    bare = path.with_name("test.json")
    bare.write_text(coqa(answers=[], additional_answers={}))
    assert [turn.gold for turn in Conversations().read(bare, labels=False)] == [()] * 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"story": " "}, ":6: story 3abc: the story is empty"),
        ({"answers": [row_of(None, "x", 1)]}, "4 questions have 1 answers"),
        (
            {"answers": [row_of(None, "x", 1) | {"span_start": 3, "span_end": 999}] * 4},
            "turn 1: the rationale from 3 to",
        ),
        ({"questions": [{"input_text": " "}] * 4}, "turn 1: the question is empty"),
        ({"questions": [{}] * 4}, "turn 1 has no field input_text"),
    ],
)
def test_broken_files_name_file_and_line(tmp_path, more, message):
    (tmp_path / "a.json").write_text(coqa(**more))
    with pytest.raises(UserError, match=message):
        list(Conversations().read(tmp_path / "a.json"))


def test_the_span_closest_to_a_free_answer():
    """Against every pair of words of the passage."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        words = draw.choice(["the", "a", "Ann", "saw,", "it", "in", "1912."], draw.integers(1, 9))
        answer = " ".join(
            draw.choice(["The", "ann", "saw", "it", "1912", "war"], draw.integers(1, 5))
        )
        spans = [" ".join(words[i:j]) for i, j in itertools.combinations(range(len(words) + 1), 2)]
        best = max(
            (squad.overlap(answer, span) for span in spans if squad.normalised(span)), default=0
        )
        found, text = closest_span(" ".join(words), answer), " ".join(words)
        assert (found is None) == (best == 0)
        assert found is None or squad.overlap(answer, text[slice(*found)]) == pytest.approx(best)
    remarks = Remarks()
    turn = next(iter(_turns([("who", "ann saw it in 1912 .", "somebody")], remarks)))
    assert (
        turn.answers == (("ann saw it in 1912 .", STORY.index("ann")),)
        and sum(remarks.values()) == 1
    )


def _turns(turns, remarks=None):
    row = json.loads(coqa(turns))["data"][0]
    return Conversations()._turns(
        "here", "3abc", STORY, row, Remarks() if remarks is None else remarks, labels=True
    )


def test_windows_know_the_answer_and_its_rationale(tokenizer):
    examples = Conversations(stride=6, question=8)
    records = examples.encode(tokenizer, list(_turns(TURNS)))
    groups, remarks = examples.features(tokenizer, records, 24)
    windows, _ = examples.windows(tokenizer, records, 24)
    assert any("their oldest words are cut" in remark for remark in remarks) and len(groups) > 8
    last = tokenizer.encode("what is good the film is the plot bad No when was it seen")
    for window, (row,) in zip(windows, groups, strict=True):
        record, kind = records[window.record], KINDS[int(row["answer_kind"])]
        inside = np.arange(window.size) + window.first
        begin, end = record["rationale"]
        expected = (inside >= begin) & (inside <= end) & (begin >= 0)
        assert (row["rationale"][window.offset : window.offset + window.size] == expected).all()
        assert row["rationale"].sum() == expected.sum()
        if window.record == 1:
            assert kind == ("no" if expected.any() else "unknown")
        if window.record == 2:
            assert (row["input_ids"][1:9] == last[-8:]).all()
            assert (kind == "span") == (
                window.first <= record["answer"][0] and record["answer"][1] < inside[-1] + 1
            )
            assert kind == "span" or (row["answer_start"] == window.cls)
        if window.record == 3:
            assert kind == "unknown"
    spec = examples.spec(24, tokenizer.vocab)
    assert set(spec) == set(groups[0][0]) and examples.fill["answer_kind"] == -1


@pytest.fixture(scope="module")
def tokenizer():
    return make(TokenizerSpec(kind="wordpiece", vocab=80), [" ".join(WORDS) + " " + STORY] * 20)


@pytest.mark.full
def test_the_rationale_weighs_the_states_that_the_kind_is_scored_from():
    """Section 2.2 in plain numpy; padding has no weight."""
    draw = np.random.default_rng(1)
    h = draw.normal(size=(2, 6, 4)).astype(np.float32)
    segments = np.array([[1] * 6, [1, 1, 1, 1, 0, 0]])
    head = RationaleHead(initializer=Normal(0.7))
    inputs = head.reads(
        Encoded(jnp.asarray(h)), {"input_ids": segments, "segment_ids": jnp.asarray(segments)}
    )
    p, (start, end, kinds, rationale) = head_of(head, *inputs)

    def two(x, name):
        return dense(p, f"{name}_score", np.maximum(dense(p, f"{name}_hidden", x), 0))[..., 0]

    np.testing.assert_allclose(np.stack([start, end], -1), dense(p, "ends", h), atol=1e-5)
    np.testing.assert_allclose(rationale, two(h, "rationale"), atol=1e-5)
    weighted = h / (1 + np.exp(-two(h, "rationale")))[..., None]
    weights = softmax(np.where(segments > 0, two(weighted, "attend"), -1e30))
    joined = np.concatenate([np.einsum("bl,bld->bd", weights, weighted), h[:, 0]], -1)
    np.testing.assert_allclose(kinds, dense(p, "kinds", joined), atol=1e-5)
    _loss(h, segments, (start, end, kinds, rationale))


def _loss(h, segments, scores):
    rows = {
        "input_ids": jnp.asarray(segments), "segment_ids": jnp.asarray(segments),
        "answer_start": jnp.array([2, 0]),
        "answer_end": jnp.array([4, 0]), "answer_kind": jnp.array([0, 2]),
        "rationale": jnp.array([[0, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]]),
    }  # fmt: skip
    objective = ConversationAnswers(beta=0.5)
    loss = objective.of(tower_with("converse", scores), Encoded(jnp.asarray(h)), rows)
    parts = []
    for part, place in zip(scores[:2], ((2, 7), (4, 7)), strict=True):
        joined = np.concatenate([np.where(segments > 0, part, -1e30), scores[2]], -1)
        parts.append(np.mean([-np.log(softmax(joined)[n, place[n]]) for n in range(2)]))
    chance, real = 1 / (1 + np.exp(-np.asarray(scores[3]))), segments > 0
    marks = np.asarray(rows["rationale"])
    nll = -(marks * np.log(chance) + (1 - marks) * np.log(1 - chance))[real].mean()
    np.testing.assert_allclose(float(loss.value()), np.mean(parts) + 0.5 * nll, rtol=1e-5)
    empty = {**rows, "answer_kind": jnp.array([0, -1]), "answer_start": jnp.array([2, -1])}
    assert objective.of(
        tower_with("converse", scores), Encoded(jnp.asarray(h)), empty
    ).weight.tolist() == [1, 1, 6]


def test_the_official_score_leaves_every_reader_out_in_turn():
    """What evaluate-v1.0.py gives on these, counted by hand."""
    gold = ("white", "a white horse", "white horse", "brown")
    # Left out: white -> best of the others with "white horse" 1; a white horse -> 1; white horse ->
    # 1; brown -> 1.
    assert conversation.turn_score(gold, "white horse", squad.overlap) == 1.0
    assert (
        conversation.turn_score(gold, "Brown!", squad.exact) == 3 / 4
    )  # no other reader has brown
    assert conversation.turn_score(gold, "white", squad.overlap) == pytest.approx(
        (2 / 3 + 1 + 1 + 1) / 4
    )
    assert conversation.turn_score(("white",), "white cat", squad.overlap) == pytest.approx(2 / 3)
    turns = list(_turns(TURNS))
    turns[1] = turns[1]._replace(source="reddit")
    replies = [
        conversation.Reply(text, "span", {}) for text in ("the film", "no", "1912", "unknown")
    ]
    task = catalogue.get("coqa")
    found = evaluating.measured(task, turns, replies)
    assert found["exact"] == pytest.approx(3 / 4) and found["out_domain_f1"] == 1
    assert (
        found["f1"] == pytest.approx((3 + 2 * (1 / 3) / (4 / 3)) / 4)
        and found["in_domain_f1"] < found["f1"]
    )
    (line,) = evaluating.lines(task, turns, replies)
    assert json.loads(line)[2] == {"id": "3abc", "turn_id": 3, "answer": "1912"}


def test_the_reply_is_the_best_of_all_windows():
    span = answering.Answer("it", 0.0, (answering.Span("it", 0, 2, 3.0),))

    def rows(*rows):
        return [np.array(row) for row in rows]

    assert conversation.reply(span, rows([0, 0, 9], [1, 1.4, 1])) == conversation.Reply(
        "it", "span", {"yes": 2.0, "no": 2.8, "unknown": 2.0, "span": 3.0}
    )
    assert conversation.reply(span, rows([0, 2, 0])).text == "no"
    assert conversation.reply(span, rows([0, 0, 9], [0, 0, 2])).text == "unknown"
    assert conversation.reply(answering.Answer("", 0.0, ()), rows([0, 0, -9])).kind == "yes"


@pytest.mark.full
def test_a_reader_is_trained_and_answers(published, path, tmp_path, capsys):
    words = [
        "train",
        "--init",
        str(published),
        "--task",
        "coqa",
        "--data",
        str(path),
        str(path),
        "--epochs",
        "2",
    ]
    words += [
        "--batch",
        "4",
        "--length",
        "48",
        "--adapt",
        "adversarial",
        "--workdir",
        str(tmp_path / "run"),
        "--json",
    ]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"f1", "exact"} <= set(found["metrics"]) and found["examples"] == 4
    assert {"start_nll", "rationale_nll"} <= set(found["heldout"])
    assert main(["predict", str(tmp_path / "run"), "--task", "coqa", "--input", str(path)]) == 0
    replies = json.loads(capsys.readouterr().out)
    assert [row["turn_id"] for row in replies] == [1, 2, 3, 4] and all(
        isinstance(row["answer"], str) for row in replies
    )
    assert "coqa" in (tmp_path / "run" / "config.json").read_text()
