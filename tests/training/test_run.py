"""Runs that are stopped, killed, damaged and asked again: they end as if nothing had happened, or
print what is wrong."""

import dataclasses
import fcntl
import json
import math
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from ptm_jax.cli import options, target
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Adafactor
from ptm_jax.core.types import Ratio
from ptm_jax.training import loop, workdirs
from ptm_jax.training.hosts import group
from ptm_jax.training.logs import evaluation, logs
from ptm_jax.training.start import differing
from support import tiny_runs as tiny
from support.tiny_runs import ptm

LAST = tiny.STEPS


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled") as folder:
        yield folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """A run that nothing interrupted: 64 steps of length 16 and 32 of 32, a checkpoint after every
    11th."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", workdir) == 0
    return workdir


def cut(whole, workdir, step):
    """A copy of a finished run, as a kill after the save of `step` leaves it."""
    shutil.copytree(whole, workdir)
    for path in (workdir / "checkpoints").iterdir():
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)
    for name in ("report.md", "loss.png"):
        (workdir / name).unlink()


@pytest.mark.full
def test_the_log_of_a_run(whole):
    lines = tiny.metrics(whole)
    assert [x["step"] for x in lines if x["split"] == "train"] == [*range(1, LAST + 1)]
    assert [x["step"] for x in lines if x["split"] == "heldout"] == [24, 48, 72, LAST]
    reads = [x["values"]["read"] for x in lines if x["split"] == "train"]
    assert len(set(reads)) == LAST and all(x == int(x) for x in reads)
    steps = sorted(int(p.name[5:]) for p in (whole / "checkpoints").iterdir())
    assert steps == [*range(11, LAST, 11), LAST]


@pytest.mark.full
def test_a_second_seed_compiles_nothing(text, tmp_path, monkeypatch):
    """Each new program would be a new file of the cache."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    with tiny.compiling(tmp_path / "programs") as folder:
        made = []
        for seed in (0, 1):
            words = ["--data", text, "--workdir", tmp_path / f"run_{seed}"]
            assert ptm("train", tiny.FILE, *words, "--set", *tiny.SMALL, f"seed={seed}") == 0
            made.append({path.name for path in folder.glob("*-cache")})
    assert made[0] == made[1] and {"jit_step", "jit_init", "jit_evaluate"} <= {
        name.rsplit("-", 2)[0] for name in made[0]
    }
    losses = [tiny.metrics(tmp_path / f"run_{seed}")[0]["values"]["loss"] for seed in (0, 1)]
    assert losses[0] != losses[1]


@pytest.mark.full
@pytest.mark.parametrize(
    "step", [11, 88, *(pytest.param(n, marks=pytest.mark.full) for n in (22, 55, 66, 77))]
)
def test_resumed_at_any_save_is_the_uninterrupted_run(whole, text, tmp_path, capsys, step):
    cut(whole, tmp_path / "run", step)
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", tmp_path / "run") == 0
    tiny.assert_same_run(whole, tmp_path / "run")
    assert f"from step {step} of {LAST}" in capsys.readouterr().err


@pytest.mark.full
def test_a_finished_run_is_left_as_it_is(whole, text, capsys, monkeypatch):
    before = tiny.files(whole)
    monkeypatch.setattr(loop, "Training", None)  # no program is built: the answer comes in seconds
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", whole) == 0
    assert "there was nothing left to do" in capsys.readouterr().out
    found = tiny.files(whole)
    assert found.keys() == before.keys() and all(found[name] == before[name] for name in before)


@pytest.mark.full
def test_a_run_that_ended_before_its_last_evaluation_makes_up_for_it(whole, text, tmp_path):
    cut(whole, tmp_path / "run", LAST)
    lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:30])
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", tmp_path / "run") == 0
    tiny.assert_same_run(whole, tmp_path / "run")
    assert (tmp_path / "run" / "report.md").is_file()


