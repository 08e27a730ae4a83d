"""Tables of HTML, which notebooks show for models and results."""

from __future__ import annotations

import html
from collections.abc import Iterable


def table(names: Iterable[str], rows: Iterable[Iterable[object]], caption: str = "") -> str:
    """Returns a table of rows under a line of names, and the escaped caption above it."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<tr>{head}</tr>{body}</table>"
