"""LAMA by brute force, names and prompts of LAMA, entity vectors, tuples of common sense, pairs of
a relation, and the baselines of cloze tests."""

import itertools
import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.saliency import predicted
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.runs.evaluations import Request
from ptm_jax.tasks.clozes import (
    baselines,
    commonsense,
    entity_vectors,
    human_answers,
    minimal_pairs,
    prompt_ensembles,
    relation_induction,
    stored_facts,
    unhelpful_names,
)
from ptm_jax.tasks.clozes.fact_data import Fact, Question, Settings, prompts_of, questions_of
from support import tiny_checkpoint
from support.planned_model import planned

WORDS = [f"w{i:02}" for i in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A masked language model. Most words are one token."""
    path = tmp_path_factory.mktemp("masked")
    return tiny_checkpoint.write(path, architectures=["BertForMaskedLM"], vocab=70, scale=0.5)


def fact(answer, subject="", sentence=None, negated=None):
    return Fact(sentence or f"{subject} is [MASK] .", answer, subject, negated, None)


@pytest.mark.status("ptm evaluate --task lama", "matches")
@pytest.mark.status("ptm evaluate --task lama --filter uhn", "matches")
def test_figures_of_facts_are_those_of_sorted_lists(monkeypatch):
    """LAMA's definitions on random predictions: a list of the allowed words, without the other
    objects of the subject, is sorted; Kassner and Schütze's overlap and correlation."""
    draw = np.random.default_rng(0)
    texts = [f"s{i} [MASK]" for i in range(12)]
    table = {t: dict(zip(WORDS, draw.dirichlet(np.ones(30)), strict=True)) for t in texts}
    table |= {f"not {t}": dict(zip(WORDS, draw.dirichlet(np.ones(30)), strict=True)) for t in texts}
    model = planned(monkeypatch, table)
    facts = [
        fact(WORDS[draw.integers(30)], f"e{i % 5}", t, f"not {t}") for i, t in enumerate(texts)
    ]
    allowed = np.arange(0, 30, 2)
    questions = questions_of(model, facts, allowed)
    figures = stored_facts.measured(model, questions, Settings(allowed, (1, 3), "w04"))
    listed = [WORDS[i] for i in allowed]
    known = [one for one in facts if one.answer in listed]
    ranks, same, correlations = [], [], []
    for one in known:
        others = {x.answer for x in known if x.subject == one.subject} - {one.answer}
        order = sorted(
            (w for w in listed if w not in others), key=lambda w: -table[one.sentence][w]
        )
        ranks.append(order.index(one.answer) + 1)
        first, second = ([t[w] for w in listed] for t in (table[one.sentence], table[one.negated]))
        same.append(np.argmax(first) == np.argmax(second))
        places = [np.argsort(np.argsort(row)) for row in (first, second)]
        correlations.append(np.corrcoef(*places)[0, 1])
    answers = [one.answer for one in known]
    assert [one.fact for one in questions] == known and figures == pytest.approx({
        "precision": np.mean(np.array(ranks) == 1), "precision at 3": np.mean(np.array(ranks) <= 3),
        "reciprocal rank": np.mean(1 / np.array(ranks)),
        "unigram": answers.count("w04") / len(known),
        "commonest answer": max(map(answers.count, answers)) / len(known),
        "negated: same answer": np.mean(same), "negated: rank correlation": np.mean(correlations),
    })  # fmt: skip


def test_names_that_give_answers_away(monkeypatch):
    question = "{} is a common name in the following language: [MASK]."
    others = {"a": 0.3, "b": 0.2}
    model = planned(monkeypatch, {
        question.format("Jean"): {**others, "French": 0.1}, question.format("Abel"): {"c": 0.9},
        question.format("Marais"): {**others, "c": 0.15, "French": 0.1},
    })  # fmt: skip
    facts = [fact("French", "Jean Marais"), fact("French", "Marais"), fact("abel", "Abel Gance")]
    left, counts = unhelpful_names.filtered(model, "TREx_P103", facts[:2] + facts[2:])
    assert left == facts[1:2] and [*counts.values()] == [1, 1]
    assert unhelpful_names.filtered(model, "P36", facts)[0] == facts[:2]
    assert unhelpful_names.filtered(model, "P103", facts, names=False)[0] == facts[:2]


@pytest.mark.full
@pytest.mark.status("ptm evaluate --task lama --prompts", "matches")
def test_weights_of_prompts_are_the_best_of_a_grid():
    """LPAQA's Eq. 4 and 5: no weights on a grid of the simplex give the answers more."""
    draw = np.random.default_rng(1)
    tables = np.log(draw.dirichlet(np.ones(5), (8, 3)))
    answers = tables[:, 1].argmax(-1)
    answers[:3] = tables[:3, 0].argmax(-1)

    def likelihood(weights):
        scores = np.einsum("t,ntc->nc", weights, tables)
        return np.mean(scores[np.arange(8), answers] - np.log(np.exp(scores).sum(-1)))

    grid = [
        np.array([a, b, 20 - a - b]) / 20 for a, b in itertools.product(range(21), repeat=2)
        if a + b <= 20
    ]  # fmt: skip
    best = max(grid, key=likelihood)
    weights = prompt_ensembles.weights_of(tables, answers)
    assert weights.sum() == pytest.approx(1) and likelihood(weights) >= likelihood(best) - 1e-6
    assert np.abs(weights - best).max() < 0.05


def test_prompts_are_chosen_on_other_subjects(monkeypatch, tmp_path):
    prompts = ["[X] in [Y]", "[Y] has [X]", "of [X]: [Y]"]
    right = {"[X] in [Y]": "ab", "[Y] has [X]": "abc", "of [X]: [Y]": "d"}
    table = {
        prompt.replace("[Y]", "[MASK]").replace("[X]", name): {
            name.upper() if name in right[prompt] else f"no {prompt}": 0.6, "E": 0.3, "other": 0.1,
        }
        for prompt in prompts for name in "abcde"
    }  # fmt: skip
    table |= {f"{name} is [MASK] .": {name.upper(): 0.9} for name in "de"}
    model = planned(monkeypatch, table)
    questions = questions_of(model, [fact(name.upper(), name) for name in "abcde"], None)
    figures = prompt_ensembles.measured(model, prompts, questions[:3], questions[3:], Settings())
    figures.pop("optimised ensemble")
    assert figures == {
        "suite's prompt": 1.0, "top prompt": 0.0, "equal weights": 0.5, "oracle": 0.5,
    }  # fmt: skip
    assert prompt_ensembles.measured(model, prompts, [], questions, Settings()) == {}
    facts = {"TREx_P19": [fact("x", name) for name in "aabbcd"]}
    measured, choosing = prompt_ensembles.divided(facts, None)
    assert "".join(one.subject for one in measured["TREx_P19"]) == "bbd"
    assert "".join(one.subject for one in choosing["TREx_P19"]) == "aac"
    measured, choosing = prompt_ensembles.divided(facts, {"P19": [fact("x", "a"), fact("x", "z")]})
    assert measured == facts and [one.subject for one in choosing["TREx_P19"]] == ["z"]
    (tmp_path / "P19.jsonl").write_text('{"template": "[X] is [Y] .", "weight": 0.5}\n')
    assert prompts_of([tmp_path / "P19.jsonl"]) == {"P19": ["[X] is [Y] ."]}
    (tmp_path / "P19.jsonl").write_text('{"template": "[X] is it .", "relation": "P2"}\n')
    with pytest.raises(UserError, match=r"P19.jsonl:1: .* is no prompt; write \[X\]"):
        prompts_of([tmp_path / "P19.jsonl"])


@pytest.mark.full
def test_a_moved_word_is_another_word(folder):
    """The vector of a token in the place of the mask gives the predictions of the token; entities
    whose vectors are a linear map of the model's are found by least squares."""
    model = ptm_jax.load(folder)
    ids = np.arange(model.vocab.size, dtype=np.int32)
    table = predicted.vectors_of(model, ids)
    bad, sad, mask = model.tokenizer.id("bad"), model.tokenizer.id("sad"), model.vocab.mask
    (row,) = model.ids_of(["a bad is sad"])
    row[4] = mask
    copy = row.copy()
    copy[2] = mask
    moves = [(2, table[bad] - table[mask]), (0, np.zeros(16))]
    scores = list(cloze_scores.at_places(model, [copy, row], [4, 4], 8, moves))
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)
    tokens = [i for i in ids[5:] if not model.tokenizer.continuations[i]]
    words = [model.tokenizer.piece(i) for i in tokens]
    other = np.random.default_rng(2).normal(size=(16, 16))
    vectors = np.concatenate([table[tokens], table[[bad]]]) @ other
    entities = entity_vectors.mapped(model, WordVectors.of([*words, "ENTITY/Long_Film"], vectors))
    np.testing.assert_allclose(entities.of("Long Film"), table[bad], atol=1e-4)
    names = ("Long Film", "Unknown")
    asked = [Question(fact("sad", name, f"a {name} is [MASK]"), sad, []) for name in names]
    seen = []

    class Seen(Settings):
        def bounded(self, row):
            seen.append(row)
            return row

    _, left = entity_vectors.measured(model, entities, asked, Seen())
    wanted = ["a bad is [MASK]", "a Unknown is [MASK]", "a bad / Long Film is [MASK]"]
    for row, scores in zip(seen[:3], cloze_scores.at_masks(model, wanted), strict=True):
        np.testing.assert_allclose(row, scores, rtol=1e-3, atol=1e-3)
    assert left == 1
    with pytest.raises(UserError, match="the map needs at least 16"):
        entity_vectors.mapped(model, WordVectors.of(words[:3], vectors[:3]))


