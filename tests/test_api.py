"""What the command line does, from Python."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import ptm_jax
from ptm_jax import api
from ptm_jax.convert.libraries.sentence_folder import Sentence
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.inference.loading import load
from ptm_jax.runs import resolving
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.training import loop
from support import tiny_checkpoint, tiny_models
from support import tiny_runs as tiny

TEXTS = ["the film was good", "a very bad story", "good plot", "sad, long end"] * 6


def test_data_are_files_texts_or_dicts(tmp_path):
    text = tiny.write_text(tmp_path / "a.txt", 3)
    assert api._sources(text, tmp_path) == (text,) and api._sources("pydocs", tmp_path) == (
        "pydocs",
    )
    assert api._sources([text, Path(text)], tmp_path) == (text, text) and api._sources(
        ["pydocs"], tmp_path
    ) == ("pydocs",)
    (made,) = api._sources(["one", "two\nthree"], tmp_path / "new")
    assert [json.loads(line) for line in Path(made).read_text().splitlines()] == [
        {"text": "one"},
        {"text": "two\nthree"},
    ]
    assert api._sources(iter([{"text": "one"}, {"text": "two\nthree"}]), tmp_path / "new") == (
        made,
    )
    assert api._sources(["one", "two"], tmp_path / "new") != (made,)
    (made,) = api._sources([{"text": "a", "label": np.int64(3), "tags": np.arange(2)}], tmp_path)
    assert json.loads(Path(made).read_text()) == {"text": "a", "label": 3, "tags": [0, 1]}
    for wrong, match in (
        ([text, "no file"], "1 files and 1 texts"), ([3], "row 1 of the data is of type int"),
        ([{"text": {1}}], "row 1 of the data is no JSON object"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=match):
            api._sources(wrong, tmp_path)


@pytest.mark.parametrize(
    ("texts", "labels", "task", "read"),
    [
        (["a b", "c"], ["x", "y"], "classify", [("a b", "x"), ("c", "y")]),
        (["a", "c"], np.array([1, 0]), "classify", [("a", "1"), ("c", "0")]),
        (
            [("a", "b"), ("c", "d")],
            [True, False],
            "pairs",
            [("a", "b", "true"), ("c", "d", "false")],
        ),
        (["a", "c"], [0.5, 2.0], "rate", [("a", "0.5"), ("c", "2.0")]),
        ([("a", "b"), ("c", "d")], [0.5, 2.0], "stsb", [("a", "b", "0.5"), ("c", "d", "2.0")]),
        (
            ["a b", "c"],
            [["B-X", "O"], ["O"]],
            "ner",
            [(("a", "b"), ("B-X", "O")), (("c",), ("O",))],
        ),
        ([["a b", "c"]], [["N", "V"]], "pos", [(("a b", "c"), ("N", "V"))]),
    ],
)
def test_labels_choose_the_task_and_its_reader_reads_them(tmp_path, texts, labels, task, read):
    name, (path,) = api._labelled(texts, labels, None, None, tmp_path)
    assert name == task
    names = ("words", "tags") if task in ("ner", "pos") else ("first", "second", "label")
    found = [
        tuple(vars_ for n in names if (vars_ := one._asdict()[n]) is not None)
        for one in catalogue.get(task).examples.read(path)
    ]
    assert found == read


def test_refusals_are_one_line(tmp_path):
    for given, match in (
        ((["a"], []), "1 texts and 0 labels"), ((["a b"], [["N"]]),
        "text 1 has 2 words and 1 tags"),
        ((None, None, "sst2"), "give texts and labels, or the name of a task and its data"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=match):
            api._labelled(*given, *(None,) * (4 - len(given)), tmp_path)
    with pytest.raises(UserError, match="unknown field 'epoch'.*epochs"):
        ptm_jax.train("bert_mini", workdir=tmp_path / "run", epoch=1)
    with pytest.raises(UserError, match="epochs is -1"):
        ptm_jax.train("bert_mini", workdir=tmp_path / "run", epochs=-1)
    with pytest.raises(UserError, match="a loaded model has no text of its own"):
        ptm_jax.evaluate(tiny_models.build("bert"))


def test_train_takes_what_the_command_line_takes(tmp_path, monkeypatch):
    seen = []
    result = loop.Result(tmp_path, 3, 3, {}, 0.0, None, False)
    monkeypatch.setattr(
        loop,
        "train",
        lambda config, folder, **options: seen.append((config, folder, options)) or result,
    )
    monkeypatch.setattr(api, "load", lambda folder: folder)

    def callback(step, split, values):
        return None

    for config in (
        "bert_mini",
        ptm_jax.core.system.Experiment(system=resolving.resolve("bert_mini")),
    ):
        assert (
            ptm_jax.train(
                config, "pydocs", workdir=tmp_path, seed=3, callbacks=[callback], quiet=True
            )
            == tmp_path
        )
    same = resolving.resolve("bert_mini", ["seed=3", "data=('pydocs',)"], experiment=True)
    assert [one[0] for one in seen] == [same, same] and seen[0][2] == {
        "quiet": True,
        "callbacks": [callback],
    }


@pytest.mark.parametrize("name", ["bert", "classifier"])
def test_a_saved_model_is_loaded_again(tmp_path, name):
    model = tiny_models.classifier() if name == "classifier" else tiny_models.build(name)
    model = dataclasses.replace(model, sentence=Sentence(modes=("cls", "max"), normalize=True))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert spec.to_json(again.system) == spec.to_json(dataclasses.replace(model.system, adapt=()))
    assert jax.tree.all(jax.tree.map(np.array_equal, again.params, model.params))
    assert (again.sentence, again.vocab, dict(again.published)) == (
        model.sentence,
        model.vocab,
        dict(model.published),
    )
    assert again.tokenizer.hash == model.tokenizer.hash
    sizes = f"{sum(leaf.size for leaf in jax.tree.leaves(model.params)):,} parameters"
    assert (
        len(repr(again).splitlines()) == 2
        and sizes in repr(again)
        and "vocabulary of 60" in repr(again)
    )
    with pytest.raises(UserError, match="is there already"):
        model.save(tmp_path / "model")


@pytest.mark.full
def test_a_run_from_python_is_the_run_of_the_command_line(tmp_path, capsys, tmp_path_factory):
    text, seen = tiny.write_text(tmp_path / "text.txt"), []
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled"):
        words = [*tiny.SMALL, "metrics=('csv',)"]
        assert not tiny.ptm(
            "train", tiny.FILE, "--data", text, "--workdir", tmp_path / "a", "--set", *words
        )
        config = resolving.resolve(tiny.FILE, tiny.SMALL, experiment=True)

        def stop(step, split, values):
            return seen.append((step, split, values)) or (step == 4 and split == "train")

        ptm_jax.train(config, text, workdir=tmp_path / "b", callbacks=[stop], quiet=True)
        assert [one[0] for one in seen if one[1] == "train"] == [1, 2, 3, 4]
        model = ptm_jax.train(
            config,
            text,
            workdir=tmp_path / "b",
            callbacks=[lambda *line: seen.append(line)],
            quiet=True,
        )
        same = load(tmp_path / "a")
        assert jax.tree.all(jax.tree.map(np.array_equal, model.params, same.params))
        lines = [line for line in loop.logs.read(tmp_path / "a")]
        assert [(step, split) for step, split, _ in seen] == [
            (line["step"], line["split"]) for line in lines
        ]
        assert (tmp_path / "a" / "metrics.csv").is_file() and not (
            tmp_path / "b" / "metrics.csv"
        ).exists()
        found = ptm_jax.evaluate(tmp_path / "b")
        assert found == pytest.approx(lines[-1]["values"])
        # further, over its own words: three epochs, not the recipe's steps
        capsys.readouterr()
        documents = Path(text).read_text().split("\n\n")
        further = resolving.resolve(str(tmp_path / "a"), experiment=True)
        assert further.epochs == 3 and further.init == str(tmp_path / "a")
        assert (
            resolving.resolve(
                str(tmp_path / "a"), ["recipe.phases.0.steps=9"], experiment=True
            ).epochs
            is None
        )
        for _ in range(2):
            ptm_jax.train(
                str(tmp_path / "a"), documents, workdir=tmp_path / "c", epochs=0.25, quiet=True
            )
        record = json.loads((tmp_path / "c" / "config.json").read_text())["config"]
        steps = [phase["steps"] for phase in record["system"]["recipe"]["phases"]]
        assert (
            "0.25 epochs of about" in (line := capsys.readouterr().err)
            and f"{sum(steps)} steps" in line
        )
        assert record["epochs"] == 0.25 and 2 <= sum(steps) <= 12
        assert loop.logs.find(tmp_path / "c", sum(steps), "heldout")["loss"] < found["loss"]
        with pytest.raises(UserError, match="epochs: 0.25 there, 0.5 here"):
            ptm_jax.train(
                str(tmp_path / "a"), documents, workdir=tmp_path / "c", epochs=0.5, quiet=True
            )


@pytest.mark.full
def test_fine_tuning_in_memory(tmp_path, tmp_path_factory):
    folder, labels = tiny_checkpoint.write(tmp_path / "model"), ["glad", "sad", "glad", "sad"] * 6
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled"):
        model = ptm_jax.finetune(
            folder, TEXTS, labels, epochs=30, batch=4, length=16, lr=3e-2, quiet=True
        )
        assert [max(one, key=one.get) for one in model.classify(TEXTS[:4])] == labels[:4]
        assert ptm_jax.evaluate(model, TEXTS, labels) == {"accuracy": 1.0}
        ids = model.ids_of(TEXTS[:1])[0][None]
        out = model(ids)
        assert out.logits.shape == (1, 2) and np.array_equal(out.logits, out.scores["classify"])
