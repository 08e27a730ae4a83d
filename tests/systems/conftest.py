"""`make trainings`: of the tests with the marker `training`, those that are due, the oldest pass
first.

Environment variables:
    PTM_TRAININGS          due: leave out each training whose record and sources have not changed
                           since its last pass, and record new passes in trainings.json
    PTM_TRAINING_MINUTES   with PTM_TRAININGS=due: after so many minutes no further training begins
"""

from __future__ import annotations

import os
import time

import pytest

from ptm_jax import systems
from ptm_jax.systems.survey import trainings
from support import commit, rewriting

DUE = os.environ.get("PTM_TRAININGS") == "due"
MINUTES = float(os.environ.get("PTM_TRAINING_MINUTES") or "inf")
BEGIN = time.monotonic()
_passed: dict[str, float] = {}
_left: list[str] = []


def name_of(item) -> str:
    """The system that an item trains; "bert_pairs" for the composition that is no system."""
    return item.callspec.params["name"] if hasattr(item, "callspec") else "bert_pairs"


def record_of(name):
    return systems.get("bert_tiny" if name == "bert_pairs" else name)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Under PTM_TRAININGS=due: what is due, in order."""
    if not DUE:
        return
    chosen = {name_of(item): item for item in items if item.get_closest_marker("training")}
    order = trainings.due({name: record_of(name) for name in chosen})
    items[:] = [chosen[name] for name in order]
    config.hook.pytest_deselected(items=[chosen[name] for name in chosen if name not in order])


def pytest_runtest_setup(item):
    if DUE and time.monotonic() - BEGIN > 60 * MINUTES:
        item.user_properties.append(("left", name_of(item)))
        pytest.skip(f"left for the next run: {MINUTES:g} minutes are over")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    begin = time.monotonic()
    outcome = yield
    if item.get_closest_marker("training") and outcome.excinfo is None:
        seconds = round(time.monotonic() - begin, 1)
        item.user_properties.append(("trained", [name_of(item), seconds]))


def pytest_runtest_logreport(report):
    """In the controlling process too."""
    for key, value in report.user_properties:
        if key == "trained" and report.when == "call":
            _passed[value[0]] = value[1]
        if key == "left" and report.when == "setup":
            _left.append(value)


def pytest_sessionfinish(session):
    """The controlling process records the passes."""
    if not DUE or hasattr(session.config, "workerinput") or not _passed:
        return
    date, head = commit.today_and_commit()
    passes = {
        name: {
            "hash": trainings.fingerprint(record_of(name)),
            "date": date,
            "commit": head,
            "seconds": seconds,
        }
        for name, seconds in _passed.items()
    }
    rewriting.rewrite(trainings.FILE, lambda text: trainings.merged(text, passes))


def pytest_terminal_summary(terminalreporter):
    if DUE:
        lines = [f"trainings: {len(_passed)} passed, {len(_left)} left by the budget"]
        lines += [f"left: {' '.join(_left)}"] if _left else []
        terminalreporter.write_line("\n".join(lines))
