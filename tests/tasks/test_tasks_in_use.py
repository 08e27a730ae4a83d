"""Every kind of task from the command line or on a small model: heads, predictions, files;
refusals."""

import contextlib
import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core import slots, spec
from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.classifying import Prediction
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.labelled import Example, Labelled
from ptm_jax.tasks.formats.questions import Asked, Questions
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tuning import finetuning
from support import tiny_checkpoint
from support.tiny_checkpoint import WORDS


def conll(folder, count=48, seed=0):
    """Words whose tag depends on their spelling."""
    draw = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for name, size in (("train", count), ("dev", 9)):
        lines = []
        for _ in range(size):
            for word in draw.choice(WORDS, draw.integers(2, 6)):
                lines.append(f"{word}\t{'B-film' if word in ('film', 'plot', 'story') else 'O'}")
            lines.append("")
        (folder / f"{name}.conll").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def tagger(published, tmp_path_factory):
    """A workdir of a tagging run, its best epoch chosen, and what it printed."""
    folder = tmp_path_factory.mktemp("tagger")
    words = [
        "train",
        "--init",
        str(published),
        "--task",
        "ner",
        "--data",
        str(conll(folder / "data")),
    ]
    words += [
        "--epochs",
        "3",
        "--batch",
        "16",
        "--length",
        "16",
        "--lr",
        "2e-2",
        "--best",
        "--workdir",
        str(folder / "run"),
    ]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*words, "--json"]) == 0
    return folder, words, json.loads(out.getvalue())


@pytest.mark.full
def test_a_tagger_is_trained_and_its_best_epoch_chosen(tagger):
    folder, _, found = tagger
    assert found["task"] == "ner" and found["steps"] == 9 and found["examples"] == 9
    curve = [json.loads(line) for line in (folder / "run" / "task.jsonl").read_text().splitlines()]
    assert [line["step"] for line in curve] == [3, 6]
    assert (
        found["metrics"]["f1"] >= max(line["metrics"]["f1"] for line in curve)
        and found["metrics"]["accuracy"] > 0.5
    )
    assert Path(found["checkpoint"]).is_dir() and "nll" in " ".join(found["heldout"])
    logged = [
        json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["values"]["loss"] for line in logged if line["split"] == "heldout"]
    assert losses[-1] < losses[0]


