"""More steps in the same workdir: the run that had them from the beginning, or a reason."""

import re
import shutil
from pathlib import Path

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Phase,
    Recipe,
    Staircase,
    WarmupStableDecay,
)
from ptm_jax.training import workdirs
from ptm_jax.training.start import initial, longer
from support import tiny_runs as tiny
from support.tiny_runs import ptm

SHORT = [word for word in tiny.SMALL if not word.startswith("recipe.phases.1")]
CONSTANT = ["recipe.schedule=Constant(warmup=2)"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled") as folder:
        yield folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt")


def trained(text, workdir, last, *sets, more=()):
    line = ["train", tiny.FILE, "--data", text, "--workdir", workdir, *more]
    return ptm(*line, "--set", *SHORT, f"recipe.phases.1.steps={last}", *sets)


@pytest.fixture(scope="module")
def short(tmp_path_factory, text):
    """A complete run of 6 + 3 steps at a constant rate."""
    workdir = tmp_path_factory.mktemp("short") / "run"
    assert trained(text, workdir, 3, *CONSTANT) == 0
    return workdir


@pytest.fixture(scope="module")
def long(tmp_path_factory, text):
    """A run of 6 + 8 steps from the beginning."""
    workdir = tmp_path_factory.mktemp("long") / "run"
    assert trained(text, workdir, 8, *CONSTANT) == 0
    return workdir


def check_equal(one, other):
    """The last checkpoint is the same to the bit: parameters, optimizer, data position."""
    assert tiny.checkpoint(one) == tiny.checkpoint(other)
    assert workdirs.steps_of(one)[-1] == 14


@pytest.mark.full
def test_more_steps_are_those_of_a_run_that_had_them(short, long, text, tmp_path, capsys):
    by_more, by_set = (shutil.copytree(short, tmp_path / name) for name in ("more", "set"))
    assert trained(text, by_more, 3, *CONSTANT, more=["--more", "5"]) == 0
    check_equal(by_more, long)
    assert trained(text, by_more, 3, *CONSTANT) == 0  # the first command: the run is complete
    check_equal(by_more, long)
    assert trained(text, by_set, 8, *CONSTANT) == 0
    check_equal(by_set, long)
    bare = shutil.copytree(short, tmp_path / "bare")
    capsys.readouterr()
    assert ptm("train", "--workdir", bare, "--more", "5") == 0  # its record has the config
    check_equal(bare, long)
    err = capsys.readouterr().err
    assert "5 steps after 9: the learning rate goes from" in err and "(Constant)" in err
    record = workdirs.read(by_more)
    assert [phase["steps"] for phase in record["config"]["system"]["recipe"]["phases"]] == [6, 8]
    assert [part["step"] for part in record["earlier"]] == [9]
    assert "14" in (by_more / "report.md").read_text()
    capsys.readouterr()
    assert trained(text, by_more, 2, *CONSTANT) == 1  # fewer steps are another run
    assert "phases.1.steps: 8 there, 2 here" in capsys.readouterr().err


@pytest.mark.full
def test_more_steps_of_a_run_that_was_killed_on_the_way(short, long, text, tmp_path):
    """The same command again goes on, and adds no steps."""
    workdir = shutil.copytree(short, tmp_path / "run")
    line = {"more": ["--more", "5"]}
    assert trained(text, workdir, 3, *CONSTANT, **line) == 0
    shutil.rmtree(workdirs.checkpoint_of(workdir, 14))
    (workdir / "report.md").unlink()
    assert trained(text, workdir, 3, *CONSTANT, **line) == 0
    check_equal(workdir, long)
    begun = shutil.copytree(short, tmp_path / "begun")
    shutil.rmtree(workdirs.checkpoint_of(begun, 9))
    assert trained(text, begun, 8, *CONSTANT) == 0  # more steps before the first are done
    check_equal(begun, long)


@pytest.mark.full
def test_a_schedule_of_all_steps_is_refused_with_what_permits_it(text, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert trained(text, workdir, 3) == 0
    before = (workdir / "config.json").read_bytes()
    for last, more in ((8, ()), (3, ("--more", "5"))):
        assert trained(text, workdir, last, more=more) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert "the schedule Linear has other rates at the 9 steps that are done" in line
        assert "--set recipe.schedule='Constant()'" in line
        assert (workdir / "config.json").read_bytes() == before
    rates = ["recipe.schedule=Constant()", "recipe.lr=1e-3"]
    assert trained(text, workdir, 3, *rates, more=["--more", "5"]) == 0
    record = workdirs.read(workdir)
    (part,) = record["earlier"]
    assert (part["step"], part["recipe"]["schedule"]["kind"]) == (9, "Linear")
    assert record["config"]["system"]["recipe"]["schedule"]["kind"] == "Constant"
    assert workdirs.steps_of(workdir)[-1] == 14


@pytest.mark.full
def test_what_else_differs_is_refused(short, text, tmp_path, capsys):
    workdir = shutil.copytree(short, tmp_path / "run")
    assert trained(text, workdir, 8, *CONSTANT, "seed=3") == 1
    assert "seed: 0 there, 3 here" in capsys.readouterr().err
    assert trained(text, tmp_path / "none", 8, *CONSTANT, more=["--more", "5"]) == 1
    assert "is no workdir of a run" in capsys.readouterr().err
    assert trained(text, workdir, 8, *CONSTANT, more=["--more", "0"]) == 1
    assert "--more is 0; it must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "done", "same"),
    [
        (Constant(warmup=3), 100, True),
        (InverseSqrt(warmup=10), 100, True),
        (Staircase(full=10, every=5, divisor=2.0), 100, True),
        (Linear(warmup=10), 100, False),
        (Linear(warmup=10), 10, True),  # the warm-up does not depend on the end
        (Linear(warmup=10, end=1.0), 100, True),
        (Cosine(warmup=10), 50, False),
    ],
)
def test_schedules_whose_rates_stay(schedule, done, same):
    recipe = Recipe(phases=(Phase(steps=150, batch=1, length=1),), lr=0.1, schedule=schedule)
    assert longer._same_rates(recipe, 100, done) == same


@pytest.mark.parametrize(
    ("done", "steps", "schedule", "expected"),
    [
        (9, 14, Constant(), "5 steps after 9: the learning rate goes from 0.1 to 0.1 (Constant)"),
        (9, 14, Linear(warmup=20), "lie in the warm-up of 20"),
        (9, 14, Linear(warmup=20), "the added ones end in it too"),
        (9, 34, Linear(warmup=20), "the added ones leave it"),
        (8, 9, Linear(warmup=3), "has 8 of 9 steps: it goes on to 9; give --more again"),
    ],
)
def test_added_steps_are_explained(done, steps, schedule, expected):
    recipe = Recipe(phases=(Phase(steps=steps, batch=1, length=1),), lr=0.1, schedule=schedule)
    line = longer._explained(recipe, Path("run"), done, 9)
    assert expected in line
    assert ("warm-up" in line) == (schedule == Linear(warmup=20))
    if schedule == Linear(warmup=20):  # step s has the rate lr (s + 1) / 20 or lr s / 20
        first = float(re.search(r"from (\S+) to", line)[1])
        assert first in (0.1 * done / 20, 0.1 * (done + 1) / 20)


@pytest.mark.full
def test_rates_may_change_when_the_steps_are_done(short, text, tmp_path, capsys):
    workdir = shutil.copytree(short, tmp_path / "run")
    shutil.rmtree(workdirs.checkpoint_of(workdir, 9))
    assert trained(text, workdir, 8, "recipe.schedule=Constant(warmup=1)") == 1
    assert "has 8 of 9 steps; system.recipe.schedule" in capsys.readouterr().err
    with pytest.raises(UserError, match="--more is -1"):
        longer.lengthened(tiny.config, workdir, -1)


DECAY = ["recipe.schedule=WarmupStableDecay(warmup=2, decay=2)", "keep=1"]


@pytest.mark.full
def test_a_decayed_run_goes_back_to_its_stable_checkpoint(text, tmp_path, capsys):
    """The longer run is the one that had the steps from the beginning, to the bit; the decayed
    model stays usable."""
    workdir, begun = tmp_path / "run", tmp_path / "begun"
    assert trained(text, workdir, 3, *DECAY) == 0
    assert workdirs.steps_of(workdir) == [7, 9]
    decayed = tiny.checkpoint(workdir)
    capsys.readouterr()
    assert trained(text, workdir, 3, *DECAY, more=["--more", "4"]) == 0
    assert "going on from step 7; the decayed model is kept in" in capsys.readouterr().err
    assert trained(text, begun, 7, *DECAY) == 0
    assert tiny.checkpoint(workdir) == tiny.checkpoint(begun)
    assert tiny.metrics(workdir) == tiny.metrics(begun)
    assert workdirs.steps_of(workdir) == [11, 13]
    folder = workdir / "decayed_00000009"
    assert tiny.checkpoint(folder) == decayed
    assert ptm("evaluate", folder) == 0
    record = workdirs.read(workdir)
    assert [part["step"] for part in record["earlier"]] == [7] and "back" not in record
    capsys.readouterr()
    for model in (workdir, workdirs.checkpoint_of(workdir, 11)):
        initial.remark_decay(str(model), tiny.config)
    [line] = [x for x in capsys.readouterr().err.splitlines() if "had decayed" in x]
    assert f"from step 11 on; to train it further on text, take --init {model}" in line


def test_where_a_longer_run_goes_back_to(tmp_path):
    def made(steps, *saved, schedule=WarmupStableDecay(warmup=2, decay=20)):  # noqa: B008
        for step in saved:
            workdirs.checkpoint_of(tmp_path, step).mkdir(parents=True, exist_ok=True)
        phases = (Phase(steps=steps, batch=1, length=1),)
        return Recipe(phases=phases, lr=0.1, schedule=schedule)

    assert longer.back_to(tmp_path, made(150, 100), 100) is None  # no stable checkpoint
    assert longer.back_to(tmp_path, made(150, 80, 100), 100) == 80
    assert longer.back_to(tmp_path, made(100), 100) is None  # no more steps
    assert longer.back_to(tmp_path, made(150, schedule=Linear()), 100) is None