@pytest.mark.full
@pytest.mark.status("ptm evaluate --task commonsense", "matches")
def test_information_is_that_of_rows_filled_one_by_one(folder):
    """Davison et al. 2019: a row at a time, the likeliest piece of the phrase first."""
    model = ptm_jax.load(folder)
    sentences = [("the [X] is a [Y] .", "film", "funny story"), ("[Y] has [X]", "the end", "plot")]

    def log_p(text_ids, places, hidden):
        row, total = text_ids.copy(), 0.0
        row[places] = row[hidden] = model.vocab.mask
        todo = list(places)
        while todo:
            logits = np.asarray(model(row[None]).logits[0], np.float64)
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            best = max(todo, key=lambda i: logs[i, text_ids[i]])
            total += logs[best, text_ids[best]]
            row[best] = text_ids[best]
            todo.remove(best)
        return total

    wanted = []
    for template, head, tail in sentences:
        pieces = [model.tokenizer.encode_batch([t])[0].tolist() for t in (head, tail)]
        ids = model.ids_of([template.replace("[X]", head).replace("[Y]", tail)])[0]
        spans = [
            next(
                list(range(i, i + len(p)))
                for i in range(len(ids))
                if ids[i : i + len(p)].tolist() == p
            )
            for p in pieces
        ]
        wanted.append(np.mean([
            log_p(ids, spans[k], []) - log_p(ids, spans[k], spans[1 - k]) for k in (0, 1)
        ]))  # fmt: skip
    assert max(map(len, spans)) > 1
    np.testing.assert_allclose(commonsense.information(model, sentences), wanted, rtol=1e-4)


