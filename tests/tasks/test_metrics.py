"""Measures by hand, GLUE's averages, the servers' files, pictures, and how a run's checkpoint is chosen."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.labelled import Example
from ptm_jax.data.questions import Asked
from ptm_jax.data.tables import Source
from ptm_jax.data.tagged import Sentence
from ptm_jax.data.targets import Written
from ptm_jax.tasks import evaluating, metrics, plots, selection, servers
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.kinds import Said
from ptm_jax.tasks.squad import Answer


def labelled(*labels, **fields):
    return [Example("x", None, label, f"f:{i}", index=i, **fields) for i, label in enumerate(labels)]


def said(*labels):
    return [Said(label, {label: 0.75, "other": 0.25}) for label in labels]


def measure(task, examples, answers):
    task = catalogue.get(task)
    return metrics.measured(task.metrics, examples, answers, task)


def test_classes():
    found = measure("mrpc", labelled("1", "1", "0", "0"), said("1", "0", "1", "0"))
    assert found == {"f1": 0.5, "accuracy": 0.5} and next(iter(found)) == "f1"
    gold, told = "1 1 1 0 0 1".split(), "1 0 1 0 1 1".split()
    a, b, c, d = 3, 1, 1, 1  # both right, missed, right no, wrong yes
    wanted = (a * c - d * b) / np.sqrt((a + d) * (a + b) * (c + d) * (c + b))
    assert measure("cola", labelled(*gold), said(*told))["matthews"] == pytest.approx(wanted)
    found = measure("scicite", labelled("method", "result"), said("method", "method"))
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert measure("trec6", labelled("LOC", "NUM"), said("LOC", "HUM")) == {"accuracy": 0.5, "error": 0.5}


def test_numbers():
    numbers = [Said("", {}, value) for value in (1.0, 2.0, 4.0)]
    found = measure("stsb", labelled("0.5", "1.0", "5.0"), numbers)
    assert found == {"pearson": pytest.approx(np.corrcoef([0.5, 1, 5], [1, 2, 4])[0, 1]), "spearman": pytest.approx(1)}
    assert measure("stsb", labelled("1", "2"), [Said("", {}, 3.0)] * 2) == {"pearson": 0.0, "spearman": 0.0}


def test_groups():
    both = [Example("t", "q", label, "f", group=group) for label, group in (("1", "a"), ("0", "a"), ("1", "b"))]
    found = measure("multirc", both, said("1", "0", "0"))
    assert found == {"f1": pytest.approx(2 / 3), "exact": 0.5}
    entities = [("Ann", "a"), ("Bob", "a"), ("New York", "b")]
    examples = [
        Example("t", "q", "0", "f", group=group, facts={"entity": e, "answers": ["Bob"] if group == "a" else ["York"]})
        for e, group in entities
    ]
    told = [Said("0", {"1": score}) for score in (0.2, 0.4, 0.1)]
    assert measure("record", examples, told) == {"f1": pytest.approx((1 + 2 / 3) / 2), "exact": 0.5}
    task = catalogue.get("record")
    assert list(servers.lines(task, examples, told)) == ['{"idx": "a", "label": "Bob"}', '{"idx": "b", "label": "New York"}']


def test_written_texts():
    examples = [Written("s", "the cat sat on the mat", "f")]
    assert measure("xsum", examples, ["the cat sat on the mat"])["bleu"] == pytest.approx(1)
    with pytest.raises(UserError, match="1 examples and 2 predictions"):
        measure("xsum", examples, ["a", "b"])


def test_glue_averages_name_their_tasks():
    """A task with two measures counts once, MNLI's halves are one task, WNLI is in it or not."""
    results = {
        "cola": {"matthews": 0.5}, "mrpc": {"f1": 0.9, "accuracy": 0.8}, "mnli": {"accuracy": 0.8},
        "mnli_mm": {"accuracy": 0.82}, "wnli": {"accuracy": 0.56}, "squad": {"f1": 1.0},
    }  # fmt: skip
    assert metrics.glue_average(results) == (pytest.approx((0.5 + 0.85 + 0.81 + 0.56) / 4), ["cola", "mnli", "mrpc", "wnli"])
    assert metrics.glue_average(results, wnli=False) == (pytest.approx((0.5 + 0.85 + 0.81) / 3), ["cola", "mnli", "mrpc"])
    assert np.isnan(metrics.glue_average({})[0])


