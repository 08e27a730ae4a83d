"""A study's runs, budgets, rows and page; its children are small scripts, since a training is not
what is tested here."""

import csv
import dataclasses
import json
import math
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Linear, WarmupStableDecay
from ptm_jax.core.system import Experiment
from ptm_jax.corruptions.masking.token import LinearRate, ScheduledMasking
from ptm_jax.systems import get
from ptm_jax.tuning.scaling.scaling_laws import Power
from ptm_jax.tuning.studies import (
    planned_runs,
    run_kinds,
    run_rows,
    studies,
    study_page,
    study_runs,
)
from ptm_jax.tuning.studies import points as study_points
from ptm_jax.tuning.studies.points import Cost
from ptm_jax.tuning.studies.studies import Axis, Budget, Law, Published, Study, Transfer

BASE = Experiment(system=get("bert_tiny"))
VOCAB = BASE.system.corruption.vocab
COST = Cost(
    parameters=1000,
    body=600,
    operations=5e6,
    body_operations=3e6,
    memory=2**30,
    capacity=2**34,
    seconds=0.25,
)


def study(**fields):
    given = {
        "name": "s",
        "base": BASE,
        "axes": (Axis(name="lr", values=(1e-3, 3e-3)), Axis(name="seed", values=(0, 1))),
    }
    return Study(**{**given, **fields})


def points(value, costs=lambda config: COST):
    return [
        study_points.point(value, name, labels, costs) for name, labels in study_points.names(value)
    ]


def test_runs_are_the_product_of_the_axes():
    found = points(study())
    assert [point.name for point in found] == [
        f"lr-{lr}_seed-{seed}" for lr in ("0.001", "0.003") for seed in (0, 1)
    ]
    assert [(p.config.system.recipe.lr, p.config.seed) for p in found] == [
        (a, b) for a in (1e-3, 3e-3) for b in (0, 1)
    ]
    kept = study(keep=lambda labels: labels["seed"] == "1" or labels["lr"] == "0.001")
    assert [name for name, _ in study_points.names(kept)] == [
        "lr-0.001_seed-0",
        "lr-0.001_seed-1",
        "lr-0.003_seed-1",
    ]


def test_a_system_takes_recipe_and_tokenizer_of_the_base():
    found = points(study(axes=(Axis(name="system", values=("roberta_mini", "bert_mini")),)))
    assert [point.config.system.name for point in found] == ["roberta_mini", "bert_mini"]
    for point in found:
        assert (
            point.config.system.recipe == BASE.system.recipe
            and point.config.system.tokenizer == BASE.system.tokenizer
        )
        assert point.config.system.towers == get(point.labels["system"]).towers


def test_budgets_give_the_steps():
    """Of B L tokens, of 5e6 operations and of a quarter of a second a step; warm-up keeps its
    share."""
    phase = BASE.system.recipe.phases[0]
    for kind, amount, step in (
        ("tokens", 1e5, phase.batch * phase.length), ("operations", 1e9, 5e6),
        ("seconds", 60.0, 0.25),
    ):  # fmt: skip
        (point, *_) = points(study(budget=Budget(kind=kind, amount=amount)))
        assert point.steps == round(amount / step)
        assert point.config.system.recipe.schedule == Linear(warmup=max(1, round(point.steps / 10)))
    by_axis = study(
        axes=(Axis(name="budget", values=(1e9, 2e9)),), budget=Budget(kind="operations", amount=1.0)
    )
    assert [point.steps for point in points(by_axis)] == [200, 400]


