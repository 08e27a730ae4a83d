"""The date and the commit that a test run records."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path


def today_and_commit() -> tuple[str, str]:
    """Returns (date in UTC, short commit; with "+" at its end if files differ from it)."""
    words = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=7"]
    folder = Path(__file__).parent
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return datetime.datetime.now(datetime.UTC).date().isoformat(), done.stdout.strip()
