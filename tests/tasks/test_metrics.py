"""Measures by hand, GLUE's averages, the servers' files and pictures."""

import dataclasses

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.answering import Answer
from ptm_jax.inference.text.classifying import Prediction
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.labelled import Example
from ptm_jax.tasks.formats.questions import Asked
from ptm_jax.tasks.formats.tagged import Sentence
from ptm_jax.tasks.formats.targets import Written
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.tasks.metrics import measures, plots, rouge


def labelled(*labels, **fields):
    return [
        Example("x", None, label, f"f:{i}", index=i, **fields) for i, label in enumerate(labels)
    ]


def predictions_of(*labels):
    return [Prediction(label, {label: 0.75, "other": 0.25}) for label in labels]


def measure(task, examples, answers):
    task = catalogue.get(task)
    return evaluating.measured(task, examples, answers)


def test_classes():
    found = measure("mrpc", labelled("1", "1", "0", "0"), predictions_of("1", "0", "1", "0"))
    assert found == {"f1": 0.5, "accuracy": 0.5} and next(iter(found)) == "f1"
    gold, predicted = "1 1 1 0 0 1".split(), "1 0 1 0 1 1".split()
    a, b, c, d = 3, 1, 1, 1  # both right, missed, right no, wrong yes
    wanted = (a * c - d * b) / np.sqrt((a + d) * (a + b) * (c + d) * (c + b))
    assert measure("cola", labelled(*gold), predictions_of(*predicted))[
        "matthews"
    ] == pytest.approx(wanted)
    found = measure("scicite", labelled("method", "result"), predictions_of("method", "method"))
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert measure("trec6", labelled("LOC", "NUM"), predictions_of("LOC", "HUM")) == {
        "accuracy": 0.5,
        "error": 0.5,
    }


def test_numbers():
    numbers = [Prediction("", {}, value) for value in (1.0, 2.0, 4.0)]
    found = measure("stsb", labelled("0.5", "1.0", "5.0"), numbers)
    assert found == {
        "pearson": pytest.approx(np.corrcoef([0.5, 1, 5], [1, 2, 4])[0, 1]),
        "spearman": pytest.approx(1),
    }
    assert measure("stsb", labelled("1", "2"), [Prediction("", {}, 3.0)] * 2) == {
        "pearson": 0.0,
        "spearman": 0.0,
    }


def test_groups():
    both = [
        Example("t", "q", label, "f", group=group)
        for label, group in (("1", "a"), ("0", "a"), ("1", "b"))
    ]
    found = measure("multirc", both, predictions_of("1", "0", "0"))
    assert found == {"f1": pytest.approx(2 / 3), "exact": 0.5}
    entities = [("Ann", "a"), ("Bob", "a"), ("New York", "b")]
    examples = [
        Example(
            "t",
            "q",
            "0",
            "f",
            group=group,
            facts={"entity": e, "answers": ["Bob"] if group == "a" else ["York"]},
        )
        for e, group in entities
    ]
    predicted = [Prediction("0", {"1": score}) for score in (0.2, 0.4, 0.1)]
    assert measure("record", examples, predicted) == {
        "f1": pytest.approx((1 + 2 / 3) / 2),
        "exact": 0.5,
    }
    task = catalogue.get("record")
    found = list(evaluating.lines(task, examples, predicted))
    assert found == ['{"idx": "a", "label": "Bob"}', '{"idx": "b", "label": "New York"}']


def test_senses_are_those_of_the_likeliest_gloss():
    """Two words with two senses each; of the second word either sense is right."""
    rows = [
        ("w1", "a%1", ["a%2"]),
        ("w1", "a%2", ["a%2"]),
        ("w2", "b%1", ["b%1", "b%2"]),
        ("w2", "b%2", ["b%1", "b%2"]),
    ]
    examples = [
        Example("t", "g", "1", "f", index=w, group=w, facts={"sense": s, "answers": a})
        for w, s, a in rows
    ]
    found = [Prediction("0", {"1": score}) for score in (0.6, 0.3, 0.1, 0.2)]
    assert measure("wsd", examples, found)["f1"] == 0.5
    assert list(evaluating.lines(catalogue.get("wsd"), examples, found)) == ["w1 a%1", "w2 b%2"]


def test_written_texts():
    examples = [Written("s", "the cat sat on the mat", "f")]
    found = measure("xsum", examples, ["the cat sat on the mat"])
    assert list(found) == [*rouge.NAMES, "bleu", "chrf"] and found["bleu"] == pytest.approx(1)
    found = measure("xsum", examples, ["the mat"])
    assert found["rouge1"] == pytest.approx(2 * 2 / 8) and found["rouge3"] == 0
    with pytest.raises(UserError, match="1 examples and 2 predictions"):
        measure("xsum", examples, ["a", "b"])


