"""The tests that are collected, and their markers, are the same on every day."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DAYS = ("2026-11-26", "2030-06-15")
"""1,297 days apart, a prime: a selection by the day modulo a smaller number differs."""
COLLECT = """
import datetime, json, sys, time
out, day, *words = sys.argv[1:]
shift = datetime.datetime.fromisoformat(day).timestamp() - time.time()
clock = time.time
time.time = lambda: clock() + shift  # date.today() calls it, too

class Moment(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

datetime.datetime = Moment
assert datetime.date.today().isoformat() == day == datetime.datetime.now().date().isoformat()

import pytest

class Collected:
    def pytest_collection_finish(self, session):
        marks = ("full", "training", "status", "skipif")
        names = {
            item.nodeid: [repr(mark.args) + mark.name for mark in item.iter_markers()
                          if mark.name in marks]
            for item in session.items
        }
        with open(out, "w") as file:
            json.dump(names, file)

words += ["--collect-only", "-qq", "-p", "no:cacheprovider"]
sys.exit(pytest.main(words, plugins=[Collected()]))
"""


def collected(day, file):
    """{test: its markers} in a process whose clock stands on a day, with another hash seed."""
    environment = {**os.environ, "PYTHONHASHSEED": str(DAYS.index(day))}
    command = [sys.executable, "-c", COLLECT, str(file), day, "tests"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(file.read_text())


@pytest.mark.full
def test_the_same_tests_are_collected_on_two_days(tmp_path):
    days = [collected(day, tmp_path / f"{day}.json") for day in DAYS]
    assert list(days[0].items()) == list(days[1].items()) and len(days[0]) > 5000
