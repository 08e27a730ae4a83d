"""A progress bar on stderr for functions that report `progress(stage, done, total)`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bars() -> Iterator[Callable[..., None]]:
    """Yields `progress(stage, done, total)`: one bar at a time.
    Without a terminal: one line per stage."""
    with contextlib.ExitStack() as bar_of_stage:
        stage, bar = None, None

        def progress(name: str, done: int, total: int = 0) -> None:
            nonlocal stage, bar
            if name != stage:
                stage = name
                bar_of_stage.close()
                if sys.stderr.isatty():
                    from tqdm import tqdm

                    bar = bar_of_stage.enter_context(
                        tqdm(desc=name, unit="doc", unit_scale=True, leave=False)
                    )
                else:
                    print(name, file=sys.stderr, flush=True)
            if bar is not None:
                bar.total = total or None
                bar.update(done - bar.n)

        yield progress
