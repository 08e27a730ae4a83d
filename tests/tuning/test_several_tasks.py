"""Saved adapters and several tasks, by command."""

import json
import re
import types

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.cli.runs import tuning
from ptm_jax.core.paths import flatten
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.tasks import evaluating
from ptm_jax.training import loop
from ptm_jax.tuning import multitask, selection
from support import tiny_checkpoint
from support.tiny_checkpoint import written
from support.tiny_models import drawn


def pairs(folder):
    """Pairs whose class depends on the second text."""
    folder.mkdir(exist_ok=True)
    for name, count in (("train", 16), ("dev", 6)):
        rows = [
            f"{n}\tthe film\t{'good' if n % 2 else 'sad'}\t{'' if n % 2 else 'not_'}entailment"
            for n in range(count)
        ]
        (folder / f"{name}.tsv").write_text(
            "\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n"
        )
    return folder


@pytest.fixture
def data(tmp_path):
    return [f"sst2={written(tmp_path / 'sst2', count=16, dev=6)}", f"rte={pairs(tmp_path / 'rte')}"]


def test_a_mixture_is_a_head_for_each_task(published, data):
    """The model of one of its tasks has that task's head and classes, and the encoder of all."""
    found = multitask.read_data(data, ("sst2", "rte"))
    config = multitask.experiment(
        found, published, answer_networks=("rte",), epochs=2, batch=8, kind="annealed"
    )
    assert config.system.recipe.steps == 8 and config.system.examples.kind == "annealed"
    batch = {
        name: np.ones((2, 8), np.int32) for name in ("input_ids", "segment_ids", "token_type_ids")
    }
    model = Pretrained(
        config.system, drawn(config.system, batch=batch), ptm_jax.load(published).tokenizer
    )
    for name, kind in (("sst2", "SequenceHead"), ("rte", "AnswerNetwork")):
        one = multitask.of_task(model, name)
        assert type(one.module.heads["classify"]).__name__ == kind and set(one.module.heads) == {
            "classify"
        }
        assert one.system.examples is config.system.examples.parts[name]
        every, own = flatten(model.params), f"heads_classify_{name}"
        for path, leaf in flatten(one.params).items():
            np.testing.assert_array_equal(leaf, every[path.replace("heads_classify", own)])
    with pytest.raises(ptm_jax.core.errors.UserError, match="unknown task of this model 'mrpc'"):
        multitask.of_task(model, "mrpc")


