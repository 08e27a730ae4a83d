"""Changes a file that several processes write, such as status.json."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Replaces the text of a file ("" where there is none) by `change` of it.

    One process does so at a time, in a folder; a reader has the old text or the new one.
    """
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        text = change(path.read_text(encoding="utf8") if path.exists() else "")
        number, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(number, "w", encoding="utf8") as file:
            file.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    finally:
        os.close(folder)  # the lock goes with it
