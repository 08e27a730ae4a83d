"""Cloze tests of language models: scores against the logits of single rows, figures by hand, and
the recorded logits of Goldberg's BERT."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.tasks.clozes import human_answers, minimal_pairs, stored_facts, verb_forms
from ptm_jax.tasks.clozes.fact_data import Settings, questions_of
from support import tiny_checkpoint
from support.planned_model import planned

GOLDBERG = Path(__file__).parents[1] / "golden" / "agreement_gulordava.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A masked language model, whose words have one to three pieces."""
    path = tmp_path_factory.mktemp("masked")
    return tiny_checkpoint.write(path, architectures=["BertForMaskedLM"], vocab=45, scale=0.5)


@pytest.fixture
def scored(monkeypatch):
    """`scored(probabilities)`: a model with one token for each word, and the probability of a word
    at the mask of a text."""

    return lambda probabilities: planned(monkeypatch, probabilities)


def log_probabilities(model, ids):
    return np.array(jax.nn.log_softmax(model(np.array([ids])).logits[0], -1))


@pytest.mark.full
def test_scores_are_those_of_single_rows(folder):
    """Salazar et al. 2020, Eq. 1, and Kauf and Ivanova's form, a masked row at a time."""
    model = ptm_jax.load(folder)
    texts = ["the film was very good", "bad", "a funny story"]
    continued = model.tokenizer.continuations
    rows = model.ids_of(texts)
    assert any(continued[row].any() for row in rows)
    for by in ("piece", "word"):
        wanted = []
        for row in rows:
            total = 0.0
            for place in range(1, len(row) - 1):
                copy, end = row.copy(), place + 1
                while by == "word" and continued[row[end]]:
                    end += 1
                copy[place:end] = model.vocab.mask
                total += log_probabilities(model, copy)[place, row[place]]
            wanted.append(total)
        scores = cloze_scores.sentence_scores(model, texts, by=by, batch=2)
        np.testing.assert_allclose(scores, wanted, rtol=1e-5)
    masked = ["the [MASK] was good", "[MASK]", "a very funny [MASK]"]
    for text, scores in zip(masked, cloze_scores.at_masks(model, masked, 2), strict=True):
        before, after = text.split("[MASK]")
        parts = model.tokenizer.encode_batch([before, after])
        ids = [model.vocab.cls, *parts[0], model.vocab.mask, *parts[1], model.vocab.sep]
        np.testing.assert_allclose(
            scores, log_probabilities(model, ids)[1 + len(parts[0])], rtol=1e-4, atol=1e-5
        )
    assert cloze_scores.token_of(model, "zebra") is None
    with pytest.raises(UserError, match="text 2 has 2 masks"):
        list(cloze_scores.at_masks(model, ["a [MASK]", "[MASK] [MASK]"]))


