"""`ptm evaluate`: agreement with the log of the run, other texts, refusals."""

import json
import math
import shutil
from pathlib import Path

import pytest

from ptm_jax.runs import evaluations
from ptm_jax.tasks import evaluated
from support import tiny_runs as tiny
from support.tiny_runs import ptm

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def evaluate(capsys):
    def call(*words):
        capsys.readouterr()
        status = ptm("evaluate", *words, "--json")
        out, err = capsys.readouterr()
        assert status == 0, err
        return json.loads(out)

    return call


@pytest.fixture
def refused(one_line):
    return lambda *words: one_line("evaluate", *words).splitlines()[-1]


def heldout(workdir):
    return {x["step"]: x["values"] for x in tiny.metrics(workdir) if x["split"] == "heldout"}


@pytest.mark.full
def test_it_agrees_with_the_log_and_the_baseline_of_the_run(run, evaluate, text, capsys):
    found, logged = evaluate(run), heldout(run)[9]
    assert (found["task"], found["step"], found["split"]) == ("mlm", 9, "heldout") and found[
        "examples"
    ] > 10
    for name, value in logged.items():
        assert abs(found["metrics"][name] - value) < 1e-6
    assert found["metrics"]["mlm_perplexity"] == pytest.approx(math.exp(logged["mlm_nll"]))
    assert evaluate(run, "--task", "mlm") == found
    before = tiny.files(run)
    assert ptm("evaluate", run) == 0
    assert f"mlm_nll            {logged['mlm_nll']:.4f}" in capsys.readouterr().out
    assert tiny.files(run) == before
    assert (
        ptm("train", tiny.FILE, "--data", text, "--workdir", run, "--set", *tiny.SMALL, "--json")
        == 0
    )
    baseline = json.loads(capsys.readouterr().out)["unigram_baseline"]
    assert found["metrics"]["unigram_nll"] == pytest.approx(baseline, abs=1e-12)


@pytest.mark.full
def test_an_earlier_checkpoint_in_rows_of_its_phase(run, evaluate, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    for step in (8, 9):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step_{step:08d}")
    found = evaluate(tmp_path / "run", "--batches", 2)
    assert found["step"] == 4 and found["examples"] == 16
    for name, value in heldout(run)[4].items():
        assert abs(found["metrics"][name] - value) < 1e-6


@pytest.mark.full
def test_another_text_is_read_with_the_tokenizer_of_the_run(run, evaluate, text, tmp_path):
    whole = evaluate(run, "--data", text)
    parts = [evaluate(run, "--split", split) for split in ("train", "heldout")]
    assert whole["split"] == text and whole["examples"] == pytest.approx(
        sum(p["examples"] for p in parts), rel=0.1
    )
    means = [p["metrics"]["mlm_nll"] for p in parts]
    assert min(means) - 0.1 < whole["metrics"]["mlm_nll"] < max(means) + 0.1
    prepared = evaluate(run, "--data", run / "data")
    assert prepared["metrics"] == parts[1]["metrics"]
    (tmp_path / "noise.txt").write_text("Zq xj vw qqq.\n" * 200)
    noise = evaluate(run, "--data", tmp_path / "noise.txt")["metrics"]
    assert (
        noise["mlm_nll"] > whole["metrics"]["mlm_nll"]
        and noise["unigram_nll"] > whole["metrics"]["unigram_nll"]
    )


@pytest.mark.full
def test_a_users_own_objective(evaluate, refused, text, tmp_path):
    """The record names the function; its file defines it."""
    workdir, words = tmp_path / "run", ["recipe.phases=(Phase(steps=3, batch=8, length=16),)"]
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", workdir, "--set", *words) == 0
    found, logged = evaluate(workdir, "--config", tiny.FILE), heldout(workdir)[3]
    assert evaluate(workdir) == found
    assert found["task"] == "watched_mlm" and {k: found["metrics"][k] for k in logged} == logged
    masked = evaluate(workdir, "--task", "mlm")
    assert masked["task"] == "mlm" and masked["metrics"]["mlm_nll"] == pytest.approx(
        logged["mlm_nll"], abs=1e-6
    )
    (tmp_path / "other.py").write_text(
        Path(tiny.FILE).read_text().replace("watched_mlm", "seen_mlm")
    )
    line = refused(workdir, "--config", tmp_path / "other.py")
    assert (
        "the objective of --config is not the one of the run" in line
        and "watched_mlm there" in line
    )


def test_an_evaluation_of_a_users_room_is_one_entry(monkeypatch, capsys):
    def report(request):
        metrics = {"length": len(request.model)}
        document = {"task": request.task, "metrics": metrics, "remarks": {"left out": 2}}
        return evaluations.Report(document=document, head="one line", width=8)

    entry = evaluations.Evaluation(
        name="length",
        reads="run",
        run=report,
        refuses=((("plot",), "{option} is not for {task} of {model}"),),
    )
    monkeypatch.setattr(evaluated, "kinds", lambda: (entry,))
    assert ptm("evaluate", "four", "--task", "length") == 0
    assert capsys.readouterr().out == "one line\n  length   4.0000\n  2 left out\n"
    assert ptm("evaluate", "four", "--task", "length", "--plot", "x.png") == 1
    assert "--plot is not for length of four" in capsys.readouterr().err


@pytest.mark.full
def test_bad_input(run, refused, tmp_path, text):
    assert "is no workdir of a run" in refused(tmp_path / "nowhere")
    assert "tiny has no head for --task lm; it has: mlm" in refused(run, "--task", "lm")
    assert "unknown task 'mln'; there are: lm, mlm, linked. Did you mean 'mlm'?" in refused(
        run, "--task", "mln"
    )
    assert "--batches is -1" in refused(run, "--batches", -1)
    assert "no such data source: nothing.txt" in refused(run, "--data", "nothing.txt")
    spec = ["--tokenizer", "bytebpe", "--vocab", 300, "--out", tmp_path / "other"]
    assert ptm("prepare", "--data", text, *spec) == 0
    assert "was prepared with another tokenizer" in refused(run, "--data", tmp_path / "other")
    for name in ("checkpoints", "data", "tokenizer"):
        shutil.copytree(run, tmp_path / name)
        shutil.rmtree(tmp_path / name / name)
    assert "no usable checkpoint" in refused(tmp_path / "checkpoints")
    assert "has no tokenizer; copy the directory" in refused(tmp_path / "tokenizer")
    shutil.copytree(tmp_path / "other" / "tokenizer", tmp_path / "tokenizer" / "tokenizer")
    assert "is not the one that the run was trained with" in refused(tmp_path / "tokenizer")
    record = json.loads((run / "config.json").read_text())
    record["corpus"]["path"] = str(tmp_path / "gone")
    (tmp_path / "data" / "config.json").write_text(json.dumps(record))
    assert "put it back" in refused(tmp_path / "data")
    (tmp_path / "data" / "config.json").write_text("{")
    assert "is no record of a run" in refused(tmp_path / "data")