@pytest.mark.full
def test_it_is_evaluated_and_predicts(tagger, tmp_path, capsys):
    folder, _, found = tagger
    words = [
        "evaluate",
        str(folder / "run"),
        "--task",
        "ner",
        "--predictions",
        str(tmp_path / "out.conll"),
    ]
    assert main([*words, "--plot", str(tmp_path / "out.png"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"task", "examples", "metrics"} <= document.keys()
    assert document["metrics"] == pytest.approx(found["metrics"])
    lines = (tmp_path / "out.conll").read_text().split("\n\n")
    assert (
        len(lines) == 10
        and len(lines[0].split("\n")[0].split()) == 3
        and (tmp_path / "out.png").is_file()
    )
    assert (
        main(
            [
                "predict",
                str(folder / "run"),
                "--task",
                "tag",
                "--text",
                "the film is good",
                "--json",
            ]
        )
        == 0
    )
    (found,) = json.loads(capsys.readouterr().out)
    assert [one["word"] for one in found["tags"]] == ["the", "film", "is", "good"]
    bare = tmp_path / "test.txt"
    bare.write_text("the\nfilm\n\nsad\n")
    assert main(["predict", str(folder / "run"), "--task", "ner", "--input", str(bare)]) == 0
    assert [len(line.split()) for line in capsys.readouterr().out.split("\n")] == [2, 2, 0, 2, 0, 0]


TRAIN = "train", "--init", "PUB", "--workdir", "W"


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["evaluate", "RUN", "--task", "sst2", "--data", "D"],
            "has no head 'classify', which the task sst2 needs",
        ),
        (
            ["evaluate", "RUN", "--task", "nerr"],
            "unknown task 'nerr'.*Did you mean 'ner'.*ptm list --tasks",
        ),
        (["evaluate", "RUN", "--plot", "x.png"], "need a downstream task"),
        (["predict", "RUN", "--task", "ner"], "give it as --input"),
        (["predict", "RUN", "--task", "qa", "--text", "who"], "qa needs a question"),
        (
            ["predict", "RUN", "--task", "tags", "--text", "x"],
            "unknown task 'tags'.*Did you mean 'tag'",
        ),
        (["predict", "RUN", "--task", "qa", "--text", "x", "--pair", "y"], "has no head 'span'"),
        (["train", "bert_tiny", "--seeds", "3", "--workdir", "W"], "--seeds needs --task"),
        (["train", "--workdir", "W"], "give a system or a config"),
        (["train", "--task", "sst2", "--workdir", "W"], "needs the model"),
        (["train", "bert_tiny", "--task", "sst2", "--workdir", "W"], "needs the task's data"),
        (
            ["train", "bert_tiny", "--task", "sst2", "--data", "D", "--workdir", "W"],
            "needs a trained model .--init., with a head for it; leave out the system",
        ),
        ([*TRAIN, "--task", "sst3", "--data", "D"], "unknown task 'sst3'.*Did you mean 'sst"),
        ([*TRAIN, "--task", "sst2", "--data", "D", "--tagger", "crf"], "crf is for"),
        ([*TRAIN, "--task", "sst2", "--data", "D", "--mixing", "root"], "--mixing needs --tasks"),
        (
            [*TRAIN, "--tasks", "sst2", "rte", "--data", "sst2=D"],
            "there are no data for rte; give rte=PATH",
        ),
        ([*TRAIN, "--tasks", "sst2", "--data", "D"], "are name=PATH for each of sst2"),
        (
            [*TRAIN, "--tasks", "sst2", "--data", "sst2=D", "--tagger", "crf"],
            "--tagger needs one --task",
        ),
        (
            [*TRAIN, "--tasks", "sst2", "--data", "sst2=D", "--epochs", "1.5"],
            "must be a whole number",
        ),
        (
            [*TRAIN, "--tasks", "sst2", "--data", "sst2=D", "--epochs", "nan"],
            "must be a whole number",
        ),
        (
            [*TRAIN, "--task", "sst2", "--data", "D", "--epochs", "nan"],
            "epochs is nan, .*they must be positive",
        ),
        (
            [*TRAIN, "--task", "sst2", "--data", "D", "--epochs", "inf"],
            "epochs is inf, .*they must be positive",
        ),
        (
            [*TRAIN, "--task", "sst2", "--data", "ONE"],
            "one.tsv cannot be divided.*give more examples, or two files",
        ),
        (
            [*TRAIN, "--task", "tag", "--data", "D"],
            "unknown task 'tag'; `ptm list --tasks` shows the",
        ),
        (
            ["predict", "PUB", "--task", "tag", "--text", "x"],
            "does not tag words: it has no head 'tag'; fine-tune it",
        ),
        (
            [*TRAIN, "--tasks", "sst2", "--task", "rte", "--data", "sst2=D"],
            "leave out the system and --task",
        ),
        ([*TRAIN, "--tasks", "ner", "--data", "ner=D"], "ner is no task on whole texts"),
    ],
)
def test_refusals(tagger, published, tmp_path, capsys, words, message):
    (tmp_path / "d.tsv").write_text("text\tlabel\n" + "x\t1\ny\t0\n" * 5)
    (tmp_path / "one.tsv").write_text("text\tlabel\nx\t1\n")
    names = {
        "RUN": tagger[0] / "run",
        "PUB": published,
        "D": tmp_path / "d.tsv",
        "W": tmp_path / "w",
    }
    names["ONE"] = tmp_path / "one.tsv"
    assert (
        main(["=".join(str(names.get(part, part)) for part in word.split("=")) for word in words])
        == 1
    )
    assert re.search(message, capsys.readouterr().err)