def damage(checkpoint, how):
    arrays = (p for p in checkpoint.glob("*/*") if p.is_file())
    array = max(arrays, key=lambda p: p.stat().st_size)
    if how == "truncated":
        array.write_bytes(array.read_bytes()[:-3])
    elif how == "torn record":
        text = (checkpoint / "record.json").read_text()
        (checkpoint / "record.json").write_text(text[: len(text) // 2])
    else:
        array.unlink()


@pytest.mark.full
@pytest.mark.parametrize(
    "how",
    [
        "truncated",
        *(pytest.param(h, marks=pytest.mark.full) for h in ("torn record", "missing file")),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(whole, text, tmp_path, capsys, how):
    workdir = tmp_path / "run"
    shutil.copytree(whole, workdir)
    damage(workdir / "checkpoints" / f"step_{LAST:08d}", how)
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", workdir) == 0
    tiny.assert_same_run(whole, workdir)
    lines = [line for line in capsys.readouterr().err.splitlines() if "damaged checkpoint" in line]
    assert (
        len(lines) == 1 and f"step_{LAST:08d}" in lines[0] and "using that of step 88" in lines[0]
    )


@pytest.mark.full
def test_a_run_without_an_intact_checkpoint_starts_again_with_a_warning(
    whole, text, tmp_path, capsys
):
    workdir = tmp_path / "run"
    cut(whole, workdir, 11)
    damage(workdir / "checkpoints" / "step_00000011", "truncated")
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", workdir) == 0
    assert (
        "no checkpoint in" in (err := capsys.readouterr().err)
        and "starting again from step 0" in err
    )
    assert tiny.metrics(whole) == tiny.metrics(workdir) and tiny.checkpoint(
        whole
    ) == tiny.checkpoint(workdir)


@pytest.mark.full
def test_log_interval_mesh_and_rules_may_change(whole, text, tmp_path):
    """Window sums lie in the checkpoint: a window of twenty steps goes on across the restart at
    step 84."""
    workdir, there = tmp_path / "run", tmp_path / "there"
    command = [
        "train",
        tiny.FILE,
        "--data",
        text,
        "--set",
        "log_every=20",
        "save_every=28",
        "eval_every=0",
    ]
    assert ptm(*command, "--workdir", there) == 0
    cut(there, workdir, 84)
    assert ptm(*command, "mesh=(('data', 1),)", "rules=fsdp", "--workdir", workdir) == 0
    tiny.assert_same_run(there, workdir)
    assert tiny.checkpoint(workdir)["files"] == tiny.checkpoint(whole)["files"]
    assert [x["step"] for x in tiny.metrics(workdir)] == [20, 40, 60, 64, 80, LAST, LAST]
    assert json.loads((workdir / "config.json").read_text())["config"]["rules"] == "fsdp"


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ["recipe.lr=3e-3", "seed=2"],
            ["system.recipe.lr: 0.01 there, 0.003 here", "seed: 0 there, 2 here"],
        ),
        (["system.name=other"], ["system.name: tiny there, other here"]),
        (["tokenizer=TokenizerSpec(vocab=201)"], ["tokenizer: None there, TokenizerSpec("]),
        (
            ["recipe.optimizer=LAMB", "heldout=0.3"],
            ["system.recipe.optimizer: AdamW(", "heldout: 0.2 there, 0.3 here"],
        ),
        (["precision=bfloat16"], ["precision"]),
    ],
)
def test_a_workdir_of_another_config_is_refused_with_the_fields(
    whole, text, capsys, changes, words
):
    before = tiny.files(whole)
    assert ptm("train", tiny.FILE, "--data", text, "--workdir", whole, "--set", *changes) == 1
    err = capsys.readouterr().err
    assert err.startswith("ptm: ") and err.count("\n") == 1 and "Choose another --workdir" in err
    assert all(word in err for word in words), err
    assert tiny.files(whole) == before


def test_a_field_that_came_later_is_at_its_default(text, tmp_path):
    """A config.json of a version before a field existed is the same config, unless the field is not
    at its default."""
    config = target.load_file(tiny.FILE)
    loop.Training(dataclasses.replace(config, data=(text,)), tmp_path / "run")  # writes the record
    record = workdirs.read(tmp_path / "run")
    old = json.loads(json.dumps(record))
    tower = old["config"]["system"]["towers"]["main"]
    tower["encoder"]["stack"]["unroll"] = 2  # which changes no number
    for part, field in (
        (old["config"], "keep"),  # free
        (old["config"], "seed"),
        (old["config"]["system"], "ties"),
        (old["config"]["system"]["recipe"]["optimizer"], "b1"),
        (tower["heads"]["mlm"], "precision"),  # a default which the run has resolved
        (tower["encoder"], "direction"),
    ):
        del part[field]
    assert differing.changes(old, config) == []
    for path, value in (("seed", 3), ("system.recipe.clip", 0.5)):
        node = old["config"]
        *above, field = path.split(".")
        for name in above:
            node = node[name]
        node.pop(field, None)
        (found,) = differing.changes(old, _with(config, path, value))
        assert found[0] == path and found[2] == value != found[1]
    more = json.loads(json.dumps(record))
    more["config"]["system"]["recipe"]["forgotten"] = 1
    assert differing.changes(more, config) == [("system.recipe.forgotten", 1, "(absent)")]


def _with(config, path, value):
    first, _, rest = path.partition(".")
    return dataclasses.replace(
        config, **{first: _with(getattr(config, first), rest, value) if rest else value}
    )


def test_defaults_that_are_made_count_too():
    @dataclasses.dataclass(frozen=True)
    class Part:
        name: str
        table: tuple = dataclasses.field(default_factory=lambda: (1, 2))
        optimizer: object = Adafactor()

    record = {"kind": "Part", "name": "a"}
    assert differing._filled(record, Part("b"), lambda x: x)["table"] == [1, 2]
    assert differing._filled({"kind": "Other", "name": "a"}, Part("b"), lambda x: x) == {
        "kind": "Other",
        "name": "a",
    }


def test_the_sums_of_a_window_are_the_checkpoints_own():
    """A checkpoint is written while the next steps are added up."""
    window = evaluation.Window()
    window.add({"loss": np.float32(2.0)})
    kept = window.sums()
    text = json.dumps(kept)
    window.add({"loss": np.float32(5.0)})
    assert window.close()[0] == {"loss": 3.5} and json.dumps(kept) == text
    assert evaluation.Window(kept).close()[:2] == ({"loss": 2.0}, 1)


def test_a_term_without_rows_has_no_mean_and_adds_nothing_to_the_loss():
    window = evaluation.Window()
    terms = Ratio(np.array([6.0, 0.0]), np.array([3.0, 0.0]))
    window.add({"loss": terms, "mlm_nll": Ratio(6.0, 3.0), "nsp_nll": Ratio(0.0, 0.0)})
    means, _, _ = window.close()
    assert (means["loss"], means["mlm_nll"]) == (2.0, 2.0)
    assert math.isnan(means["nsp_nll"])


@pytest.mark.full
def test_a_loss_that_is_not_finite_is_not_kept(text, tmp_path, capsys):
    words = [
        "recipe.lr=1e30",
        "recipe.clip=none",
        "save_every=1",
        "log_every=5",
        "recipe.phases.0.length=32",
    ]
    assert (
        ptm("train", tiny.FILE, "--data", text, "--workdir", tmp_path / "run", "--set", *words) == 1
    )
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("ptm: the ") and "is not finite at step" in err and "recipe.lr" in err
    kept = tiny.checkpoint(tmp_path / "run")
    assert f"the checkpoint of step {kept['step']} is kept" in err
    assert np.isfinite(kept["meta"]["window"]["loss"]).all()


@pytest.mark.full
def test_a_run_without_held_out_text_whose_state_is_donated(text, tmp_path, capsys, monkeypatch):
    first, start = [], loop.Training.start
    monkeypatch.setattr(loop.Training, "start", lambda run: first.append(start(run)) or first[0])
    words = ["heldout=0", "eval_every=1"]
    assert (
        ptm(
            "train",
            tiny.FILE,
            "--data",
            text,
            "--workdir",
            tmp_path / "run",
            "--json",
            "--set",
            *words,
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["heldout"] == {}
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first[0][0]))


class Child:
    """`ptm train` in a process of its own, to be stopped."""

    def __init__(self, workdir, text, cache):
        self.workdir = workdir
        command = [*tiny.PTM, "train", tiny.FILE, "--data", text, "--workdir", str(workdir)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=tiny.environment(cache), **pipes)

    def wait_for(self, step):
        """Until the log has a step, or the process ends."""
        while self.process.poll() is None and self.step() < step:
            time.sleep(0.005)

    def step(self):
        log = self.workdir / "metrics.jsonl"
        lines = log.read_bytes().splitlines() if log.is_file() else []
        return json.loads(lines[-1])["step"] if lines and lines[-1].endswith(b"}") else 0

    def end(self, by=None):
        """(exit status, stdout, stderr), after a signal if one is given."""
        if by is not None:
            self.process.send_signal(by)
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err


def killed_again_and_again(workdir, text, cache, moments, seed):
    """Run with a SIGKILL at every moment, a step of the log or seconds since the start; then to the
    end."""
    draw, reached = random.Random(seed), []
    for moment in moments:
        child = Child(workdir, text, cache)
        if isinstance(moment, int):
            child.wait_for(moment)
            time.sleep(draw.random() * 0.1)
        else:
            time.sleep(moment)
        status, _, err = child.end(signal.SIGKILL)
        assert status == -signal.SIGKILL, err
        reached.append(child.step() if isinstance(moment, int) else -1)
    status, out, err = Child(workdir, text, cache).end()
    assert status == 0 and f"done: {LAST} steps" in out, err
    return reached


def assert_nothing_lost(whole, workdir):
    reads = [
        [x["values"]["read"] for x in tiny.metrics(w) if x["split"] == "train"]
        for w in (whole, workdir)
    ]
    assert len(reads[0]) == LAST and reads[0] == reads[1], "some step read other rows"
    tiny.assert_same_run(whole, workdir)
    assert not list((workdir / "checkpoints").glob("draft_*")) and not list(workdir.glob("*.draft"))


@pytest.mark.full
def test_ten_kills_at_random_moments_change_nothing(whole, text, cache, tmp_path):
    seed = time.time_ns() % 10_000
    draw = random.Random(seed)
    moments = [draw.uniform(0.2, 4.0) for _ in range(3)] + sorted(draw.sample(range(1, 90), 7))
    print(f"seed {seed}: killed at {moments}")
    reached = killed_again_and_again(tmp_path / "run", text, cache, moments, seed)
    print(f"the log had reached {reached}")
    assert_nothing_lost(whole, tmp_path / "run")


@pytest.mark.full
def test_sigterm_ends_the_step_and_saves(whole, text, tmp_path, capsys, monkeypatch):
    """The signal comes while step 20 is written to the log; processes of their own get it in
    `tests/launch`."""
    workdir, write = tmp_path / "run", logs.RunLog.write

    def interrupted(log, step, *words, **more):
        write(log, step, *words, **more)
        if step == 20:
            signal.raise_signal(signal.SIGTERM)

    command = ["train", tiny.FILE, "--data", text, "--workdir", workdir]
    with monkeypatch.context() as patch:
        patch.setattr(logs.RunLog, "write", interrupted)
        assert ptm(*command) == 143
    out = capsys.readouterr().out
    assert f"stopped by SIGTERM after step 20 of {LAST}; the checkpoint is complete" in out
    assert "run the same command again to go on" in out
    assert tiny.checkpoint(workdir)["step"] == 20 and not list(
        (workdir / "checkpoints").glob("draft_*")
    )
    assert ptm(*command) == 0
    assert f"resuming {workdir} from step 20 of {LAST}" in capsys.readouterr().err
    assert_nothing_lost(whole, workdir)


@pytest.fixture
def sigint():
    """Sets the handler of SIGINT, which tests in the background would ignore, until the end of a
    test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_as_sigterm_does_and_the_second_ends_at_once(capfd, sigint):
    sigint(signal.default_int_handler)
    with group.together() as one, group.listening():
        signal.raise_signal(signal.SIGINT)
        assert one.stop(0) and one.received == signal.SIGINT
        assert "Ctrl-C again ends at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    stopped = loop.Result(Path(), 20, 96, {}, 0.0, None, True, signal=one.received)
    assert options.status(
        stopped
    ) == 130 and "stopped by SIGINT after step 20 of 96" in options.stopped(stopped)
    assert options.status(dataclasses.replace(stopped, signal=signal.SIGTERM)) == 143
    assert options.status(dataclasses.replace(stopped, stopped=False)) == 0


def test_ctrl_c_is_left_alone_in_a_background_job(sigint):
    sigint(signal.SIG_IGN)
    with group.together() as one, group.listening():
        signal.raise_signal(signal.SIGINT)
        assert not one.stop(0)


def test_two_runs_do_not_share_a_workdir(tmp_path):
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / workdirs.LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is training"):
            loop.train(tiny.config, tmp_path / "run", quiet=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [workdirs.LOCK]


@pytest.mark.full
def test_a_profile_of_steps_is_in_the_workdir_and_changes_no_number(whole, text, tmp_path, capsys):
    cut(whole, workdir := tmp_path / "run", 88)
    words = ("train", tiny.FILE, "--data", text, "--workdir", workdir, "--profile", "91:93")
    assert ptm(*words) == 0
    tiny.assert_same_run(workdir, whole)
    printed = capsys.readouterr().err
    assert "profile of steps 91 to 93: " in printed and "products " in printed
    assert list((workdir / "profile").rglob("*.xplane.pb"))
    page = (workdir / "profile.md").read_text()
    assert page.startswith("## Profile of steps 91 to 93") and page.count(" ms") >= 1
    assert page in (workdir / "report.md").read_text()
