"""Pages of results: a table first, then at most five sentences, and all pages in the index."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
OF_DEVICES = re.compile(r"(.*-cores|device)\.md")
"""Pages of all benchmarks of a device, with a list of settings for each row."""
MODELLED = ("weak_scaling.md",)
"""Its columns and its machines are described below the table."""


def prose(text):
    """The text of a page without titles, tables, code, pictures and lists of commands."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    lines = [line for line in text.splitlines() if not re.match(r"#|\||!\[|    |- ", line)]
    return " ".join(" ".join(lines).split())


def sentences(text):
    """The number of sentences: ends before a capital, a quote, a digit or the end of the text."""
    bare = re.sub(r"`[^`]*`", "code", text)
    return len(re.findall(r"[.?!](?= [A-Z\"`0-9]| code|$)(?<!et al\.)(?<!sec\.)(?<!Eq\.)", bare))


@pytest.mark.parametrize("page", [page for page in PAGES if not OF_DEVICES.fullmatch(page)])
def test_a_page_begins_with_a_table_and_a_part_has_at_most_five_sentences(page):
    text = (FOLDER / page).read_text(encoding="utf8")
    blocks = [block for block in re.split(r"\n\n+", text) if not block.startswith("#")]
    assert blocks[0].startswith("| "), "a table stands first"
    if page not in MODELLED:
        for part in re.split(r"^## ", text, flags=re.M):
            assert sentences(prose(part)) <= 5, prose(part)


def test_the_index_has_every_page():
    index = (FOLDER / "README.md").read_text(encoding="utf8")
    assert {*re.findall(r"\]\(([\w-]+\.md)\)", index)} == {*PAGES} - {"README.md"}
