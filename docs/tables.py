"""Tables of benchmarks as the site shows them: rounded numbers, no column that says the same in
every line, lines without a peer apart from the others, single runs folded."""

from __future__ import annotations

import math
import re

NUMBER = re.compile(r"(?<![\w.,-])-?\d+\.\d+(?![\w.,]*[\w])")
"""A decimal number that stands alone, as 17242751.0000; not a version, not a part of a name."""
FIGURE = re.compile(r"[-+]?[\d.,]*(?:e-?\d+)?( ± [\d.,]+)?( ?%| m?s)?")
"""A cell of figures alone, or an empty one."""
SPREAD = re.compile(r"(?<![\w.,-])(-?[\d,]+(?:\.\d+)?) ± (\d+\.\d{3,})(?![\w.,]*\w)")
"""A mean and its deviation with more digits than are read."""
DIGITS = 4
FEW = 4
"""Lines of a table from which a column of one value is stated below it."""
Row = list[str]


def page(text: str, name: str) -> str:
    """Returns the page of a file of `benchmarks/` with readable tables. A line at its end says
    where all digits are, if numbers were rounded."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    note = f"\nNumbers are rounded here; `benchmarks/{name}` has all digits.\n"
    return readable(text) + (note if any(rounded(line) != line for line in lines) else "")


def readable(text: str) -> str:
    """Returns a Markdown page whose tables are easy to read."""
    blocks = re.split(r"((?:^\|.*\n?)+)", text, flags=re.M)
    heading, parts = "", []
    for block in blocks:
        if not block.startswith("|"):
            heading = (re.findall(r"^#+ (.*)$", block, re.M) or [heading])[-1]
            parts.append(block)
            continue
        shown = _table(block)
        lines = block.count("\n") - 2
        if heading == "Runs":
            shown = f"<details>\n<summary>{lines} runs</summary>\n\n{shown}\n\n</details>\n"
        parts.append(shown)
    return "".join(parts)


def rounded(cell: str) -> str:
    """Returns a cell with numbers of at most four significant digits; a deviation of zero goes."""

    def short(found: re.Match) -> str:
        value = float(found[0])
        text = f"{value:,.0f}" if abs(value) >= 10 ** (DIGITS - 1) else f"{value:.{DIGITS}g}"
        same = len(found[0].lstrip("-").replace(".", "").lstrip("0")) <= DIGITS
        return found[0] if same and not re.search(r"\.0{4,}$", found[0]) else text

    return re.sub(r" ± 0(?![\d.])", "", NUMBER.sub(short, SPREAD.sub(_spread, cell)))


def _spread(found: re.Match) -> str:
    """A deviation with two significant digits, and its mean with as many decimals.
    A mean from 1,000 on has none."""
    mean, deviation = float(found[1].replace(",", "")), float(found[2])
    if not deviation:
        return found[1]
    large = abs(mean) >= 10 ** (DIGITS - 1)
    decimals = 0 if large else max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:,.{decimals}f} ± {deviation:,.{decimals}f}"


def _cells(line: str) -> Row:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _table(block: str) -> str:
    """A table without columns of one value, and one for the lines without a peer."""
    head, rule, *rows = [_cells(line) for line in block.splitlines() if line.strip()]
    rows = [[rounded(cell) for cell in row] for row in rows]
    if len(rows) < FEW or any(len(row) != len(head) for row in rows):
        return _text(head, rule, rows)
    constant = [
        column
        for column in range(1, len(head))
        if head[column] and len({row[column] for row in rows}) == 1
    ]
    left = [column for column in range(len(head)) if column not in constant]
    named = [f"{head[column]} {rows[0][column]}" for column in constant if rows[0][column]]
    peer = next((column for column in left if head[column].startswith("peer")), None)
    groups = [rows]
    if peer is not None:
        groups = [[row for row in rows if bool(row[peer]) is has] for has in (True, False)]
    texts = [_text(*_chosen(head, rule, group, left)) for group in groups if group]
    note = f"\nIn all lines: {'; '.join(named)}.\n" if named else ""
    return "\nWithout a peer:\n\n".join(texts) + note


def _chosen(head: Row, rule: Row, rows: list[Row], columns: list[int]) -> tuple[Row, Row, list]:
    """The columns that have a value in one of the rows."""
    used = [column for column in columns if any(row[column] for row in rows) or column == 0]
    chosen = [[row[column] for column in used] for row in (head, rule, *rows)]
    return chosen[0], chosen[1], chosen[2:]


def _text(head: Row, rule: Row, rows: list[Row]) -> str:
    """The table in Markdown; columns of numbers are set at the right."""
    numeric = [
        bool(rows) and all(FIGURE.fullmatch(row[n]) for row in rows if n < len(row))
        for n in range(len(head))
    ]
    pairs = zip(numeric, rule, strict=True)
    rule = ["---:" if right and n else side for n, (right, side) in enumerate(pairs)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))