def test_a_tuned_model_goes_on_with_what_it_was_tuned_to_read(published, tmp_path):
    """STILTs on a sentence encoder: the head of the next task takes the mean of the states, as that
    of the one before."""
    system = finetuning.with_head(str(published), Labelled(labels=("0", "1", "2")))
    tower = system.towers["main"]
    head = dataclasses.replace(tower.heads["classify"], summary=Summary("none", at="mean"))
    system = dataclasses.replace(
        system, towers={"main": dataclasses.replace(tower, heads={"classify": head})}
    )
    record = {"config": {"system": spec.to_json(system)}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    found = finetuning.with_head(str(tmp_path), Labelled()).towers["main"].heads["classify"]
    assert found.summary == head.summary and found.classes == 2


def test_choices_are_scored_together(models_of, tmp_path):
    task = catalogue.get("copa")
    row = dict(
        premise="the film", question="cause", choice1="a good story", choice2="sad", label=0, idx=0
    )
    (tmp_path / "val.jsonl").write_text((json.dumps(row) + "\n") * 3)
    (model,) = models_of(task.examples)
    found = evaluating.evaluate(model, task, Source(str(tmp_path / "val.jsonl")))
    assert len(found.predictions) == 3 and found.predictions[0] == found.predictions[1]
    assert set(found.metrics) == {"accuracy"}
    assert sum(found.predictions[0].scores.values()) == pytest.approx(1)


def test_a_long_text_is_answered_as_each_of_its_windows(models_of):
    """The best span of a text in windows is one of the text; a short text's is the best of all its
    spans."""
    (model,) = models_of(Questions(stride=4))
    context = "a good film is funny and the plot was not bad but the end was very long and sad"
    long, short = model.answer(
        ["is the story good", "is the story good"], [context, "the film is bad"]
    )
    assert long.text in context and short.text in "the film is bad"
    tokenizer = model.tokenizer
    ids, types = tokenizer.frame("is the story good", "the film is bad")
    start, end = model(ids[None], np.ones_like(ids)[None], types[None]).scores["span"]
    words = len(tokenizer.encode("is the story good")) + 2
    every = {
        (float(start[0, a] + end[0, b]), a, b)
        for a in range(words, len(ids) - 1)
        for b in range(a, len(ids) - 1)
    }
    score, a, b = max(every)
    assert short.best[0].score == pytest.approx(score, abs=1e-5)
    assert short.null == pytest.approx(float(start[0, 0] + end[0, 0]) - score, abs=1e-5)
    examples = [Asked("is the story good", context, (("film", 7),), "f", "1")]
    assert set(evaluating.measured(catalogue.get("squad"), examples, [long])) == {"f1", "exact"}


def test_only_a_model_of_questions_without_answers_is_silent(models_of):
    """An answer is empty where the score of no answer is above the best span's, if the model learnt
    from such questions. A model of others, or of an unknown task, answers always."""
    (model,) = models_of(Questions(unanswered=True))
    contexts = ["the film is bad", "a good story", "not very long and sad", "the plot was funny"]
    silent = {}
    for examples in (Questions(unanswered=True), Questions(), slots.Examples()):
        system = dataclasses.replace(model.system, examples=examples)
        answers = dataclasses.replace(model, system=system).answer(["is it good"] * 4, contexts)
        silent[examples] = [answer.text == "" for answer in answers]
    assert {answer.null > 0 for answer in answers} == {True, False}
    nothing = [answer.null > 0 for answer in answers]
    assert list(silent.values()) == [nothing, [False] * 4, [False] * 4]
    with pytest.raises(UserError, match="text 2: the question or the text is empty"):
        model.answer(["is it good", " "], contexts[:2])


def test_classes_come_in_the_models_order(models_of, tmp_path):
    task = catalogue.get("rte")
    (tmp_path / "a.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n0\tthe film\ta film\tentailment\n"
    )
    (model,) = models_of(Labelled())
    model = dataclasses.replace(
        model, system=dataclasses.replace(model.system, examples=slots.Examples())
    )
    plain = evaluating.evaluate(model, task, Source(str(tmp_path / "a.tsv"))).predictions[0].scores
    names = {"0": "NOT_ENTAILMENT", "1": "ENTAILMENT"}
    model = dataclasses.replace(model, published=type(model.published)({"id2label": names}))
    turned = evaluating.evaluate(model, task, Source(str(tmp_path / "a.tsv")))
    assert turned.predictions[0].scores["entailment"] == pytest.approx(plain["not_entailment"])
    assert turned.task.examples.labels == ("not_entailment", "entailment")
    with pytest.raises(UserError, match="has 2 classes and sst5 has 5"):
        evaluating.task_for(model, catalogue.get("sst5"))


def test_long_texts_are_counted(models_of, tmp_path):
    (tmp_path / "a.tsv").write_text(f"sentence\tlabel\n{'the film ' * 5000}\t1\nשלום 😀\t0\n")
    (model,) = models_of(Labelled())
    found = evaluating.evaluate(model, catalogue.get("sst2"), Source(str(tmp_path / "a.tsv")))
    assert found.remarks == {"texts are longer than 64 tokens; their ends are cut off": 1}
    assert [type(one) for one in found.predictions] == [Prediction, Prediction] and isinstance(
        found.examples[0], Example
    )


@pytest.mark.full
def test_a_crf_over_two_seeds_is_never_unlawful(published, tmp_path, capsys):
    """Two runs of a CRF tagger beside each other: mean and spread, and no I-film after O."""
    data = conll(tmp_path / "data", 32)
    with (data / "train.conll").open("a") as file:
        file.write("film B-film\nplot I-film\n")
    words = [
        "train",
        "--init",
        str(published),
        "--task",
        "ner",
        "--data",
        str(data),
        "--tagger",
        "crf",
        "--seeds",
        "2",
    ]
    words += [
        "--epochs",
        "1",
        "--batch",
        "16",
        "--length",
        "16",
        "--workdir",
        str(tmp_path / "run"),
        "--json",
    ]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["metrics"].keys() == {"f1", "precision", "recall", "accuracy"}
        and len(found["runs"]) == 2
    )
    values = [run["metrics"]["accuracy"] for run in found["runs"]]
    mean, spread = np.mean(values), np.std(values, ddof=1)
    assert found["metrics"]["accuracy"] == {
        "mean": pytest.approx(mean),
        "sd": pytest.approx(spread),
    }
    model = ptm_jax.load(tmp_path / "run" / "seed_1")
    for tagged in model.tag(
        [" ".join(np.random.default_rng(i).permutation(WORDS)) for i in range(5)]
    ):
        tags = ["O", *(tag for _, tag in tagged)]
        assert all(
            b != "I-film" or a in ("B-film", "I-film") for a, b in zip(tags, tags[1:], strict=False)
        )


