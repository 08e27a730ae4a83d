"""The registry of results: figures of configs and benchmarks beside the published ones.

    python -m benchmarks.registry          # writes benchmarks/registry.json

`make docs` makes a page of it.

Row 270 of the survey. Sources: "Measured:" and "Expected:" of the docstrings in configs/, the
tables of tasks.md and ways_*.md, the JSON records of devices, and `benchmarks.reproduced`, whose
figures have a `reference` and a `tolerance`: one that is further away is refused, and nothing is
written. Commit and date are those of the change that wrote the figure. A field that the source does
not state is null: nothing is filled in.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import reproduced
from benchmarks.reproduced import Check

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "registry.json"
HEADS = "Paper|Papers|Data|Expected|Measured|Sizes|Status|Row|Rows"
Entry = dict[str, Any]


def entry(source: str, name: str, **known: Any) -> Entry:
    """A result. `figures` are {metric: number}, `text` what the source says, `published` the
    paper's or a peer's."""
    empty = dict.fromkeys(
        (
            "rows",
            "command",
            "figures",
            "text",
            "published",
            "paper",
            "device",
            "seed",
            "date",
            "commit",
        )
    )
    beside = dict.fromkeys(("value", "word", "reference", "tolerance", "why"))
    return {"name": name, "source": source, **empty, **beside, **known}


def configs() -> Iterator[Entry]:
    """The "Measured:" notes of the configs."""
    for path in sorted((ROOT / "configs").rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))) or ""
        if not (measured := part(text, "Measured")):
            continue
        source = str(path.relative_to(ROOT))
        command = re.findall(r"`(?:python -m|ptm)[^`]+`", measured)
        numbers = re.findall(
            r"\b([a-z]+_[a-z_]+|nll|loss|baseline|perplexity) (\d+\.\d+)", measured
        )
        figures: dict[str, float] = {}
        for metric, value in numbers:
            figures.setdefault(metric, float(value))
        device = re.search(r"on (?:a )?(2|two) cores", measured)
        yield entry(
            source,
            path.stem,
            rows=[
                int(n)
                for group in re.findall(r"\bRows? ([\d, and]+)", text)
                for n in re.findall(r"\d+", group)
            ],
            command=command[0].strip("`") if command else None,
            figures=figures or None,
            text=measured,
            published=part(text, "Expected"),
            paper=part(text, "Papers?"),
            device=device and "2 CPU cores",
            **written(source, measured.split(";")[0][:40]),
        )


def part(text: str, head: str) -> str | None:
    """The words after a head of a docstring, on one line."""
    found = re.search(rf"^{head}: (.*?)(?=^(?:{HEADS}):|\n\n|\Z)", text, re.M | re.S)
    return found and " ".join(found[1].split())


def tables() -> Iterator[Entry]:
    """The rows of the tables of downstream tasks and of ways of adapting."""
    for path in sorted((ROOT / "benchmarks").glob("*.md")):
        text = path.read_text(encoding="utf8")
        block = re.search(r"^\|[^\n]*metrics \(mean ± sd\).*?(?=\n\n|\Z)", text, re.M | re.S)
        if block is None:
            continue
        lines = [
            [word.strip() for word in line.strip("|").split("|")] for line in block[0].splitlines()
        ]
        date, source = re.search(r"\d{4}-\d\d-\d\d", text), str(path.relative_to(ROOT))
        commands = [line for line in text.splitlines() if line.startswith("ptm ")]
        for cells in lines[2:]:
            row = dict(zip(lines[0], cells, strict=True))
            metrics = row["metrics (mean ± sd)"]
            numbers = re.findall(r"(\w+) (-?\d+\.\d+)", metrics)
            own = [
                line
                for line in commands
                if re.search(rf"(--task|--workdir \S*/){cells[0]}\b", line)
            ]
            seeds = int(row["seeds"])
            yield entry(
                source,
                f"{path.stem}: {cells[0]}",
                command=own[0] if own else None,
                figures={metric: float(value) for metric, value in numbers},
                text=f"{metrics}; {row['minutes']} minutes",
                seed=list(range(seeds)),
                **written(source, f"| {cells[0]} |", date and date[0]),
            )


def records() -> Iterator[Entry]:
    """The ratios of speed in the JSON records of devices; `published` is the peer's side of the
    ratio."""
    for path in sorted((ROOT / "benchmarks").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf8"))
        if path.name in ("goals.json", "registry.json") or not isinstance(
            found, list
        ):  # a benchmark's own results are objects
            continue
        for row in found:
            settings = row["settings"]
            yield entry(
                str(path.relative_to(ROOT)),
                row["name"],
                command=f"python -m benchmarks {row['name'].split('/')[0]}",
                figures={"ratio": row["ratio"]} if row.get("ratio") else None,
                text=settings.get("ratio"),
                published=", ".join(row["peers"]) if row.get("peers") else None,
                device=settings.get("device"),
                date=settings.get("date"),
                commit=settings.get("commit"),
            )


def within(checks: Iterable[Check]) -> Iterator[Entry]:
    """The figures of `benchmarks.reproduced`, computed anew. Raises ValueError for those that are
    beyond their tolerance."""
    from ptm_jax.cli import listing

    numbers: dict[str, list[int]] = {}
    for row in listing.rows():
        for value in row["values"]:
            numbers.setdefault(value, []).append(row["row"])
    off = []
    for check in checks:
        ours = check.ours()
        if not check.holds(ours):
            off.append(
                f"{check.value}, {check.figure}: {ours:g} is not within {check.tolerance:g} "
                f"of {check.reference:g}"
            )
        yield entry(
            check.page,
            f"{check.value}: {check.figure}",
            value=check.value,
            word=check.word,
            rows=numbers[check.value],
            command=check.command,
            figures={check.figure: ours},
            text=check.text,
            published=check.source,
            reference=check.reference,
            tolerance=check.tolerance,
            why=check.why,
            device=check.device,
            seed=check.seed,
            **written(check.page, check.text),
        )
    if off:
        raise ValueError("; ".join(off))


def written(source: str, text: str, date: str | None = None) -> dict[str, str | None]:
    """Date and commit of the change that brought a text into a file."""
    words = [
        "git",
        "-C",
        str(ROOT),
        "log",
        "--reverse",
        "--format=%h %cs",
        f"-S{text.split(chr(10))[0]}",
        "--",
        source,
    ]
    found = (
        subprocess.run(words, capture_output=True, text=True, check=False)
        .stdout.split("\n")[0]
        .split()
    )
    return {"commit": found[0] if found else None, "date": date or (found[1] if found else None)}


def page(entries: list[Entry]) -> str:
    """The registry as Markdown."""
    with_rows = {row for one in entries for row in one["rows"] or ()}
    lines = [
        "# Registry of results\n\nThe entries of benchmarks/registry.json, which `python -m "
        "benchmarks.registry` writes.\n",
        f"{len(entries)} entries; {len(with_rows)} rows of the survey have one. An empty cell: "
        "the source does not say.\n",
    ]
    for word, (title, note) in PARTS.items():
        held = [one for one in entries if one["word"] == word]
        rows = ", ".join(map(str, sorted({row for one in held for row in one["rows"] or ()})))
        numbers = f"{len(held)} figures" + (f" of the rows {rows}." if word else ".")
        columns = (*CLOSE, *COLUMNS[1:]) if word else COLUMNS
        lines += [f"## {title}\n", f"{numbers} {note}\n", *table(columns, held), ""]
    return "\n".join(lines)


PARTS = {
    "sized": (
        "Published sizes",
        "A number of parameters or of examples is no quality of a model. A test computes each "
        "again for the word `sized`.",
    ),
    "reproduces": (
        "Within a tolerance of a published or peer-measured figure",
        "A test computes each again for the word `reproduces`. The registry is not written if a "
        "figure is further away than its tolerance.",
    ),
    None: (
        "All others",
        "`published` is the paper's figure at its own size and data, or the peers of a ratio. A "
        "miniature has another size.",
    ),
}
"""{word: title and note of the part of the page}."""
COLUMNS = ("name", *"rows figures published command device seed date commit source".split())
CLOSE = ("value", "reference", "tolerance", "why")


def table(columns: tuple[str, ...], entries: list[Entry]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return lines + [f"| {' | '.join(cell(one[name]) for name in columns)} |" for one in entries]


def cell(value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name} {cell(number)}" for name, number in value.items())
    elif isinstance(value, list):
        value = ", ".join(map(str, value))
    elif isinstance(value, float):
        value = f"{value:.4g}"
    elif isinstance(value, int) and value > 9999:
        value = f"{value:,}"
    return str(value or ("" if value != 0 else 0)).replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """Writes the file."""
    entries = [*within(reproduced.checks()), *configs(), *tables(), *records()]
    text = json.dumps(entries, indent=1, ensure_ascii=False) + "\n"
    FILE.write_text(text, encoding="utf8")
    print(f"{len(entries)} entries")


if __name__ == "__main__":
    main()
