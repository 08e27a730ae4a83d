"""A study of two small trainings: killed at five moments, or shared by two processes, it ends with
the same table."""

import contextlib
import csv
import itertools
import os
import random
import signal
import subprocess
import time

import pytest

from support import tiny_runs

STUDY = """
import dataclasses
from ptm_jax.core.recipe import Phase
from ptm_jax.objectives.text.language import MLM
from ptm_jax.tuning.scaling.scaling_laws import Power
from ptm_jax.tuning.studies.studies import Axis, Law, Study
from support import tiny_runs

recipe = dataclasses.replace(tiny_runs.system.recipe, phases=(Phase(steps=12, batch=8, length=16),))
system = dataclasses.replace(tiny_runs.system, objective=MLM(), recipe=recipe)
base = dataclasses.replace(
    tiny_runs.config, system=system, data=({text!r},), save_every=3, eval_every=0
)
study = Study(
    name="whole", base=base, axes=(Axis(name="lr", values=(1e-3, 1e-2)),),
    laws=(Law(form=Power()),),
)
"""


def rows(workdir):
    with (workdir / "results.csv").open() as file:
        return [
            {name: value for name, value in row.items() if name != "seconds"}
            for row in csv.DictReader(file)
        ]


@pytest.mark.full
def test_killed_and_shared_it_ends_with_the_same_table(tmp_path):
    file, variables = (
        tmp_path / "whole.py",
        tiny_runs.environment(tmp_path / "cache", JAX_PLATFORMS="cpu"),
    )
    file.write_text(STUDY.format(text=tiny_runs.write_text(tmp_path / "text.txt")))
    number = itertools.count()

    def start(workdir):
        log = (tmp_path / f"{next(number)}.log").open("w")
        words = [*tiny_runs.PTM, "study", str(file), "--workdir", str(workdir)]
        return subprocess.Popen(
            words, env=variables, stdout=log, stderr=log, start_new_session=True
        )

    whole, other = tmp_path / "whole", tmp_path / "other"
    began = time.monotonic()
    assert start(whole).wait() == 0, (tmp_path / "0.log").read_text()
    took = time.monotonic() - began
    draw, shared = random.Random(), tmp_path / "shared"
    for mark in ("corpora/*", "runs/lr-0.001/checkpoints/step_*", None, None, None):
        process, until = start(other), time.monotonic() + draw.uniform(0, took)
        while (
            not list(other.glob(mark))
            if mark
            else time.monotonic() < until and process.poll() is None
        ):
            assert mark is None or process.poll() is None
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):  # ended before its moment
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(other).wait() == 0
    first = next(number)
    both = [start(shared), start(shared)]
    assert [process.wait() for process in both] == [0, 0]
    logs = [(tmp_path / f"{log}.log").read_text().splitlines() for log in (first + 1, first + 2)]
    assert rows(whole) == rows(other) == rows(shared) and len(rows(other)) == 2
    assert {row["status"] for row in rows(other)} == {"done"}
    assert (
        sum(line.startswith("step 12/12") for log in logs for line in log) == 2
    )  # each run to its last step once
    assert "do not determine" in (other / "study.md").read_text()
