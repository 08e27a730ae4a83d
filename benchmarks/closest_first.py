"""A plugin of pytest: the tests that mention a name of `PTM_CLOSEST` run before the others, and in
both halves the tests of `make test` before the tests of `make test-full`.

A test mentions a name if it stands in its source, or in its own name or parameters in any case. The
last line of the output is the command that runs the last test.
"""

from __future__ import annotations

import inspect
import os
import re

RUNS = "selected by: "
_command = ""


def pytest_collection_modifyitems(items) -> None:
    names = set(os.environ.get("PTM_CLOSEST", "").split())
    lower = {name.strip("_").lower() for name in names}

    def rank(item) -> tuple[bool, bool]:
        words = set(re.findall(r"\w+", inspect.getsource(item.function)))
        spelled = "".join(re.findall(r"[a-z0-9_]", item.name.lower()))
        mentions = words & names or any(name in spelled for name in lower)
        return not mentions, item.get_closest_marker("full") is not None

    items.sort(key=rank)


def pytest_runtest_setup(item) -> None:
    global _command
    _command = "make test-full" if item.get_closest_marker("full") else "make test"


def pytest_unconfigure() -> None:
    print(f"\n{RUNS}{_command}")