def test_the_decay_and_the_masks_take_their_shares_of_the_steps():
    """Of 500 steps 200 are the decay and 250 those in which the rate of masks falls."""
    masking = ScheduledMasking(vocab=VOCAB, training_rate=LinearRate(steps=250))
    recipe = dataclasses.replace(
        BASE.system.recipe, schedule=WarmupStableDecay(warmup=50, decay=200)
    )
    system = dataclasses.replace(BASE.system, corruption=masking, recipe=recipe)
    base = dataclasses.replace(BASE, system=system)
    (point, *_) = points(study(base=base, budget=Budget(kind="operations", amount=5e6 * 1000)))
    made = point.config.system
    assert made.recipe.steps == 1000
    assert made.recipe.schedule == WarmupStableDecay(warmup=100, decay=400)
    assert made.corruption.training_rate == LinearRate(steps=500)


def test_the_arms_of_the_modern_study_change_what_they_name():
    """Each arm is BERT but for its own parts, and "all but" has the parts of the others."""
    value = studies.load("modern")
    systems = {
        point.labels["way"]: point.config.system
        for point in points(value)
        if not point.refusal and point.labels["seed"] == "0"
    }

    def parts(system):
        return {
            "block": type(system.towers["main"].encoder.stack).__name__,
            "WSD": type(system.recipe.schedule).__name__,
            "Muon": type(system.recipe.optimizer).__name__,
            "masks": vars(system.corruption).get("training_rate"),
            "objective": type(system.objective).__name__,
        }

    plain = parts(systems["BERT"])
    assert [*systems] == [*value.axes[1].labelled] and plain["masks"] is None
    for name in ("block", "WSD", "Muon", "masks"):
        changed = {part for part, kind in parts(systems[name]).items() if kind != plain[part]}
        assert changed == {name}
    for objective in ("RTD", "hybrid"):
        together = parts(systems[f"all but {'RTD' if objective == 'hybrid' else 'hybrid'}"])
        assert all(together[part] != plain[part] for part in together)
        assert together["objective"] == parts(systems[objective])["objective"]
    shares = {name: system.towers["main"].heads for name, system in systems.items()}
    assert [name for name, heads in shares.items() if "rtd" in heads] == ["RTD", "all but hybrid"]
    sweep = points(studies.load("modern_rates"))
    assert not [point for point in sweep if point.refusal]
    assert {*value.axes[1].labelled} - {point.labels["way"] for point in sweep} == {
        "WSD", "masks", "hybrid", "block, WSD, masks",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (
            {
                "axes": (Axis(name="steps", values=(1, 2)),),
                "budget": Budget(kind="tokens", amount=1e6),
            },
            "the budget of tokens",
        ),
        (
            {
                "axes": (
                    Axis(name="lr", values=(1,)),
                    Axis(name="rate", values=(2,), paths=("recipe.lr",)),
                )
            },
            "two axes set recipe",
        ),
        (
            {"axes": (Axis(name="lr", values=(1,)), Axis(name="lr", values=(2,)))},
            "contradict each other",
        ),
        ({"axes": (Axis(name="budget", values=(1e6,)),)}, "no budget"),
        ({"laws": (Law(form=Power(), by="size"),)}, "'size', which is no axis"),
    ],
)
def test_axes_that_contradict_each_other(fields, match):
    with pytest.raises(ValueError, match=match):
        study(**fields)


def test_other_values_that_cannot_be():
    with pytest.raises(ValueError, match="has no paths"):
        Axis(name="colour", values=(1,))
    with pytest.raises(ValueError, match="1 of them different"):
        Axis(name="lr", values=(0.1, 0.1))
    with pytest.raises(ValueError, match="finite number above 0"):
        Budget(kind="tokens", amount=math.nan)