def test_tuples_phrases_and_thresholds(tmp_path, monkeypatch):
    file = tmp_path / "a.tsv"
    file.write_text("IsA\tdog\tanimal\nIsA\tapple\tfruit\nHasA\tdog\ttail\n")
    tuples = commonsense.tuples_of([str(file)])
    assert [one[1:] for one in tuples] == [
        ("dog", "animal", True), ("dog", "fruit", False), ("apple", "fruit", True),
        ("apple", "tail", False), ("dog", "tail", True), ("dog", "animal", False),
    ]  # fmt: skip
    file.write_text("IsA\tdog\tanimal\t1\nIsA\tdog\tfruit\t0\n")
    assert [one.valid for one in commonsense.tuples_of([str(file)])] == [True, False]
    monkeypatch.setattr(cloze_scores, "sentence_scores", lambda model, texts, batch: [
        text == "an apple is fruit" for text in texts])  # fmt: skip
    judge = type("Judge", (), {"causal": True})
    (phrase,) = commonsense.phrased(
        [commonsense.Tuple("IsA", "apple", "fruit")], {"IsA": ["[X] has [Y]", "[X] is [Y]"]}, judge
    )
    assert phrase == ("[X] is [Y]", "an apple", "fruit")
    draw = np.random.default_rng(3)
    for _ in range(5):
        valid, scores = draw.random(9) < 0.5, draw.integers(0, 5, 9).astype(float)
        valid[0], valid[1] = True, False
        f1 = {s: baselines.verdicts(valid, scores, s)["f1"] for s in scores}
        assert f1[commonsense.best_threshold(valid, scores)] == max(f1.values())
    figures = baselines.verdicts(np.array([True, True, False, True]), np.array([3, 2, 1, 0.0]), 2)
    assert figures == pytest.approx({
        "auc": 2 / 3, "accuracy": 0.75, "f1": 0.8, "majority accuracy": 0.75, "majority f1": 6 / 7,
    })  # fmt: skip


