"""Sphinx: Markdown pages and stored notebooks (MyST-NB), docstrings (autodoc), the Furo theme.
Nothing comes from a network.

    make docs

`generate.py` writes the pages that are made from values of the package to docs/generated, which git
ignores. Warnings are errors, a link or an anchor that leads nowhere among them.
"""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

project = "ptm_jax"
copyright = "the authors of ptm_jax"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["_build"]
nb_execution_mode = "off"
nb_merge_streams = True
myst_heading_anchors = 3
toc_object_entries = (
    False  # a page has thousands of them, and the sidebar of every page would copy them
)
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_mock_imports = ["apache_beam"]
autodoc_default_options = {"members": True}
html_theme = "furo"
html_title = "ptm_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_show_sphinx = False

INLINE = re.compile(r"(`+)(.+?)\1")


def paragraph(lines):
    """A paragraph of a docstring as reStructuredText: columns and examples keep their layout, names
    in `` ` `` are code."""
    first, *rest = lines
    if first[:1].isspace() or any(
        re.search(r"\S {2,}\S|^\s|^[-*] |^\d+\. ", line) for line in lines
    ):
        return [".. code-block:: text", "", *(f"    {line}" for line in lines)]
    text, out, at = "\n".join(lines), "", 0
    for found in INLINE.finditer(text):
        out += re.sub(r"([\\*_|<])", r"\\\1", text[at : found.start()])
        after = text[found.end() : found.end() + 1]
        out += f"``{' '.join(found[2].split())}``" + ("\\ " if re.match(r"[\w(]", after) else "")
        at = found.end()
    return (out + re.sub(r"([\\*_|<])", r"\\\1", text[at:])).split("\n")


def plain(app, what, name, obj, options, lines):
    """Docstrings are plain English with `names`, not reStructuredText."""
    found, part = [], []
    for line in [*lines, ""]:
        if line.strip():
            part.append(line)
        elif part:
            found += [*paragraph(part), ""]
            part = []
    lines[:] = found


def generated(app):
    import generate

    generate.write(HERE / "generated")


def setup(app):
    app.connect("config-inited", lambda app, config: generated(app))
    app.connect("autodoc-process-docstring", plain)