@pytest.mark.parametrize(
    ("task", "examples", "answers", "wanted"),
    [
        ("sst2", labelled(None, None), said("1", "0"), ["index\tprediction", "0\t1", "1\t0"]),
        ("rte", labelled(None), said("entailment"), ["index\tprediction", "0\tentailment"]),
        ("stsb", labelled(None), [Said("", {}, 5.4)], ["index\tprediction", "0\t5.000"]),
        ("boolq", labelled(None), said("true"), ['{"idx": 0, "label": "true"}']),
        ("wsc", labelled(None), said("false"), ['{"idx": 0, "label": "False"}']),
        ("copa", labelled(None), said("1"), ['{"idx": 0, "label": 1}']),
        ("cb", labelled(None), said("neutral"), ['{"idx": 0, "label": "neutral"}']),
        ("multirc", [
            Example("t", "q", None, "f", index={"passage": 3, "question": 1, "answer": a}) for a in (0, 1)
        ], said("1", "0"), [
            '{"idx": 3, "passage": {"questions": [{"idx": 1, "answers": [{"idx": 0, "label": 1}, '
            '{"idx": 1, "label": 0}]}]}}',
        ]),
        ("wnut17", [Sentence(("Ann", "won"), ("B-P", "O"), "f")], [("B-P", "B-P")], ["Ann B-P B-P", "won O B-P", ""]),
        ("wnut17", [Sentence(("Ann",), None, "f")], [("B-P",)], ["Ann B-P", ""]),
        ("squad2", [Asked("q", "c", (), "f", "k"), Asked("q", "c", (), "f", "l")],
         [Answer("c", 0.5, ()), Answer("c", -0.5, ())], ['{\n "k": "",\n "l": "c"\n}']),
        ("xsum", [Written("s", None, "f")], ["a text"], ["a text"]),
        ("trec6", labelled(None), said("LOC"), [
            '{"index": 0, "prediction": "LOC", "scores": {"LOC": 0.75, "other": 0.25}}',
        ]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_files_of_servers(tmp_path, task, examples, answers, wanted):
    servers.write(tmp_path / "out", catalogue.get(task), examples, answers)
    assert (tmp_path / "out").read_text(encoding="utf8") == "".join(f"{line}\n" for line in wanted)
    servers.write(tmp_path, catalogue.get(task), examples, answers)  # a directory: the server's name for it
    assert (tmp_path / (catalogue.get(task).file or f"{task}.txt")).is_file()


def test_pictures(tmp_path):
    task, examples = catalogue.get("sst2"), labelled("0", "1", "1", "0")
    chances = (("0", 0.95), ("1", 0.65), ("1", 0.62), ("1", 0.61))
    answers = [Said(label, {label: chance, "x": 1 - chance}) for label, chance in chances]
    assert plots.confusion(task, examples, answers).tolist() == [[1, 1], [0, 2]]
    confidence, accuracy, sizes, error = plots.calibration(examples, answers)
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
    from ptm_jax.tasks.kinds import kind_of

    for name in catalogue.names():
        task = catalogue.get(name)
        assert set(task.metrics) <= set(metrics.MEASURES) and kind_of(task.examples) and task.paper


class Trainer:
    """Stands for `train.loop.train`: evaluates at every epoch, and stops where it is told to."""

    def __init__(self, epochs):
        self.epochs, self.calls = epochs, 0

    def __call__(self, config, workdir, quiet, watch):
        self.calls += 1
        every = config.eval_every or 2
        for step in range(every, 2 * self.epochs + 1, every):
            (workdir / "checkpoints" / f"step_{step:08d}").mkdir(parents=True, exist_ok=True)
            last = step == 2 * self.epochs
            if watch is not None and not last and watch(step, SimpleNamespace(system=config.system, towers={}), {}):
                return SimpleNamespace(step=step, steps=2 * self.epochs, stopped=True)
        return SimpleNamespace(step=step, steps=step, stopped=False)


@pytest.fixture
def judged(monkeypatch):
    """`evaluating.evaluate` that gives these accuracies one after the other."""

    def judge(*scores):
        left = iter(scores)
        made = lambda model, task, source: evaluating.Evaluation(task, source, [1] * 5, [], {"accuracy": next(left)}, {})
        monkeypatch.setattr(evaluating, "evaluate", made)

    monkeypatch.setattr(selection, "Pretrained", lambda *args: None)
    monkeypatch.setattr(selection.tokenizers, "load", lambda path: None)
    monkeypatch.setattr(selection.finetuning, "per_epoch", lambda config: 2)
    monkeypatch.setattr(evaluating, "heldout_of", lambda *args: Source("held"))
    return judge


@dataclasses.dataclass(frozen=True)
class Config:
    system: object
    data: tuple = ()
    eval_every: int = 0
    save_every: int = 0
    keep: int = 2


@dataclasses.dataclass(frozen=True)
class FakeSystem:
    towers: object
    examples: object
    recipe: object
    adapt: tuple = ()
    compress: tuple = ()


def finetune(workdir, trainer, every=0, **chosen):
    examples = SimpleNamespace(examples=lambda source: [1] * 5)
    system = FakeSystem(towers={}, examples=examples, recipe=SimpleNamespace(steps=2 * trainer.epochs))
    words = {"train": trainer, "load": lambda path: None, "selection": selection.Selection(**chosen)}
    return selection.finetune(Config(system, eval_every=every), workdir, "sst2", **words)


def test_the_last_checkpoint_or_the_best(tmp_path, judged):
    judged(0.7)
    last = finetune(tmp_path / "last", Trainer(3))
    assert (last.step, last.main, last.ended) == (6, 0.7, "done")
    judged(0.6, 0.9, 0.8, 0.7)
    best = finetune(tmp_path / "best", Trainer(4), best=True)
    assert (best.step, best.main, best.examples) == (4, 0.9, 5) and best.checkpoint.is_dir()
    assert selection.best_checkpoint(tmp_path / "best") == best.checkpoint
    there = sorted(path.name for path in (tmp_path / "best" / "checkpoints").iterdir())
    assert there == ["step_00000004", "step_00000006", "step_00000008"]  # that of the first epoch is gone
    assert json.loads((tmp_path / "best" / "task.json").read_text())["metrics"] == {"accuracy": 0.9}
    judged(0.5, 0.6, 0.8, 0.7)  # an epoch has two steps: measured twice in each
    often = finetune(tmp_path / "often", Trainer(2), every=1, best=True)
    assert (often.step, often.main) == (3, 0.8)
    assert [json.loads(line)["step"] for line in (tmp_path / "often" / "task.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_a_run_ends_early_and_is_then_only_read(tmp_path, judged):
    judged(0.6, 0.9, 0.8, 0.7, 0.95)
    trainer = Trainer(9)
    found = finetune(tmp_path, trainer, patience=2)
    assert (found.step, found.main, found.ended) == (4, 0.9, "early")
    again = finetune(tmp_path, trainer, patience=2)
    assert again.metrics == found.metrics and trainer.calls == 1
    with pytest.raises(ValueError, match="at least 1"):
        selection.Selection(patience=-1)


def test_seeds_have_a_mean_and_a_spread():
    runs = [selection.Tuned(None, "sst2", 1, 5, {"accuracy": value}) for value in (0.8, 0.9, 0.85)]
    assert selection.spread(runs) == {"accuracy": (pytest.approx(0.85), pytest.approx(0.05))}
    assert selection.spread(runs[:1])["accuracy"][1] == 0.0