def test_templates_of_a_relation(monkeypatch):
    pairs = [("Paris", "France"), ("Rome", "Italy"), ("New York", "the USA")]
    text = (
        "Paris lies in France. Is Paris in France? Paris, not Paris, is in France. Rome, in Italy."
    )
    templates = relation_induction.candidates(pairs, [text, "New York is in the USA."])
    assert templates == ["[X] lies in [Y].", "Is [X] in [Y]?", "[X], in [Y].", "[X] is in [Y]."]
    one, two = "[X] lies in [Y].", "Is [X] in [Y]?"
    table = {}
    for template, right in ((one, (1, 1, 0)), (two, (1, 0, 0))):
        for (head, tail), known in zip(pairs, right, strict=True):
            table[template.replace("[X]", "[MASK]").replace("[Y]", tail)] = {head: 0.9, "it": 0.5}
            table[template.replace("[X]", head).replace("[Y]", "[MASK]")] = {
                tail: 0.4 + known / 4, "it": 0.5,
            }  # fmt: skip
    model = planned(monkeypatch, table)
    for top, count, wanted in ((1, 9, [one, two]), (1, 1, [one]), (2, 9, [one, two])):
        chosen = relation_induction.chosen(model, pairs, [two, one], top=top, count=count)
        assert sorted(chosen) == sorted(wanted) and (top == 2 or chosen[0] == one)
    rows = relation_induction.rows_of(pairs, templates[:2], 2)
    related = {row["pair"] for row in rows if row["label"] == "related"}
    unrelated = {row["pair"] for row in rows if row["label"] == "unrelated"}
    assert related == {" / ".join(pair) for pair in pairs} and not related & unrelated
    assert "France / Paris" in unrelated and len(unrelated) >= 2 * len(pairs)
    assert "Rome lies in Italy." in {row["text"] for row in rows}