def test_several_tasks_have_a_mean_and_a_spread(published, data, tmp_path, capsys, monkeypatch):
    """One seed of two tasks, then two, each run's best epoch by the tasks' mean; nothing is
    trained."""
    scores = {"sst2": iter([0, 0, 0.9, 0.1, 0.9, 0.3, 0.5, 0.4, 0.2])}
    scores["rte"] = iter([0, 0, 0.8, 0.6, 0.5, 0.8, 0.7, 0.6, 0.1])

    def train(config, workdir, quiet, watch, callbacks):
        (workdir / "checkpoints").mkdir(parents=True)
        for step in (4, 8):
            watch(step, types.SimpleNamespace(system=config.system, towers={}), {})
        assert (config.system.recipe.steps, config.eval_every) == (12, 4)
        return types.SimpleNamespace(
            step=12, steps=12, stopped=False, heldout={}, resumed_from=0, facts={}
        )

    def evaluate(model, task, source):
        value = next(scores[task.name])
        return evaluating.Evaluation(
            task, source, [0] * 6, [], {"accuracy": value, "f1": 1 - value}, {}
        )

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr(evaluating, "evaluate", evaluate)
    idle = (
        (multitask, "of_task"),
        (selection.loading, "load"),
        (selection, "Pretrained"),
        (selection.saved, "load"),
    )
    for owner, name in idle:
        monkeypatch.setattr(owner, name, lambda *args: None)
    words = [
        "train",
        "--init",
        str(published),
        "--tasks",
        "sst2",
        "rte",
        "--data",
        *data,
        "--epochs",
        "3",
        "--batch",
        "8",
    ]
    words += ["--best", "--workdir"]
    assert main([*words, str(tmp_path / "one"), "--seeds", "0"]) == 1
    assert "--seeds is 0; it must be at least 1" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "one")]) == 0
    shown = capsys.readouterr().out
    table = (
        r"2 tasks, checkpoint of step 12\n.*rte +6 +accuracy 0\.8000, .*all +12 +mean .* 0\.8500"
    )
    assert re.search(table, shown, re.DOTALL)
    assert main([*words, str(tmp_path / "run"), "--seeds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["step"] for run in found["runs"]] == [
        8,
        4,
    ]  # means 0.35, 0.7, 0.55 and 0.6, 0.5, 0.15
    assert found["runs"][1]["tasks"]["rte"]["metrics"] == pytest.approx(
        {"accuracy": 0.7, "f1": 0.3}
    )
    assert found["metrics"]["mean"] == pytest.approx({"mean": 0.65, "sd": 0.1 / 2**0.5})
    accuracies = {name: one["metrics"]["accuracy"] for name, one in found["tasks"].items()}
    assert accuracies["sst2"] == pytest.approx({"mean": 0.7, "sd": 0.4 / 2**0.5})
    assert accuracies["rte"] == pytest.approx({"mean": 0.6, "sd": 0.2 / 2**0.5})
    assert found["best"] == str(tmp_path / "run" / "seed_0")
    assert found["expected_best"] == pytest.approx(
        [0.65, (0.6 + 3 * 0.7) / 4]
    )  # three of the four pairs have the better
    shown = tuning._text(
        [selection.tuned(tmp_path / "run" / f"seed_{seed}") for seed in (0, 1)], False
    )
    assert re.search(
        r"metric +seed_0 +seed_1 +mean ± sd\nmean +0\.7000 +0\.6000 +0\.6500 ± 0\.0707\n", shown
    )
    assert re.search(r"\nbest of 2, .*: mean 0\.7000, .*seed_0.checkpoints.step_0+8\n", shown)
    assert shown.endswith("\nexpected best of n runs: 1: 0.6500, 2: 0.6750")
    one = [
        selection.Tuned(tmp_path / f"seed_{n}", "cola", 1, 9, {"mcc": 0.1 * n}) for n in range(3)
    ]
    table = (
        r"metric +mcc\nseed_0 +0\.0000\nseed_1 +0\.1000\nseed_2 +0\.2000\nmean ± sd "
        r"+0\.1000 ± 0\.1000\nbest of 3"
    )
    assert re.search(table, tuning._text(one, False))


@pytest.mark.full
def test_several_tasks_are_trained_and_measured_one_by_one(published, data, tmp_path, capsys):
    """Over two seeds, each run's best epoch."""
    words = [
        "train",
        "--init",
        str(published),
        "--tasks",
        "sst2",
        "rte",
        "--data",
        *data,
        "--epochs",
        "2",
        "--batch",
        "8",
    ]
    words += [
        "--length",
        "16",
        "--answer-networks",
        "rte",
        "--mixing",
        "equal",
        "--seeds",
        "2",
        "--best",
    ]
    assert main([*words, "--workdir", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["tasks"]) == {"sst2", "rte"} and [run["steps"] for run in found["runs"]] == [
        8,
        8,
    ]
    parts = [part for run in found["runs"] for part in run["tasks"].values()]
    assert len(parts) == 4 and all(
        one["examples"] == 6 and 0 <= one["metrics"]["accuracy"] <= 1 for one in parts
    )
    curves = [
        (tmp_path / "run" / f"seed_{n}" / "task.jsonl").read_text().splitlines() for n in (0, 1)
    ]
    assert [[json.loads(line)["step"] for line in curve] for curve in curves] == [[4], [4]]
    assert main(["evaluate", str(tmp_path / "run" / "seed_1"), "--task", "rte", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == pytest.approx(
        found["runs"][1]["tasks"]["rte"]["metrics"]
    )


@pytest.mark.full
def test_a_saved_adapter_is_used_on_its_base_alone(published, tmp_path, capsys):
    data, run, file = (
        written(tmp_path / "sst2", count=16, dev=8),
        tmp_path / "run",
        tmp_path / "a.safetensors",
    )
    words = [
        "train",
        "--init",
        str(published),
        "--task",
        "sst2",
        "--data",
        str(data),
        "--epochs",
        "2",
        "--batch",
        "8",
    ]
    assert main([*words, "--lr", "3e-2", "--adapt", "houlsby(width=2)", "--workdir", str(run)]) == 0
    assert main(["export", str(run), "--adapter", "--out", str(file)]) == 0
    capsys.readouterr()
    found = []
    for model in ([str(run)], [str(published), "--adapter", str(file)]):
        assert main(["evaluate", *model, "--task", "sst2", "--data", str(data), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["metrics"])
        assert (
            main(["predict", *model, "--task", "classify", "--text", "a good film", "--json"]) == 0
        )
        found.append(json.loads(capsys.readouterr().out)[0]["labels"])
    assert found[0] == pytest.approx(found[2]) and found[1] == pytest.approx(found[3], abs=1e-5)
    other = tiny_checkpoint.write(tmp_path / "other", vocab=50)
    assert (
        main(
            [
                "predict",
                str(other),
                "--adapter",
                str(file),
                "--task",
                "classify",
                "--text",
                "a film",
            ]
        )
        == 1
    )
    assert "is not that model; load it on the one it was trained on" in capsys.readouterr().err
