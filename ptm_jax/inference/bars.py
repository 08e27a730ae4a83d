"""Progress bars: on stderr at a terminal, and in notebooks."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


def in_notebook() -> bool:
    """Returns whether the process is the kernel of a notebook."""
    kernel = sys.modules.get("ipykernel.iostream")
    return kernel is not None and isinstance(sys.stderr, kernel.OutStream)


def bar(total: int | None, unit: str, initial: int = 0, *, shown: bool | None = None) -> tqdm:
    """Returns a bar of `total` steps, as a context manager with `update(steps)`.

    shown   None: at a terminal and in a notebook, after a second
    """
    notebook = in_notebook()
    if notebook:
        with warnings.catch_warnings():  # without ipywidgets the bar is a line of text
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    else:
        from tqdm import tqdm
    disable = (None if not notebook else False) if shown is None else not shown
    return tqdm(total=total, unit=unit, initial=initial, delay=1, leave=False, disable=disable)
