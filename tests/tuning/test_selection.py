"""How the checkpoint of a run is chosen; seeds; what the best of n runs is expected to reach."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ptm_jax.core.system import Experiment, System
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tuning import selection


@pytest.fixture
def finetune(monkeypatch):
    """`finetune(workdir, epochs, accuracies, every, **selection)`: a run that trains nothing. Its
    epochs have two steps, its evaluations give these accuracies one after the other."""

    def train(config, workdir, quiet, watch, callbacks):
        last, every = config.system.recipe.steps, config.eval_every or 2
        for step in range(every, last + 1, every):
            (workdir / "checkpoints" / f"step_{step:08d}").mkdir(parents=True, exist_ok=True)
            if (
                watch is not None
                and step < last
                and watch(step, SimpleNamespace(system=config.system, towers={}), {})
            ):
                return SimpleNamespace(step=step, stopped=True, facts={})
        return SimpleNamespace(step=step, stopped=False, facts={})

    def finetune(workdir, epochs, accuracies, every=0, **chosen):
        left, recipe = iter(accuracies), SimpleNamespace(steps=2 * epochs)

        def made(model, task, source):
            return evaluating.Evaluation(task, source, [1] * 5, [], {"accuracy": next(left)}, {})

        monkeypatch.setattr(evaluating, "evaluate", made)
        system = System(
            name="", paper="", section="", towers={}, examples=None, objective=None, recipe=recipe
        )
        config = Experiment(system=system, eval_every=every)
        return selection.finetune(config, workdir, "sst2", selection=selection.Selection(**chosen))

    for owner, name in (
        (selection, "Pretrained"),
        (selection.saved, "load"),
        (selection.loading, "load"),
    ):
        monkeypatch.setattr(owner, name, lambda *args: None)
    monkeypatch.setattr(selection.finetuning, "per_epoch", lambda config: 2)
    monkeypatch.setattr(evaluating, "heldout_of", lambda *args: Source("held"))
    monkeypatch.setattr(selection.loop, "train", train)
    return finetune


def test_the_last_checkpoint_or_the_best(tmp_path, finetune):
    last = finetune(tmp_path / "last", 3, [0.7])
    assert (last.step, last.main, last.ended) == (6, 0.7, "done")
    best = finetune(tmp_path / "best", 4, [0.6, 0.9, 0.8, 0.7], best=True)
    assert (best.step, best.main, best.examples) == (4, 0.9, 5) and best.checkpoint.is_dir()
    assert best_checkpoint(tmp_path / "best") == best.checkpoint
    there = sorted(path.name for path in (tmp_path / "best" / "checkpoints").iterdir())
    assert there == [
        "step_00000004",
        "step_00000006",
        "step_00000008",
    ]  # that of the first epoch is gone
    assert json.loads((tmp_path / "best" / "task.json").read_text())["metrics"] == {"accuracy": 0.9}
    often = finetune(tmp_path / "often", 2, [0.5, 0.6, 0.8, 0.7], every=1, best=True)
    assert (often.step, often.main) == (3, 0.8)
    assert [
        json.loads(line)["step"]
        for line in (tmp_path / "often" / "task.jsonl").read_text().splitlines()
    ] == [1, 2, 3]


def test_a_run_ends_early_and_is_then_only_read(tmp_path, finetune):
    found = finetune(tmp_path, 9, [0.6, 0.9, 0.8, 0.7, 0.95], patience=2)
    assert (found.step, found.main, found.ended) == (4, 0.9, "early")
    again = finetune(tmp_path, 9, [], patience=2)  # an evaluation would raise
    assert again.metrics == found.metrics
    with pytest.raises(ValueError, match="at least 1"):
        selection.Selection(patience=-1)


def test_seeds_have_a_mean_and_a_spread():
    runs = [selection.Tuned(None, "sst2", 1, 5, {"accuracy": value}) for value in (0.8, 0.9, 0.85)]
    assert selection.spread(runs) == {"accuracy": (pytest.approx(0.85), pytest.approx(0.05))}
    assert selection.spread(runs[:1])["accuracy"][1] == 0.0


def test_the_expected_best_of_n_runs():
    """Of scores 1, 2, 3: E[max of 2] = (1 + 3 * 2 + 5 * 3) / 9, by counting the nine pairs."""
    curve = selection.expected_best([3.0, 1.0, 2.0])
    pairs = [max(a, b) for a in (1, 2, 3) for b in (1, 2, 3)]
    np.testing.assert_allclose(curve[:2], [2.0, np.mean(pairs)])
    assert np.all(np.diff(curve) > 0) and curve[-1] < 3


@pytest.mark.parametrize("scores", [[0.2, float("nan"), 0.5, 0.4], [float("nan"), 0.2, 0.5, 0.4]])
def test_a_metric_that_is_no_number_is_never_the_best(tmp_path, finetune, scores):
    assert finetune(tmp_path / "best", 4, scores, best=True).step == 6
    early = finetune(tmp_path / "early", 4, scores, patience=1)
    assert early.metrics["accuracy"] == (0.2 if scores[0] == 0.2 else 0.4)
    expected = selection.expected_best([*scores, float("nan")])
    assert np.isneginf(expected[0]) or np.isfinite(expected).all()