def test_glue_averages_name_their_tasks():
    """A task with two measures counts once, MNLI's halves are one task, WNLI is in it or not."""
    results = {
        "cola": {"matthews": 0.5}, "mrpc": {"f1": 0.9, "accuracy": 0.8}, "mnli": {"accuracy": 0.8},
        "mnli_mm": {"accuracy": 0.82}, "wnli": {"accuracy": 0.56}, "squad": {"f1": 1.0},
    }  # fmt: skip
    average = pytest.approx((0.5 + 0.85 + 0.81 + 0.56) / 4)
    assert measures.glue_average(results) == (average, ["cola", "mnli", "mrpc", "wnli"])
    assert measures.glue_average(results, wnli=False) == (
        pytest.approx((0.5 + 0.85 + 0.81) / 3),
        ["cola", "mnli", "mrpc"],
    )
    assert np.isnan(measures.glue_average({})[0])


@pytest.mark.parametrize(
    ("task", "examples", "answers", "wanted"),
    [
        ("sst2", labelled(None, None), predictions_of("1", "0"),
        ["index\tprediction", "0\t1", "1\t0"]),
        ("rte", labelled(None), predictions_of("entailment"),
        ["index\tprediction", "0\tentailment"]),
        ("stsb", labelled(None), [Prediction("", {}, 5.4)], ["index\tprediction", "0\t5.000"]),
        ("boolq", labelled(None), predictions_of("true"), ['{"idx": 0, "label": "true"}']),
        ("wsc", labelled(None), predictions_of("false"), ['{"idx": 0, "label": "False"}']),
        ("copa", labelled(None), predictions_of("1"), ['{"idx": 0, "label": 1}']),
        ("cb", labelled(None), predictions_of("neutral"), ['{"idx": 0, "label": "neutral"}']),
        ("multirc", [
            Example("t", "q", None, "f", index={"passage": 3, "question": 1,
                "answer": a}) for a in (0, 1)
        ], predictions_of("1", "0"), [
            '{"idx": 3, "passage": {"questions": [{"idx": 1, "answers": [{"idx": 0, "label": 1}, '
            '{"idx": 1, "label": 0}]}]}}',
        ]),
        ("wnut17", [Sentence(("Ann", "won"), ("B-P", "O"), "f")], [("B-P", "B-P")],
        ["Ann B-P B-P", "won O B-P", ""]),
        ("wnut17", [Sentence(("Ann",), None, "f")], [("B-P",)], ["Ann B-P", ""]),
        ("squad2", [Asked("q", "c", (), "f", "k"), Asked("q", "c", (), "f", "l")],
         [Answer("c", 0.5, ()), Answer("c", -0.5, ())], ['{\n "k": "",\n "l": "c"\n}']),
        ("xsum", [Written("s", None, "f")], ["a text"], ["a text"]),
        ("trec6", labelled(None), predictions_of("LOC"), [
            '{"index": 0, "prediction": "LOC", "scores": {"LOC": 0.75, "other": 0.25}}',
        ]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_files_of_servers(tmp_path, task, examples, answers, wanted):
    evaluating.write(tmp_path / "out", catalogue.get(task), examples, answers)
    assert (tmp_path / "out").read_text(encoding="utf8") == "".join(f"{line}\n" for line in wanted)
    evaluating.write(
        tmp_path, catalogue.get(task), examples, answers
    )  # a directory: the server's name for it
    assert (tmp_path / (catalogue.get(task).file or f"{task}.txt")).is_file()


def test_pictures(tmp_path):
    task, examples = catalogue.get("sst2"), labelled("0", "1", "1", "0")
    chances = (("0", 0.95), ("1", 0.65), ("1", 0.62), ("1", 0.61))
    answers = [Prediction(label, {label: chance, "x": 1 - chance}) for label, chance in chances]
    assert plots.confusion(task, examples, answers).tolist() == [[1, 1], [0, 2]]
    confidence, accuracy, sizes, error = plots.calibration(task, examples, answers)
    assert sizes.tolist() == [0] * 6 + [3, 0, 0, 1] and accuracy[6] == pytest.approx(2 / 3)
    assert error == pytest.approx((3 * abs(confidence[6] - 2 / 3) + abs(0.95 - 1)) / 4)
    plots.draw(tmp_path / "a.png", task, examples, answers)
    ner = catalogue.get("ner")
    tags = dataclasses.replace(ner, examples=dataclasses.replace(ner.examples, labels=("O", "B")))
    plots.draw(tmp_path / "b.png", tags, [Sentence(("a", "b"), ("O", "B"), "f")], [("O", "O")])
    assert (tmp_path / "a.png").stat().st_size > 5000 and (tmp_path / "b.png").is_file()
    with pytest.raises(UserError, match="no classes"):
        plots.draw(tmp_path / "c.png", catalogue.get("stsb"), examples, answers)


def test_every_task_has_measures_and_a_kind():
    for name in catalogue.names():
        task = catalogue.get(name)
        assert set(task.metrics) <= set(kind_of(task.examples).measures) and task.paper
