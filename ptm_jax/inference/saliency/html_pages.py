"""Pages of HTML that open without a network, in a browser and in a notebook."""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np

from ptm_jax.core.errors import UserError

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The browser refuses every request of a page."""
HEIGHT = 640
"""Pixels of a page in a notebook."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Page:
    """A page, which a notebook shows in a frame.

    template  the name of a file in `templates`: markup with its style, and a script that reads
              `data`
    about     a paragraph below the title
    document  what `ptm view --json` prints
    """

    title: str
    template: str
    data: Mapping[str, object]
    about: str = ""
    document: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def html(self) -> str:
        """The document, with style, script and data inside."""
        markup, _, script = _template(f"{self.template}.html").partition("<script>")
        title = html.escape(self.title)
        data = json.dumps(self.data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{_template('page.css')}</style></head><body>"
            f"<h1>{title}</h1><p>{html.escape(self.about)}</p>{markup}"
            '<script type="application/json" id="data">'
            + data.replace("<", "\\u003c")
            + f"</script><script>{_template('page.js')}{script}</body></html>\n"
        )

    def __repr__(self) -> str:
        return f"Page {self.title!r}; page.write('page.html') writes it"

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="{html.escape(self.title)}" '
            f'sandbox="allow-scripts" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
        )

    def write(self, path: str | Path) -> None:
        """Writes the page. Raises UserError for another ending than .html."""
        check_ending(path)
        Path(path).write_text(self.html, encoding="utf8")


def check_ending(path: str | Path) -> None:
    """Raises UserError for a path that does not end in .html."""
    if Path(path).suffix not in (".html", ".htm"):
        raise UserError(f"--out is {path}; the page is a file that ends in .html")


def packed(array: np.ndarray) -> str:
    """Returns the bytes of an array in base64, which `bytes` of page.js reads."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _template(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf8")
