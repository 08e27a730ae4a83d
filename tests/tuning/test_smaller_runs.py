"""Runs of a study that compress the model of another run: stages, order, rows, and a whole study of
two compressions."""

import csv
import dataclasses
import json
import shutil
import sys

import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.nn.blocks import Stack
from ptm_jax.tuning import finetuning, model_facts
from ptm_jax.tuning.studies import points as study_points
from ptm_jax.tuning.studies import run_rows, smaller_runs, study_page, study_runs
from ptm_jax.tuning.studies.points import Cost
from ptm_jax.tuning.studies.smaller_runs import Compressed, Stage
from ptm_jax.tuning.studies.studies import Axis, Picture, Study
from support import tiny_checkpoint

COST = Cost(
    parameters=1000,
    body=600,
    operations=5e6,
    body_operations=3e6,
    memory=2**30,
    capacity=2**34,
    seconds=0.25,
)


def by(*methods, **fields):
    return Compressed(
        stages=tuple(Stage(method=method, steps=2) for method in methods),
        of={"seed": "0"},
        **fields,
    )


METHODS = {
    "teacher": None,
    "int8": by("int8"),
    "two stages": by("logits(keep=1)", "mt_dnn"),
    "then labels": by("minilm(keep=1)", ""),
    "int8 of two": Compressed(stages=(Stage(method="int8"),), of={"compression": "two stages"}),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smaller")
    labels = {"id2label": {"0": "0", "1": "1"}, "label2id": {"0": 0, "1": 1}}
    model = tiny_checkpoint.write(
        folder / "bert",
        num_hidden_layers=2,
        architectures=["BertForSequenceClassification"],
        **labels,
    )
    tiny_checkpoint.written(folder / "data")
    made = finetuning.experiment(
        "sst2", str(model), ("data",), steps=4, batch=8, length=16, lr=1e-3
    )
    return dataclasses.replace(made, precision="float32", save_every=2)


def study(base, methods=METHODS, seeds=(0,), **fields):
    axes = (Axis(name="compression", values=methods), Axis(name="seed", values=seeds))
    return Study(
        **{
            "name": "s",
            "base": base,
            "task": "sst2",
            "axes": axes,
            "metrics": ("accuracy",),
            **fields,
        }
    )


def points(value):
    return [
        study_points.point(value, name, labels, lambda config: COST)
        for name, labels in study_points.names(value)
    ]


def test_runs_and_what_they_cost(base):
    """Two stages of 2 steps each of the teacher with seed 0; int8 of that student, which trains
    nothing."""
    found = {point.name: point for point in points(study(base, seeds=(0, 1)))}
    assert not [point.refusal for point in found.values() if point.refusal]
    both = found["compression-two-stages_seed-1"]
    assert (both.after, both.steps, both.tokens, both.total("operations")) == (
        "compression-teacher_seed-0", 4, 4 * 8 * 16, 4 * 5e6,
    )  # fmt: skip
    assert [stage.config.seed for stage in both.stages] == [1, 1]
    student, teacher = (
        both.stages[1].config.system.towers[name].encoder.stack for name in ("main", "teacher")
    )
    assert isinstance(student, Stack) and (student.layers, teacher.layers) == (1, 2)
    assert both.value.losses == "1 Logits, then 0.5 task + 0.5 SoftTargets"
    last = found["compression-int8-of-two_seed-1"]
    assert (last.after, last.steps, last.total("seconds"), last.value.losses) == (
        both.name,
        0,
        0,
        "none",
    )
    assert (
        found["compression-teacher_seed-1"].steps == 4
        and not found["compression-teacher_seed-1"].after
    )


def test_what_cannot_be_is_stated(base):
    with pytest.raises(ValueError, match="'a' compresses itself"):
        study(
            base,
            {
                "teacher": None,
                "a": Compressed(stages=(Stage(method="int8"),), of={"compression": "a"}),
            },
        )
    with pytest.raises(ValueError, match="which is no label of compression"):
        study(base, {"a": by("int8")})
    with pytest.raises(ValueError, match="has no stage"):
        Compressed(stages=())
    with pytest.raises(ValueError, match="need a base on a task"):
        study(base, task="")
    refused = {
        name: by(method)
        for name, method in (("pd", "pd"), ("wide", "distilbert(keep=9)"), ("odd", "int9"))
    }
    rows = [point.refusal for point in points(study(base, {"teacher": None, **refused}))[1:]]
    assert (
        "takes a student" in rows[0]
        and "the teacher has 2 layers" in rows[1]
        and "unknown compression" in rows[2]
    )
    absent = study(base, keep=lambda labels: labels["compression"] != "teacher")
    assert "which is no run of the study" in points(absent)[0].refusal
    with pytest.raises(UserError, match="give --tasks DIR, the folder of data"):
        study_runs.check_data(study(base), None)


def test_a_run_waits_for_its_model_and_has_a_row_without_it(base, tmp_path, monkeypatch):
    """Children write rows in the order of the models; where the teacher fails, no other is
    started."""
    monkeypatch.setattr(study_runs, "POLL", 0.02)
    script = (
        "import json, os, pathlib, sys\n"
        "name, row, status, calls = sys.argv[1:]\n"
        "with open(calls, 'a') as file: file.write(name + '\\n')\n"
        "path = pathlib.Path(row); path.parent.mkdir(parents=True)\n"
        "path.write_text(json.dumps({**json.loads(os.environ['ROW_' + name]), 'status': status}))\n"
    )
    found = points(study(base, dict(reversed(METHODS.items()))))
    for status, count in (("done", 5), ("failed: nan", 1)):
        workdir = tmp_path / status[:4]
        workdir.mkdir()
        for point in found:
            monkeypatch.setenv(f"ROW_{point.name}", json.dumps(run_rows.new_row(point)))

        def command(point, workdir=workdir, status=status):
            row = workdir / "runs" / point.name / "row.json"
            return [
                sys.executable,
                "-c",
                script,
                point.name,
                str(row),
                status,
                str(workdir / "calls"),
            ]

        assert study_runs.run_missing(found, workdir, command, at_once=2) == 0
        calls = (workdir / "calls").read_text().split()
        assert len(calls) == count and calls[0] == "compression-teacher_seed-0"
        rows = {point.name: run_rows.row_of(point, workdir)["status"] for point in found}
        if count == 5:
            place = {name: number for number, name in enumerate(calls)}
            assert place["compression-int8-of-two_seed-0"] > place["compression-two-stages_seed-0"]
        else:
            assert (
                "the model of compression-teacher_seed-0, which has none"
                in rows["compression-int8_seed-0"]
            )


def test_methods_and_pictures_of_a_page(base, tmp_path):
    value = study(
        base,
        seeds=(0, 1),
        pictures=(Picture(x="megabytes", y="accuracy", by="compression", log=True),),
    )
    rows = [
        {
            "name": f"{n}",
            "compression": name,
            "seed": seed,
            "accuracy": 0.5 + n / 10,
            "megabytes": 1.0 + n,
            "status": "done",
        }
        for n, (name, seed) in enumerate([("teacher", "0"), ("int8", "0"), ("int8", "1")])
    ]
    page = study_page.write(value, rows, tmp_path, "ptm study s").read_text()
    assert (
        "| then labels | `minilm(keep=1), then fine-tuning` | 1 AttentionMaps + 1 "
        "HeadRelations, then task |" in page
    )
    assert (
        "![accuracy over megabytes](picture_0.png)" in page
        and "| int8 | 2 | 0.6500 ± 0.0707 |" in page
    )
    assert (tmp_path / "picture_0.png").stat().st_size > 5000


def test_losses_of_a_method_that_is_no_distillation():
    def named(method):
        return smaller_runs.losses(Stage(method=method).compression)

    assert (
        named("fastbert") == "KL of each layer's classifier to the last"
        and named("theseus") == "task"
    )


STUDY = """
import dataclasses
from ptm_jax.tuning import finetuning, model_facts
from ptm_jax.tuning.studies.smaller_runs import Compressed, Stage
from ptm_jax.tuning.studies.studies import Axis, Picture, Study

base = finetuning.experiment("sst2", {model!r}, ("data",), steps=4, batch=8, length=16, lr=1e-3)
study = Study(
    name="two",
    base=dataclasses.replace(base, precision="float32", save_every=2),
    task="sst2",
    axes=(
        Axis(name="compression", values={{
            "teacher": None,
            "int8": Compressed(stages=(Stage(method="int8"),)),
            "student": Compressed(stages=(Stage(method="logits(keep=1)", steps=3), Stage(steps=2))),
        }}),
        Axis(name="seed", values=(0,)),
    ),
    metrics=("accuracy", *model_facts.COLUMNS),
    pictures=tuple(
        Picture(x=x, y="accuracy", by="compression") for x in ("megabytes", "times_32")
    ),
)
"""


@pytest.mark.full
def test_a_study_of_two_compressions(base, tmp_path, capsys, monkeypatch):
    """Rows of teacher, int8 and a student in two stages; what is deleted is made again, the same;
    the rest stays."""
    file, workdir, data = tmp_path / "two.py", tmp_path / "work", base.init[: -len("/bert")]
    file.write_text(STUDY.format(model=base.init))

    def here(found, workdir, command, **rest):
        for point in found:
            if run_rows.row_of(point, workdir) is None:
                study_runs.run_after([point], workdir, ("accuracy", *model_facts.COLUMNS), data)
        return 0

    monkeypatch.setattr(study_runs, "run_missing", here)  # in this process, which has compiled
    words = ["study", str(file), "--workdir", str(workdir), "--tasks", data]
    assert main(words) == 0

    def table():
        return {row["compression"]: row for row in csv.DictReader((workdir / "results.csv").open())}

    first = table()
    assert {row["status"] for row in first.values()} == {"done"} and first["student"][
        "layers"
    ] == "1"

    def size(name, column):
        return float(first[name][column])

    assert size("int8", "gflops") == size("teacher", "gflops")
    assert size("student", "megabytes") < size("teacher", "megabytes")  # int8: scales weigh more
    assert size("student", "gflops") < size("teacher", "gflops") and size("student", "steps") == 5
    assert size("student", "parameters") == size("teacher", "parameters") - (1088 + 544 + 64)
    assert (
        "picture_1.png" in (workdir / "study.md").read_text()
        and "two stages" not in capsys.readouterr().err
    )
    folder = workdir / "runs" / "compression-student_seed-0"
    (folder / "row.json").unlink()
    shutil.rmtree(folder / "model")
    shutil.rmtree(folder / "stage_1.run")
    assert main(words) == 0
    again = table()
    measured = {"seconds", "peak_mb"}
    measured |= {name for name in again["student"] if name.startswith(("texts_", "times_"))}

    # A time in the folder's record has more or fewer digits: 10 bytes of 44,000.
    def still(row):
        plain = {name: value for name, value in row.items() if name not in measured}
        return plain | {"megabytes": round(float(row["megabytes"]), 4)}

    assert {name: still(row) for name, row in again.items()} == {
        name: still(row) for name, row in first.items()
    }