def test_a_run_that_is_refused_is_a_row():
    value = study(axes=(Axis(name="batch", values=(0, 8)),))
    refused, other = points(value)
    assert "phase.batch is 0" in refused.refusal and not other.refusal
    assert run_rows.row_of(refused, None)["status"] == f"refused: {refused.refusal}"
    header, lines = planned_runs.planned(value, [refused, other], "cpu:1", 3.6, 2)
    assert "refused" in lines[0][-1] and lines[1][1:3] == ["1,000", "600"]
    assert header[-2:] == ["time, at least", "cost, at least"]
    seconds = other.steps * 0.25 + 10  # the start of a process counts
    assert lines[-1][0] == "all"
    assert lines[-1][-2:] == [
        f"{seconds / 60:.1f} min",
        planned_runs.dollars(seconds / 3600 * 2 * 3.6),
    ]
    row = planned_runs.record(other, 3.6, 2)
    assert (row["parameters"], row["seconds"]) == (1000, seconds)
    assert row["dollars"] == pytest.approx(seconds / 3600 * 2 * 3.6)
    assert planned_runs.record(refused, None, 1).keys() == {"run", "refused"}
    costs = ((0.0, "0"), (0.00119, "0.0012"), (9.94, "9.9"), (1234.5, "1,234"))
    assert [planned_runs.dollars(cost) for cost, _ in costs] == [text for _, text in costs]
    for hours, text in ((0.01, "0.6 min"), (1.99, "119.4 min"), (30, "30.0 h"), (72, "3.0 days")):
        assert planned_runs.spoken(hours) == text
    (poor,) = points(
        study(axes=(Axis(name="seed", values=(0,)),), budget=Budget(kind="operations", amount=1e3))
    )
    assert "give a larger budget" in poor.refusal


def trained(loss, monkeypatch):
    """`loop.train` replaced: a result with this held-out loss, or the error."""

    def train(config, folder, quiet):
        if isinstance(loss, Exception):
            raise loss
        return SimpleNamespace(
            heldout={"loss": loss}, baseline=7.0, stopped=loss == "stop", signal=15
        )

    monkeypatch.setattr(run_kinds.loop, "train", train)


