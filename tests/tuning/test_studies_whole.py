"""A study of two small trainings: killed and shared by two processes, it ends with the table of one that was not."""

import csv
import itertools
import os
import signal
import subprocess
import time

import pytest

from support import tiny_runs

STUDY = """
import dataclasses
from ptm_jax.core.recipe import Phase
from ptm_jax.objectives.language import MLM
from ptm_jax.tuning.scaling_laws import Power
from ptm_jax.tuning.studies import Axis, Law, Study
from support import tiny_runs

recipe = dataclasses.replace(tiny_runs.system.recipe, phases=(Phase(steps=12, batch=8, length=16),))
system = dataclasses.replace(tiny_runs.system, objective=MLM(), recipe=recipe)
base = dataclasses.replace(tiny_runs.config, system=system, data=({text!r},), save_every=3, eval_every=0)
study = Study(
    name="whole", base=base, axes=(Axis(name="lr", values=(1e-3, 1e-2)),),
    laws=(Law(form=Power()),),
)
"""


def rows(workdir):
    with (workdir / "results.csv").open() as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.mark.full
@pytest.mark.rotate(7)
def test_killed_and_shared_it_ends_with_the_same_table(tmp_path):
    file, variables = tmp_path / "whole.py", tiny_runs.environment(tmp_path / "cache", JAX_PLATFORMS="cpu")
    file.write_text(STUDY.format(text=tiny_runs.write_text(tmp_path / "text.txt")))
    number = itertools.count()

    def start(workdir):
        log = (tmp_path / f"{next(number)}.log").open("w")
        words = [*tiny_runs.PTM, "study", str(file), "--workdir", str(workdir)]
        return subprocess.Popen(words, env=variables, stdout=log, stderr=log, start_new_session=True)

    whole, other = tmp_path / "whole", tmp_path / "other"
    assert start(whole).wait() == 0, (tmp_path / "0.log").read_text()
    for mark in ("corpora/*", "runs/lr-0.001/checkpoints/step_*"):
        process = start(other)
        while not list(other.glob(mark)):
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    both = [start(other), start(other)]
    assert [process.wait() for process in both] == [0, 0]
    ended = [
        line for log in tmp_path.glob("*.log") for line in log.read_text().splitlines() if line.startswith("step 12/12")
    ]
    assert rows(whole) == rows(other) and len(rows(other)) == 2 and {row["status"] for row in rows(other)} == {"done"}
    assert len(ended) == 4  # two runs in each workdir, each to its last step once
    assert "do not determine" in (other / "study.md").read_text()
