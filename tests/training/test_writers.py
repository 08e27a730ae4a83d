"""Writers of metrics beside metrics.jsonl."""

import csv
import sys
import types

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.training.logs import logs, writers


def write(log, *steps):
    for step in steps:
        log.write(
            step, "train", {"loss": 1 / step, "odd, name": float("nan")}, tokens=step, seconds=step
        )
        log.write(step, "heldout", {"loss": 2 / step}, tokens=step, seconds=step)


def test_csv_is_read_by_the_standard_library_and_resumes_as_metrics_jsonl(tmp_path):
    with logs.RunLog(tmp_path, ("csv",)) as log:
        write(log, 1, 2, 3)
    (tmp_path / "metrics.csv").open("a").write("4,trai")  # a kill
    with logs.RunLog(tmp_path, ("csv",)) as log:
        log.resume(2)
        write(log, 3, 4)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = [
            (int(r["step"]), r["split"], r["metric"], float(r["value"]))
            for r in csv.DictReader(file)
        ]
    lines = [
        (line["step"], line["split"], k, v)
        for line in logs.read(tmp_path)
        for k, v in line["values"].items()
    ]
    assert rows == [line for line in lines if line[-1] is not None] and len(rows) == 8
    (tmp_path / "metrics.csv").open("a").write("5,train,loss\n6,train,loss,0.5\n")
    with pytest.raises(UserError, match=r"metrics\.csv:10 is damaged.*move the file away$"):
        writers.Csv(tmp_path, 6)


def test_weights_and_biases_is_imported_only_when_asked_for(tmp_path, monkeypatch):
    made, logged = [], []
    run = types.SimpleNamespace(
        log=lambda values, step: logged.append((step, values)), finish=lambda: logged.append("end")
    )
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: made.append(options) or run
    fake.__spec__ = types.SimpleNamespace(name="wandb")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):  # a run that resumes goes on in the run of the same id
        with logs.RunLog(tmp_path / "run", ("wandb",), "bert") as log:
            write(log, 1)
    assert logged == 2 * [(1, {"train/loss": 1.0}), (1, {"heldout/loss": 2.0}), "end"]
    assert made[0] == made[1] and made[0]["resume"] == "allow" and made[0]["name"] == "bert"
    monkeypatch.setitem(sys.modules, "wandb", None)
    with logs.RunLog(tmp_path / "other") as log:
        write(log, 1)
    with pytest.raises(
        UserError, match="need the package wandb, which is not installed; pip install wandb"
    ):
        writers.check(("wandb",))


def test_an_unknown_writer_is_refused_with_the_nearest():
    writers.check(("csv", "tensorboard"))
    with pytest.raises(UserError, match="tensorbord.*Did you mean|tensorbord.*tensorboard"):
        writers.check(("tensorbord",))