def test_a_run_is_run_once_and_a_failed_one_says_why(tmp_path, monkeypatch):
    first, second, third, fourth = points(study())
    trained(2.5, monkeypatch)
    assert study_runs.run_one(first, tmp_path, ("loss",)) == 0
    trained(UserError("the loss is not finite at step 7"), monkeypatch)
    assert study_runs.run_one(first, tmp_path, ("loss",)) == 0  # there is a row
    assert study_runs.run_one(second, tmp_path, ("loss",)) == 1
    run_rows.forget_failures([second], tmp_path)
    trained(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB"), monkeypatch)
    assert study_runs.run_one(second, tmp_path, ("loss",)) == 1
    assert run_rows.row_of(second, tmp_path)["status"].startswith("failed: out of memory; give")
    run_rows.forget_failures([second], tmp_path)
    trained(UserError("the loss is not finite at step 7"), monkeypatch)
    assert study_runs.run_one(second, tmp_path, ("loss",)) == 1
    trained(math.nan, monkeypatch)
    assert study_runs.run_one(third, tmp_path, ("loss",)) == 1
    trained("stop", monkeypatch)
    assert study_runs.run_one(fourth, tmp_path, ("loss",)) == 143
    rows = [run_rows.row_of(point, tmp_path) for point in (first, second, third)]
    assert [row["status"].split(";")[0] for row in rows] == [
        "done", "failed: the loss is not finite at step 7", "failed: the held-out loss is nan",
    ]  # fmt: skip
    assert rows[0]["operations"] == first.steps * 5e6 and rows[0]["loss"] == 2.5
    assert run_rows.row_of(fourth, tmp_path) is None
    page = study_page.write(study(), rows, tmp_path, "ptm study s").read_text()
    assert "2 of 3 runs have no result" in page and "nan" not in page.split("## Over seeds")[1]
    assert next(csv.DictReader((tmp_path / "results.csv").open()))["loss"] == "2.5"
    run_rows.forget_failures([first, second, third], tmp_path)
    assert [run_rows.row_of(point, tmp_path) is None for point in (first, second, third)] == [
        False,
        True,
        True,
    ]
    with pytest.raises(UserError, match="of another experiment"):
        other = dataclasses.replace(first.config, precision="float32")
        run_rows.row_of(dataclasses.replace(first, config=other), tmp_path)


def test_a_run_without_a_finite_loss_is_in_no_picture_and_no_fit(tmp_path, monkeypatch):
    law = Law(form=Power(variables=("tokens",)), metric="loss", draws=3)
    value, drawn = study(axes=(Axis(name="seed", values=tuple(range(7))),), laws=(law,)), []
    monkeypatch.setattr(
        study_page, "_saved", lambda canvas, axes, *_, **options: drawn.append(axes) or ["![]()"]
    )
    rows = []
    for n, point in enumerate(points(value)):
        loss, status = (
            (math.nan, "failed: the held-out loss is nan")
            if n in (2, 5)
            else (8.0 / (n + 1), "done")
        )
        rows.append(
            {
                "name": point.name,
                **point.labels,
                "tokens": 1000 * 2**n,
                "operations": 1e9,
                "steps": 2,
                "loss": loss,
            }
        )
        rows[-1]["status"] = status
        (folder := tmp_path / "runs" / point.name).mkdir(parents=True)
        lines = [
            {"step": k, "split": "train", "values": {"loss": loss}, "tokens": 1, "seconds": 1}
            for k in (1, 2)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = study_page.write(value, rows, tmp_path, "ptm study s").read_text()
    assert "2 of 7 runs have no result" in page
    curves, fit = ([line.get_xydata() for line in axes.get_lines()] for axes in drawn)
    assert len(curves) == 5 and all(np.isfinite(line).all() for line in [*curves, *fit])
    assert sorted({x for line in fit for x in line[:, 0]}) == [1000 * 2**n for n in (0, 1, 3, 4, 6)]


def test_metrics_of_another_task_are_empty_and_the_first_is_needed(tmp_path, monkeypatch):
    trained(2.5, monkeypatch)
    first, second, *_ = points(study())
    assert study_runs.run_one(first, tmp_path, ("loss", "mlm_accuracy")) == 0
    assert study_runs.run_one(second, tmp_path, ("mlm_accuracy", "loss")) == 1
    rows = [run_rows.row_of(point, tmp_path) for point in (first, second)]
    assert rows[0]["mlm_accuracy"] is None and rows[0]["status"] == "done"
    assert rows[1]["status"] == "failed: the held-out mlm_accuracy is None; there are loss"
    page = study_page.write(
        study(metrics=("loss", "mlm_accuracy")), rows, tmp_path, "ptm study s"
    ).read_text()
    assert "| 0.001 | 1 | 2.5000 |  |" in page


def test_transfers_are_columns_beside_published_figures(tmp_path, monkeypatch):
    """Each run is fine-tuned on each task from its own workdir; a stopped fine-tuning leaves no
    row."""
    calls = []

    def finetune(config, folder, task, quiet):
        calls.append((config, folder.relative_to(tmp_path), task))
        ended = "stopped" if task == "mrpc" else "done"
        return SimpleNamespace(
            ended=ended, main=0.5 + len(calls) / 10, result=SimpleNamespace(signal=15)
        )

    monkeypatch.setattr(run_kinds.selection, "finetune", finetune)
    monkeypatch.setattr(
        run_kinds.finetuning, "experiment", lambda *given, **fields: (*given, fields["epochs"])
    )
    trained(2.5, monkeypatch)
    transfers = (
        Transfer(task="sst2", data="glue/sst2", epochs=2),
        Transfer(task="sst2", data="glue/sst2", column="again"),
    )
    figures = (
        Published(
            labels={"lr": "0.001"}, measure="sst2", value=0.9, source="a paper", differs="all"
        ),
        Published(labels={"lr": "0.003"}, measure="GLUE", value=0.8, source="a paper"),
    )
    value = study(transfers=transfers, published=figures, remark="Small.")
    (first, *_) = points(value)
    assert study_runs.run_one(first, tmp_path, ("loss",), tasks="data") == 0
    row = run_rows.row_of(first, tmp_path)
    assert (row["sst2"], row["again"], row["status"]) == (0.6, 0.7, "done")
    place = tmp_path / "runs" / first.name
    assert calls[0] == (
        ("sst2", place, ("data/glue/sst2",), 2),
        (place / "sst2").relative_to(tmp_path),
        "sst2",
    )
    page = study_page.write(value, [row], tmp_path, "ptm study s").read_text()
    assert "Small." in page and "| 0.001 | sst2 | 0.6000 (1) | 0.9000 | a paper | all |" in page
    assert (
        "| 0.003 | GLUE |  | 0.8000 | a paper |  |" in page
        and "| 0.001 | 1 | 2.5000 | 0.6000 | 0.7000 |" in page
    )
    other = study(transfers=(Transfer(task="mrpc", data="glue/mrpc"),))
    (stopped, *_) = points(other)
    assert stopped.transfers and study_runs.run_one(stopped, tmp_path / "other", ("loss",)) == 143
    with pytest.raises(UserError, match="of another experiment"):
        run_rows.row_of(stopped, tmp_path)
    with pytest.raises(UserError, match="--tasks DIR, the folder of glue/mrpc"):
        study_runs.check_data(other, None)
    with pytest.raises(UserError, match="there is no glue/mrpc"):
        study_runs.check_data(other, str(tmp_path))
    with pytest.raises(ValueError, match="not all different"):
        study(transfers=(transfers[0], transfers[0]))
    with pytest.raises(ValueError, match="which is no axis"):
        study(published=(Published(labels={"size": "1"}, measure="loss", value=1.0, source=""),))


def test_a_claimed_run_is_left_to_its_process(tmp_path, monkeypatch):
    trained(1.0, monkeypatch)
    (point, *_) = points(study())
    with study_runs._locked(tmp_path / "runs" / f".{point.name}.claim", wait=False) as held:
        assert held and study_runs.run_one(point, tmp_path, ("loss",)) == study_runs.BUSY
    assert study_runs.run_one(point, tmp_path, ("loss",)) == 0


def test_children_that_die_are_rows_and_those_that_saved_go_on(tmp_path, monkeypatch):
    """Four children: one writes its row, one is killed, one finds its run taken twice, one saves at
    a signal and goes on."""
    monkeypatch.setattr(study_runs, "POLL", 0.02)
    found = points(study())
    counts = tmp_path / "calls"
    script = (
        "import os, sys, json, pathlib\n"
        "name, kind, row, calls = sys.argv[1:]\n"
        "with open(calls, 'a') as file: file.write(name + '\\n')\n"
        "again = open(calls).read().split().count(name)\n"
        "if kind == 'killed': os.kill(os.getpid(), 9)\n"
        "if kind in ('busy', 'saved') and again < 3: os._exit({'busy': 75, 'saved': 143}[kind])\n"
        "path = pathlib.Path(row); path.parent.mkdir(parents=True); "
        "path.write_text(os.environ['ROW_' + kind])\n"
    )
    kinds = dict(
        zip((point.name for point in found), ("done", "killed", "busy", "saved"), strict=True)
    )
    for point in found:
        monkeypatch.setenv(
            f"ROW_{kinds[point.name]}", json.dumps(run_rows.new_row(point, status="done", loss=1.0))
        )

    def place(point):
        return str(tmp_path / "runs" / point.name / "row.json")

    def command(point):
        return [
            sys.executable,
            "-c",
            script,
            point.name,
            kinds[point.name],
            place(point),
            str(counts),
        ]

    assert study_runs.run_missing(found, tmp_path, command, at_once=4) == 0
    calls = counts.read_text().split()
    assert [calls.count(point.name) for point in found] == [1, 1, 3, 3]
    statuses = [run_rows.row_of(point, tmp_path)["status"] for point in found]
    assert (
        statuses[0] == statuses[2] == statuses[3] == "done"
        and "SIGKILL; out of memory" in statuses[1]
    )
    assert study_runs.run_missing(found, tmp_path, command) == 0 and len(
        counts.read_text().split()
    ) == len(calls)


def test_laws_of_a_page(tmp_path):
    """A law on eight runs, the largest held out, and one with too few runs, which is stated and not
    drawn."""
    value = study(
        axes=(
            Axis(name="size", values={str(n): BASE.system for n in range(8)}),
            Axis(name="lr", values=(1.0, 2.0)),
        ),
        laws=(Law(form=Power(variables=("body",)), by="lr", draws=4),),
    )
    sizes = np.geomspace(1e5, 1e8, 8)

    def row_of(i, n):
        return {
            "name": f"{i}",
            "size": f"{i}",
            "lr": "1",
            "body": n,
            "operations": n,
            "loss": 2 + 30 * n**-0.3,
        }

    rows = [row_of(i, n) | {"steps": 1, "status": "done"} for i, n in enumerate(sizes)]
    rows += [{**row, "lr": "2"} for row in rows[:1]]
    page = study_page.write(value, rows, tmp_path, "ptm study s").read_text()
    assert "0.00% |" in page and "0.3" in page and (tmp_path / "law_0.png").stat().st_size > 5000
    assert "0 different runs do not determine the 3 constants" in page
    (_, fitted, held, _), _ = study_page.laws(value, value.laws[0], rows)
    assert len(fitted) == 7 and held[0]["name"] == "7"


def test_stored_costs_are_those_of_the_package_alone(tmp_path):
    """Another seed, rate or number of steps asks for none. Parts of the user's own code are asked
    for each time: their record does not change with their text."""
    path, calls = tmp_path / "costs.json.gz", []

    def costs(config):
        calls.append(config.system.name)
        return COST

    def asked(*configs):
        calls.clear()
        one = study_runs.stored(costs, path)
        assert all(one(config) == COST for config in configs)
        return len(calls)

    base = Experiment(system=get("bert_tiny"))
    recipe = dataclasses.replace(base.system.recipe, lr=0.5)
    other = dataclasses.replace(base.system, name="other", recipe=recipe)
    other = dataclasses.replace(base, system=other, seed=3, data=("a.txt",))
    assert [asked(base, other), asked(other)] == [1, 0]
    wider = dataclasses.replace(base, system=get("albert_mini"))
    assert [asked(base, wider), asked(wider, base)] == [1, 0]
    path.write_bytes(path.read_bytes()[:-7])
    assert [asked(base), asked(base)] == [1, 0]
    own = dataclasses.replace(
        base, system=dataclasses.replace(base.system, objective=lambda towers, batch, key: None)
    )
    assert [asked(own, own), asked(own)] == [2, 1]


def test_rows_of_0_1_0_are_those_of_the_same_run():
    """Their fingerprints are of records without the fields of how a run is watched and placed."""
    point = points(study())[0]
    free = {"data": (), "metrics": (), "mesh": (), "rules": "replicated"}
    free |= dict.fromkeys(("log_every", "eval_every", "save_every", "keep"), 0)
    record = json.loads(json.dumps(spec.to_json(dataclasses.replace(point.config, **free))))
    assert {"slices", "profile"} <= {*record}
    del record["slices"], record["profile"]
    assert run_rows._fingerprint(point) == spec.fingerprint(record)
    moved = dataclasses.replace(point.config, slices=2, profile=(3, 4), mesh=(("data", 2),))
    assert run_rows._fingerprint(dataclasses.replace(point, config=moved)) == spec.fingerprint(
        record
    )
    other = dataclasses.replace(point.config, seed=7)
    assert run_rows._fingerprint(dataclasses.replace(point, config=other)) != spec.fingerprint(
        record
    )