@pytest.mark.full
def test_commands(folder, tmp_path, capsys):
    """Each suite with a real model; what the command refuses is one line."""
    pairs = [{"sentence_good": "the film was good", "sentence_bad": "the film good was", "UID": u,
              "linguistics_term": "order"} for u in ("a", "b")]  # fmt: skip
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    people = '"Condition","accepted","total_mean","count"\n"a",5,0.9,100\n"c",5,0.5,100\n'
    summary = '{"UID": "b", "linguistics_term": "order", "gpt2": 0.8}\n'
    (tmp_path / "pairs").mkdir()
    for name, text in (("a.jsonl", lines), (minimal_pairs.PEOPLE, people),
                       (minimal_pairs.PUBLISHED, summary)):  # fmt: skip
        (tmp_path / "pairs" / name).write_text(text)
    facts = [{"masked_sentences": ["the film is [MASK] ."], "obj_label": w} for w in ("a", "the")]
    (tmp_path / "facts.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    model = ptm_jax.load(folder)
    score = cloze_scores.sentence_scores(
        model, [pairs[0][f"sentence_{x}"] for x in ("good", "bad")]
    )
    for task, file, field in (("blimp", "pairs", "accuracy"), ("lama", "facts.jsonl", "precision")):
        data = str(tmp_path / file)
        command = ["evaluate", str(folder), "--task", task, "--data", data]
        assert main([*command, "--json"]) == 0
        metrics = json.loads(capsys.readouterr().out)["metrics"]
        assert field in metrics
        if task == "blimp":
            assert metrics["accuracy"] == float(score[0] > score[1])
            assert (metrics["published gpt2"], metrics["published people"]) == (0.8, 0.9)
        assert main(command) == 0 and f"{task}: 2" in capsys.readouterr().out
    assert main([*command, "--plot", "a.png"]) == 1
    assert "--plot is not for lama" in capsys.readouterr().err


@pytest.mark.full
def test_a_detector_of_replaced_tokens_scores_sentences_and_verbs(tmp_path, capsys):
    """The sum of the log-probabilities of unchanged tokens, a row at a time; a detector trained
    with the survey's sign; the other tasks refuse --tower."""
    folder = tiny_checkpoint.write(
        tmp_path / "judge", model_type="electra", architectures=["ElectraForPreTraining"],
        embedding_size=16, vocab=45, scale=0.5,
    )  # fmt: skip
    model, texts = ptm_jax.load(folder), ["the film was very good", "bad", "a funny story"]
    logits = [
        np.asarray(model(np.array([row])).logits, np.float64).reshape(-1)[1 : len(row) - 1]
        for row in model.ids_of(texts)
    ]
    for convention, sign in (("electra", 1), ("survey", -1)):
        system = dataclasses.replace(model.system, objective=RTD(convention=convention))
        one = dataclasses.replace(model, system=system)
        wanted = [np.log(1 / (1 + np.exp(sign * row))).sum() for row in logits]
        np.testing.assert_allclose(
            cloze_scores.sentence_scores(one, texts, batch=2), wanted, rtol=1e-5
        )
    (tmp_path / "a.text").write_text("the film was good\n")
    (tmp_path / "a.gold").write_text("2\twas\tis\t0\n")
    command = ["evaluate", str(folder), "--task", "agreement", "--data", str(tmp_path / "a.text")]
    assert main([*command, "--json"]) == 0
    both = cloze_scores.sentence_scores(model, ["the film was good", "the film is good"])
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["accuracy"] == float(both[0] > both[1])
    (tmp_path / "a.jsonl").write_text('{"sentence_good": "a film", "sentence_bad": "film a"}\n')
    pairs = [*command[:3], "blimp", "--data", str(tmp_path / "a.jsonl"), "--by", "span"]
    assert main(pairs) == 1 and "--by span is for masked models" in capsys.readouterr().err
    assert main([*command[:3], "sts", *command[4:], "--tower", "main"]) == 1
    assert "--tower is for --task" in capsys.readouterr().err


@pytest.mark.status("ptm evaluate --task agreement", "matches")
def test_goldbergs_recorded_logits_give_his_table(scored, tmp_path):
    """bert-base-uncased on Gulordava's sentences: his script's shares for each number of
    attractors, without "is" and "are" and verbs of several pieces."""
    rows = json.loads(GOLDBERG.read_text())["rows"]
    lines = ["sent\tclass\tform\tlen_prefix\tn_attr"]
    probabilities = {}
    for number, (attractors, right, good, wrong, bad) in enumerate(rows):
        known = good is not None
        sentence = f"s{number} {right} . <eos>"
        for kind, form in (("correct", right), ("wrong", wrong)):
            shown = form if known or right == "is" else f"{form} {form}"
            lines.append(f"{sentence}\t{kind}\t{shown}\t1\t{attractors}")
        logits = (0.0, 1.0) if not known else (good, bad)
        probabilities[f"s{number} [MASK] ."] = dict(
            zip((right, wrong), np.exp(np.array(logits) - 30), strict=True)
        )
    (tmp_path / "generated.tab").write_text("\n".join(lines))
    items = verb_forms.items_of(tmp_path / "generated.tab")
    model = scored(probabilities)
    verdicts = verb_forms.preferred(model, items, 8)
    known = [
        i for i, verdict in enumerate(verdicts) if verdict is not None and items[i].right != "is"
    ]
    assert len(known) == 383
    shares = minimal_pairs.accuracies(
        [verdicts[i] for i in known], [items[i].condition for i in known]
    )
    assert {name: round(value, 2) for name, value in shares.items()} == {
        "0 attractors": 0.84, "1 attractors": 0.81, "2 attractors": 0.89,
    }  # fmt: skip
    assert round(np.mean([verdicts[i] for i in known]), 2) == 0.83


def test_sentences_of_linzen_and_of_marvin(tmp_path):
    (tmp_path / "a.text").write_text("the keys to the box are here . <eos>\n")
    (tmp_path / "a.gold").write_text("5\tare\tis\t1\n")
    (item,) = verb_forms.items_of(tmp_path / "a.text")
    assert item[:5] == ("the keys to the box", "here .", "are", "is", "1 attractors")
    (tmp_path / "b.tsv").write_text(
        "test case\tgrammatical\tungrammatical\nsimple--x\tthe author laughs.\tthe author laugh.\n"
        "long--x\tno author ever laughs.\tthe author has ever laughed.\n"
    )
    (item,) = verb_forms.items_of(tmp_path / "b.tsv")
    assert item[:5] == ("the author", ".", "laughs", "laugh", "simple") and item.strict
    assert verb_forms.commoner([item, item, item._replace(right="laugh", wrong="laughs")]) == [
        True, True, False,
    ]  # fmt: skip
    (tmp_path / "a.gold").write_text("9\tare\tis\t1\n")
    with pytest.raises(UserError, match="a.gold:1: .*expected the place of a word"):
        verb_forms.items_of(tmp_path / "a.text")


@pytest.mark.status("ptm evaluate --task ettinger", "matches")
def test_ettingers_figures_by_hand(scored, tmp_path):
    """Two items of each suite: expected words, pairs, the margin of 0.01, and the articles."""
    (tmp_path / "c.tsv").write_text(
        "item\tcontext_s1\tcontext_s2\texpected\twithin_category\tbetween_category\tconstraint\n"
        "0\tShe won.\tShe plays\tchess\tmonopoly\tfootball\tH\n"
        "1\tHe lost.\tHe plays\tmonopoly\tchess\tfootball\tL\n"
    )
    suite = human_answers.suite_of(tmp_path / "c.tsv")
    first, second = "She won. She plays [MASK] .", "He lost. He plays [MASK] ."
    others = {f"w{i}": 0.01 for i in range(5)}
    model = scored({
        first: {"chess": 0.4, "monopoly": 0.2, "football": 0.1},
        second: {"chess": 0.0005, "monopoly": 0.001, "football": 0.0001, **others},
    })  # fmt: skip
    figures, asked = human_answers.measured(model, suite, 8)
    assert asked == suite and figures == {
        "top 5": 0.5, "sensitive": 1.0, "sensitive by 0.01": 0.5, "sensitive H": 1.0,
        "sensitive H by 0.01": 1.0, "sensitive L": 1.0, "sensitive L by 0.01": 0.0,
    }  # fmt: skip
    (tmp_path / "r.tsv").write_text(
        "item\tcontext\texpected\texp_cloze\ttarget\ttgt_cloze\ttgt_cloze(strict)\n"
        "1-a\twhich guest the waiter had\tserved|met\t1\tserved\t0.9\t0\n"
        "1-b\twhich waiter the guest had\ttipped\t1\tserved\t0\t0\n"
    )
    suite = human_answers.suite_of(tmp_path / "r.tsv")
    model = scored({
        "which guest the waiter had [MASK] .": {"served": 0.1, **others},
        "which waiter the guest had [MASK] .": {"served": 0.2, "tipped": 0.3},
    })  # fmt: skip
    figures, asked = human_answers.measured(model, suite, 8)
    assert asked == suite and figures == {
        "top 5": 1.0, "sensitive": 0.0, "sensitive by 0.01": 0.0,
    }  # fmt: skip
    (tmp_path / "n.tsv").write_text(
        "item\tcontext_aff\tcontext_neg\ttarget_aff\ttarget_neg\n"
        "0\tAn ant is (a|an)\tAn ant is not (a|an)\tinsect\tvegetable\n"
    )
    suite = human_answers.suite_of(tmp_path / "n.tsv")
    model = scored({
        "An ant is an [MASK] .": {"insect": 0.6}, "An ant is a [MASK] .": {"vegetable": 0.1},
        "An ant is not an [MASK] .": {"insect": 0.5},
        "An ant is not a [MASK] .": {"vegetable": 0.2},
    })  # fmt: skip
    figures, asked = human_answers.measured(model, suite, 8)
    assert asked == suite and figures["affirmative"] == 1.0 and figures["negative"] == 0.0


def test_precision_of_facts_by_hand(scored, tmp_path):
    """Other objects of a subject leave the ranking; a list bounds it; relations have one vote."""
    facts = [
        {"masked_sentences": ["Paris is in [MASK]."], "obj_label": "France", "sub_label": "Paris",
         "masked_negations": ["Paris is not in [MASK]."],
         "masked_misprimed": ["Rome? Paris is in [MASK]."]},
        {"masked_sentences": ["Paris is in [MASK]."], "obj_label": "Europe", "sub_label": "Paris"},
        {"masked_sentences": ["Rome is in [MASK]."], "obj_label": "Italy", "sub_label": "Rome"},
        {"masked_sentences": ["Bonn is in [MASK]."], "obj_label": "New York", "sub_label": "Bonn"},
    ]  # fmt: skip
    file = tmp_path / "P17.jsonl"
    file.write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    model = scored({
        "Paris is in [MASK].": {"France": 0.5, "Europe": 0.3, "it": 0.1},
        "Rome is in [MASK].": {"it": 0.5, "Italy": 0.2},
        "Paris is not in [MASK].": {"France": 0.9},
        "Rome? Paris is in [MASK].": {"Italy": 0.9},
    })  # fmt: skip
    read = stored_facts.facts_of(file)
    questions = questions_of(model, read, None)
    figures = stored_facts.measured(model, questions, Settings(common="Italy"))
    assert len(questions) == 3 and figures.pop("negated: rank correlation") < 1
    assert figures == pytest.approx({
        "precision": 2 / 3, "precision at 10": 1.0, "reciprocal rank": 2.5 / 3,
        "commonest answer": 1 / 3, "negated: same answer": 1.0, "misprimed precision": 0.0,
        "unigram": 1 / 3,
    })  # fmt: skip
    listed = np.array([cloze_scores.token_of(model, word) for word in ("France", "Italy")])
    questions = questions_of(model, read, np.sort(listed))
    figures = stored_facts.measured(model, questions, Settings(np.sort(listed)))
    assert len(questions) == 2 and figures["precision"] == 1.0
    parts = {"GoogleRE_a": 0.0, "GoogleRE_b": 0.5, "P17": 0.75}
    means = stored_facts._macro({name: {"precision": value} for name, value in parts.items()})
    assert means == {"precision": 0.5}