def test_baselines_by_hand(tmp_path):
    words = baselines.Unigrams(["the dog and the cat", "a dog"])
    assert words.score("The Dog") == pytest.approx(np.log(3 / 13 * 3 / 13))
    shares = [words.share("dog", [other]) for other in ("cat", "the", "bird")]
    assert shares == [1.0, 0.5, 1.0] and words.share("x", ["y", "z"]) == pytest.approx(1 / 3)
    pairs = [minimal_pairs.Pair(good, bad, "p", "g") for good, bad in (
        ("a really good", "a not good"), ("he really sees", "he not sees"), ("an x", "an y")
    )]  # fmt: skip
    assert minimal_pairs.majority(pairs) == [1.0, 1.0, 0.5]
    suite = human_answers.Suite("s", {"a b [MASK] .": ["a"], "a [MASK]": ["z"]}, [
        ("sensitive", ("c", "a"), [("c", "b")]), ("sensitive", ("c", "z"), [("c", "y")]),
    ])  # fmt: skip
    assert human_answers.simple(suite) == {
        "top 5: commonest": 1.0, "top 5: unigram": 0.5, "sensitive: unigram": 0.75,
    }  # fmt: skip
    for good, bad, spans in (
        ([1, 5, 6, 2], [1, 5, 7, 2], [[2], [2]]), ([1, 5, 2], [1, 5, 6, 2], [[1], [1, 2]]),
        ([1, 5, 6, 7, 2], [1, 8, 9, 7, 2], [[1, 2], [1, 2]]),
        ([1, 6, 2], [1, 5, 6, 2], [[1], [1, 2]]),
    ):  # fmt: skip
        assert minimal_pairs.spans_of(np.array(good), np.array(bad)) == spans


def test_figures_and_baselines_have_one_average(monkeypatch, tmp_path):
    """Paradigms of two, one and one pairs, and a comparison that is left out, counted by hand."""
    lines = (
        ("b a c", "a b", "p", "g"), ("c c", "a a", "p", "g"), ("a", "b b", "q", "g"),
        ("b", "a a a", "r", "h"),
    )  # fmt: skip
    names = "sentence_good", "sentence_bad", "UID", "linguistics_term"
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in lines))
    score = {"b a c": 1, "a b": 2, "c c": 2, "a a": 1, "a": 1, "b b": 0, "b": 2, "a a a": 1}
    model = planned(monkeypatch, {})
    model.causal, model.ids_of = True, lambda texts: [text.split() for text in texts]
    monkeypatch.setattr(minimal_pairs, "load", lambda name, tower: model)
    monkeypatch.setattr(minimal_pairs, "best_checkpoint", lambda name: name)
    monkeypatch.setattr(cloze_scores, "sentence_scores", lambda model, texts, by, batch: [
        score[text] for text in texts])  # fmt: skip
    request = Request(task="blimp", model="m", data=(str(file),))
    metrics = minimal_pairs.report(request).document["metrics"]
    # By pair of p, q, r. The model: 0 1, 1, 1. Shorter: 0 0.5, 1, 1. Majority: 1 1 (the word c),
    # 0.5, 0.5 (no other pair). Unigrams (a 8, b 5, c 3 times): 0 0, 1, 1.
    assert metrics == pytest.approx({
        "accuracy": 2.5 / 3, "accuracy over pairs": 3 / 4, "shorter sentence": 2.25 / 3,
        "majority": 2 / 3, "unigram": 2 / 3, "g": 0.75, "h": 1.0,
    })  # fmt: skip
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    metrics = minimal_pairs.report(request).document["metrics"]
    assert metrics["accuracy"] == 1.0 and "accuracy over pairs" not in metrics
    model = planned(monkeypatch, {"a a [MASK]": {"a": 0.6, "b": 0.4}})
    comparisons = [("s", ("a a [MASK]", "a"), [("a a [MASK]", other)]) for other in ("b", "split")]
    comparisons.append(("s", ("a a [MASK]", "z"), [("a a [MASK]", "a")]))
    suite = human_answers.Suite("s", {"a a [MASK]": ["a"]}, comparisons)
    figures, asked = human_answers.measured(model, suite, 8)
    assert asked.comparisons == comparisons[:1] and figures["s"] == 1.0
    assert human_answers.simple(asked)["s: unigram"] == 1.0


