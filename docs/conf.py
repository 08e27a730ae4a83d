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
highlight_language = "text"  # a block without a language is a command or its output
toc_object_entries = (
    False  # a page has thousands of them, and the sidebar of every page would copy them
)
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
autodoc_mock_imports = ["apache_beam"]
maximum_signature_line_length = 80
autodoc_default_options = {"members": True}
suppress_warnings = ["ref.python"]  # a type in a signature that two classes have by name
html_theme = "furo"
html_title = "ptm_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "_static" / "scorer.js")
html_copy_source = html_show_sourcelink = False
html_show_sphinx = False

INLINE = re.compile(r"(`+)(.+?)\1")


PARAMETER = re.compile(r"([\w.*]+(?:, [\w.*]+)*) {2,}(\S.*)")
"""A line of the columns of a docstring: names, at least two blanks, their meaning."""


def parameters(lines):
    """Columns of names and meanings as a definition list, or None for another paragraph."""
    items = []
    for line in lines:
        if found := PARAMETER.fullmatch(line):
            items.append([found[1], found[2]])
        elif items and line[:4].isspace():
            items[-1][1] += f" {line.strip()}"
        else:
            return None
    parts = [
        [", ".join(f"``{name}``" for name in names.split(", ")), f"    {inline(text)}", ""]
        for names, text in items
    ]
    return [line for part in parts for line in part]


def paragraph(lines):
    """A paragraph of a docstring as reStructuredText: columns become definitions, examples keep
    their layout, names in `` ` `` are code."""
    if definitions := parameters(lines):
        return definitions
    first = lines[0]
    if first[:1].isspace() or any(
        re.search(r"\S {2,}\S|^\s|^[-*] |^\d+\. ", line) for line in lines
    ):
        return [".. code-block:: text", "", *(f"    {line}" for line in lines)]
    return inline("\n".join(lines)).split("\n")


def inline(text):
    """Text with `names` as reStructuredText."""
    out, at = "", 0
    for found in INLINE.finditer(text):
        out += re.sub(r"([\\*_|<])", r"\\\1", text[at : found.start()])
        after = text[found.end() : found.end() + 1]
        out += f"``{' '.join(found[2].split())}``" + ("\\ " if re.match(r"[\w(]", after) else "")
        at = found.end()
    return out + re.sub(r"([\\*_|<])", r"\\\1", text[at:])


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


PLACES = {
    "../benchmarks/": "generated/benchmarks/",
    "../notebooks/": "generated/notebooks/",
    "../CONTRIBUTING.md": "generated/contributing.md",
}
"""Links of the pages to files of the checkout, which the site has among its generated pages."""


def site_links(app, docname, source):
    """Links to files of the checkout lead to the pages of the site."""
    if not docname.startswith("generated/"):
        for place, page in PLACES.items():
            source[0] = source[0].replace(f"]({place}", f"]({page}")


def generated(app):
    import generate

    generate.write(HERE / "generated")


def setup(app):
    app.connect("config-inited", lambda app, config: generated(app))
    app.connect("source-read", site_links)
    app.connect("autodoc-process-docstring", plain)