@pytest.mark.full
def test_a_writer_learns_to_copy(tmp_path, capsys):
    """A small BART, its decoder's start and special tokens from its own files, is fine-tuned,
    measured and asked."""
    bart = tiny_checkpoint.write(
        tmp_path / "bart", vocab=300, kind="bytebpe", specials="roberta", model_type="bart",
            pad_token_id=1, d_model=16,
        architectures=["BartForConditionalGeneration"], decoder_start_token_id=2, encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )  # fmt: skip
    (tmp_path / "all.jsonl").write_text(
        "".join(json.dumps({"source": w, "target": w}) + "\n" for w in WORDS * 4)
    )
    words = [
        "train",
        "--init",
        str(bart),
        "--task",
        "rewrite",
        "--data",
        str(tmp_path / "all.jsonl"),
        "--json",
    ]
    words += [
        "--epochs",
        "4",
        "--batch",
        "16",
        "--length",
        "16",
        "--lr",
        "1e-2",
        "--workdir",
        str(tmp_path / "run"),
    ]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["metrics"]) == {"bleu", "chrf"}
    assert (
        found["heldout"]["nll"] < np.log(ptm_jax.load(bart).vocab.size) - 1.5
    )  # of a model that knows nothing
    assert ptm_jax.load(tmp_path / "run").system.examples.start == 2
    assert (
        main(
            [
                "evaluate",
                str(tmp_path / "run"),
                "--task",
                "rewrite",
                "--predictions",
                str(tmp_path / "out.txt"),
            ]
        )
        == 0
    )
    assert len((tmp_path / "out.txt").read_text().splitlines()) == found["examples"]