@pytest.mark.full
@pytest.mark.status("ptm mine --by relation", "built")
def test_commands(folder, tmp_path, capsys):
    """Spans, tuples and pairs by command, with a classifier that is trained; one line for suites
    whose words are split and for options of other tasks."""

    def evaluated(model, *words):
        capsys.readouterr()
        assert main(["evaluate", str(model), "--json", *map(str, words)]) == 0
        return json.loads(capsys.readouterr().out)["metrics"]

    pair = {"sentence_good": "a sad end", "sentence_bad": "a bad end"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    model = ptm_jax.load(folder)
    metrics = evaluated(
        folder, "--task", "blimp", "--by", "span", "--data", tmp_path / "pairs.jsonl"
    )
    (row,) = cloze_scores.at_masks(model, ["a [MASK] end"])
    sad, bad = (cloze_scores.token_of(model, word) for word in ("sad", "bad"))
    assert metrics["accuracy"] == float(row[sad] > row[bad])
    (tmp_path / "t.jsonl").write_text('{"relation": "IsA", "template": "[X] is [Y] ."}\n')
    heads = tiny_checkpoint.WORDS
    tuples = [f"IsA\t{a}\t{b}\n" for a, b in zip(heads, heads[1:], strict=False)]
    (tmp_path / "t.tsv").write_text("".join(tuples))
    metrics = evaluated(folder, "--task", "commonsense", "--data", tmp_path / "t.tsv", "--prompts",
                        tmp_path / "t.jsonl")  # fmt: skip
    assert {"auc", "f1", "majority f1", "unigram auc"} <= {*metrics}
    words = [
        ("a", "is"),
        ("bad", "end"),
        ("end", "and"),
        ("sad", "a"),
        ("is", "sad"),
        ("and", "bad"),
    ]
    (tmp_path / "r.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in words))
    (tmp_path / "c.txt").write_text("".join(f"{a} plot {b}\nvery {b} {a}\n" for a, b in words))
    out = tmp_path / "rows.jsonl"
    command = ["mine", folder, "--by", "relation", "--data", tmp_path / "r.tsv", "--range-max", 70,
               "--corpus", tmp_path / "c.txt", "--out", out]  # fmt: skip
    assert main([*map(str, command)]) == 0
    run = tmp_path / "run"
    train = ["train", "--init", folder, "--task", "classify", "--data", out, "--epochs", 1,
             "--batch", 8, "--workdir", run]  # fmt: skip
    assert main([*map(str, train)]) == 0
    metrics = evaluated(run, "--task", "relation", "--data", out.with_suffix(".heldout.jsonl"))
    assert 0 <= metrics["auc"] <= 1 and metrics["majority accuracy"] >= 0.5
    split = [{"masked_sentences": ["the [MASK] ."], "obj_label": "zebra crossing"}]
    (tmp_path / "P1.jsonl").write_text(json.dumps(split[0]) + "\n")
    (tmp_path / "r2.tsv").write_text(
        "item\tcontext\texpected\texp_cloze\ttarget\ttgt_cloze\n1-a\tthe\tzebra\t1\tzebra\t1\n"
        "1-b\ta\tzebra\t1\tzebra\t1\n"
    )
    for words, message in (
        (["--task", "lama", "--data", tmp_path / "P1.jsonl"], "is one token of"),
        (["--task", "ettinger", "--data", tmp_path / "r2.tsv"], "are single tokens of"),
        (["--task", "lama", "--data", out, "--by", "span"], "--by is for --task blimp; leave it"),
        (["--task", "blimp", "--data", out, "--filter", "uhn"], "--filter is for --task lama;"),
        (["--task", "lama", "--data", out, "--top", "0"], "--top takes numbers of at least 1"),
        (["--task", "lama", "--data", tmp_path / "P1.jsonl", "--train", out], "give --prompts too"),
        (["--task", "commonsense", "--data", tmp_path / "t.tsv"], "give --prompts FILE"),
    ):  # fmt: skip
        assert main(["evaluate", str(folder), *map(str, words)]) == 1
        assert message in capsys.readouterr().err
