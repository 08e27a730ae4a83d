"""A progress bar on stderr for functions that report `progress(stage, done, total)`."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """One bar at a time; a new stage closes the previous bar. Without a terminal: one line per stage."""

    def __init__(self, unit: str = "doc"):
        self._unit = unit
        self._stage: str | None = None
        self._bar: Any = None

    def __call__(self, stage: str, done: int, total: int = 0) -> None:
        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = self._open(stage, total)
        if self._bar is not None:
            self._bar.total = total or None
            self._bar.update(done - self._bar.n)

    def _open(self, stage: str, total: int) -> Any:
        if not sys.stderr.isatty():
            print(stage, file=sys.stderr, flush=True)
            return None
        from tqdm import tqdm

        return tqdm(desc=stage, total=total or None, unit=self._unit, unit_scale=True, file=sys.stderr, leave=False)

    def close(self) -> None:
        """End the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
        self._bar = self._stage = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
