"""A page for each family of systems, from its record, its notebook in `configs/`, and the words
that its tests earned."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path
from typing import Any

import family_words
import tables

ROOT = Path(__file__).resolve().parents[1]

_LINES = (Path(__file__).parent / "family_lines.txt").read_text("utf8")
FAMILIES = {
    page: (
        title,
        shown,
        None if parent == "-" else parent,
        None if config == "-" else config,
        pattern,
    )
    for page, title, shown, parent, config, pattern in (
        line.split(", ") for line in _LINES.splitlines()
    )
}
"""{page: (title, system that is shown, its parent (None: it begins a line), config, pattern of the
family's names)}."""
MEASURED = {
    "bert": r"step|layer/\d+|lengths|packing|vocabulary",
    "roberta": "roberta_large",
    "gpt2": r"generate/\d+",
    "megatron": r"megatron_\w+",
    "turing_nlg": "turing_nlg",
    "t5": "t5_11b",
}
"""{page: first cells of the lines of `benchmarks/*.md` that measure or model the family}."""
FIGURES = {
    "bert": {
        "amd-epyc-avx512-bf16-2-cores": "training steps beside torch",
        "tasks": "tasks of a small model beside torch",
    },
    "word2vec": {"word_vectors": "quality beside gensim", "word_vector_speed": "speed"},
    "glove": {"word_vectors": "quality of word vectors"},
    "fasttext": {"word_vectors": "quality beside gensim", "word_vector_speed": "speed"},
    "triples": {"links": "completion of triples beside pykeen"},
    "lstm": {"recurrent_speed": "speed beside torch and Flax"},
    "elmo": {"recurrent_features": "what its features bring to tasks"},
    "flair": {"recurrent_features": "what its features bring to tasks"},
    "ulmfit": {"ulmfit": "settings and results"},
    "cove": {"cove": "settings and results"},
    "ld_net": {"kept_layers": "settings and results"},
    "senna": {"embedding_transfer": "taggers with given and random vectors"},
}
"""{page: {page of benchmarks: its question}} of families without a notebook in `configs/`."""
QUIET = re.compile(r"name|paper|section|rows|group|.*\bvocab\.\w+|.*\binitializer(\.\w+)?")
"""Paths of a difference that no page shows: the description, ids of special tokens, initial
scales."""


def pages() -> dict[str, str]:
    """Returns {file: text} of the index and of every family. Raises ValueError for a system without
    a family."""
    from ptm_jax import systems
    from ptm_jax.systems.survey.rows import status

    names = {
        page: [n for n in systems.names() if re.fullmatch(FAMILIES[page][-1], n)]
        for page in FAMILIES
    }
    if lost := set(systems.names()) - {name for several in names.values() for name in several}:
        raise ValueError(
            f"systems without a page: {', '.join(sorted(lost))}; add them to FAMILIES in "
            "docs/families.py"
        )
    found = {f"families/{page}.md": _page(page, several) for page, several in names.items()}
    index = [
        "# Families",
        "",
        "One page a family: what it is, the command that trains it, a measured figure, and what "
        "differs from its parent.",
        "",
    ]
    index += ["| family | paper | parent | systems | status |", "| --- | --- | --- | --- | --- |"]
    for page, (title, shown, parent, *_) in FAMILIES.items():
        words = dict.fromkeys(word for name in names[page] for word in status().get(name, {}))
        cells = [
            f"[{title}]({page}.md)",
            systems.get(shown).paper,
            f"`{parent}`" if parent else "",
            str(len(names[page])),
        ]
        index.append(f"| {' | '.join([*cells, ' '.join(words)])} |")
    tree = "\n".join(FAMILIES)
    found["families/index.md"] = "\n".join(index) + f"\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    return found


def _page(page: str, names: list[str]) -> str:
    from ptm_jax import systems
    from ptm_jax.systems.survey.rows import status

    title, shown, parent, config, _ = FAMILIES[page]
    system, note = systems.get(shown), _notebook(config) if config else {}
    words = list(dict.fromkeys(word for name in names for word in status().get(name, {})))
    parts = [
        f"# {title}",
        f"{family_words.texts()[page]} {family_words.sizes(names, _published(), words)}",
        f"Paper: {system.paper}. Survey: section {system.section}.",
        f"```\n{_command(note, names)}\n```",
        _figure(page, note, names),
    ]
    if parent:
        parts += [
            f"## Differences from `{parent}`",
            "\n".join(family_words.differences(systems.get(parent), system)),
        ]
    parts += ["## Sizes and status", _sizes(names), "## Oracle", _oracle(names)]
    if len(note.get("commands", "").splitlines()) > 1:
        parts += ["## Commands", f"```\n{note['commands']}\n```"]
    parts += [f"## {name}\n\n{note[name]}" for name in ("Data", "Expected") if name in note]
    if page in MEASURED:
        parts += ["## Speed", *_measured(MEASURED[page])]
    parts += ["## The record", _record(parent, shown)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _command(note: dict[str, str], names: list[str]) -> str:
    """The command that trains the family's smallest system on the reader's own text."""
    for line in note.get("commands", "").splitlines():
        if "_mini " in line:
            return line
    name = next((name for name in names if re.search("mini|tiny|L2_H128", name)), names[0])
    return f"ptm train {name} --data TEXT --workdir runs/{name}"


def _figure(page: str, note: dict[str, str], names: list[str]) -> str:
    """The measured figure of a family: its notebook's, else the page of a benchmark, else the
    date of the training or the comparison that passed."""
    from ptm_jax.systems.survey.rows import WORDS, status

    if "Measured" in note:
        return f"**Measured:** {note['Measured']}"
    links = [f"[{word}](../benchmarks/{stem}.md)" for stem, word in FIGURES.get(page, {}).items()]
    passed = [(name, status()[name]["trains"][0]) for name in names if "trains" in status()[name]]
    if passed:
        name, date = passed[0]
        links.append(
            f"the loss of `{name}` on real text was below the baseline that the test computes "
            f"({date})"
        )
    elif not links:
        equal = [name for name in names if "matches" in status()[name]]
        texts = [f"`{name}` {WORDS['matches']} ({status()[name]['matches'][0]})" for name in equal]
        links += texts[:1]
    return f"**Measured:** {'; '.join(links)}." if links else "**Measured:** nothing yet."


def _record(parent: str | None, shown: str) -> str:
    """The fields of the record that differ from the parent, folded."""
    from ptm_jax import systems

    if not parent:
        return f"`ptm show {shown}` prints the record; other families are changes of it."
    table = _differences(systems.get(parent), systems.get(shown), parent, shown)
    summary = f"All fields that differ from <code>{parent}</code>"
    return f"<details>\n<summary>{summary}</summary>\n\n{table}\n\n</details>"


def _measured(pattern: str) -> list[str]:
    """The lines of tables of `benchmarks/*.md` whose first cell is of the pattern, each table under
    its header."""
    found = []
    for path in sorted((ROOT / "benchmarks").glob("*.md")):
        lines = path.read_text(encoding="utf8").splitlines()
        head = next(
            (i for i, line in enumerate(lines) if line.startswith(("| benchmark", "| config"))),
            None,
        )
        rows = [line for line in lines if re.match(rf"\| ({pattern}) \|", line)]
        if head is not None and rows:
            text = tables.readable("\n".join([*lines[head : head + 2], *rows]) + "\n")
            found.append(f"From [{path.stem}](../benchmarks/{path.name}):\n\n{text}")
    return found


def _notebook(config: str) -> dict[str, str]:
    """{part: text} of the docstring of `configs/NAME.py`: "" the first line, commands, Data,
    Expected, Measured."""
    text = ast.get_docstring(
        ast.parse((ROOT / "configs" / f"{config}.py").read_text(encoding="utf8"))
    )
    first, _, rest = text.partition("\n")
    found = {
        "": re.sub(r" Rows? [\d, ]+\.$", "", first),
        "commands": "\n".join(re.findall(r"^ {4}(ptm .*)", text, re.M)),
    }
    for name, body in re.findall(
        r"^(Data|Expected|Measured): (.*?)(?=^[A-Z][a-z]+: |\Z)", rest, re.M | re.S
    ):
        found[name] = f"{found[name]}\n\n{body.strip()}" if name in found else body.strip()
    return found


def _differences(parent, system, one: str, other: str) -> str:
    from ptm_jax.core import spec

    def short(value):
        return (line := spec.to_line(value))[:300] + ("…" if len(line) > 300 else "")

    def code(text):
        return "" if text == "'(absent)'" else "`` " + text.replace("|", "\\|") + " ``"

    found = [
        (path, short(a), short(b))
        for path, a, b in spec.differences(parent, system)
        if not QUIET.fullmatch(path)
    ]
    found.sort(key=lambda row: row[0].startswith("towers"))
    lines = [f"| field | `{one}` | `{other}` |", "| --- | --- | --- |"]
    lines += [f"| `{path}` | {code(a)} | {code(b)} |" for path, a, b in found]
    full = (
        f"Special ids and initial scales are left out here; `ptm show {one} --diff {other}` "
        "prints them too."
    )
    return "\n".join(lines) + f"\n\n{full}"


def _sizes(names: list[str]) -> str:
    from ptm_jax import systems
    from ptm_jax.core import spec
    from ptm_jax.systems.survey.rows import status

    exact = _published()
    lines = [
        "| system | layers | width | heads | vocabulary | parameters | status |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        record = spec.to_json(systems.get(name).towers["main"])
        sizes = [_first(record, "layers"), _width(record), _first(record, "heads")]
        vocab = (_first(record, "vocab") or {}).get("size", "")
        count = f"{exact[name]:,}" if name in exact else ""
        words = ", ".join(f"{word} ({date})" for word, (date, _) in status().get(name, {}).items())
        cells = [
            f"`{name}`",
            *("" if x is None else str(x) for x in sizes),
            f"{vocab:,}" if vocab else "",
            count,
            words,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return (
        "\n".join(lines)
        + "\n\n`ptm show NAME` counts the parameters of any system. A test compares "
        "those above with the released ones."
    )


def _width(record):
    """The width of the layers, or that of the table where no layer states one."""
    encoder = record.get("encoder", record) if isinstance(record, dict) else record
    layers = {key: part for key, part in encoder.items() if key not in ("embed", "width")}
    return _first(layers, "width") or _first(record, "width")


def _first(record, key: str):
    """The first value of `key` in a record, outermost first; None if there is none."""
    level = [record]
    while level:
        inner = []
        for part in level:
            if isinstance(part, dict):
                if key in part and not isinstance(part[key], bool) and part[key] is not None:
                    if key == "vocab" or isinstance(part[key], int):
                        return part[key]
                inner += part.values()
            elif isinstance(part, list):
                inner += part
        level = inner
    return None


def _published() -> dict[str, int]:
    """The published sizes of benchmarks/published_sizes.py and tests/systems/test_sizes.py, by
    their texts.

    Constants in capitals are computed in the order of the file, from those before them and `sum`
    alone."""
    known: dict[str, Any] = {"__builtins__": {"sum": sum}}
    for file in ("benchmarks/published_sizes.py", "tests/systems/test_sizes.py"):
        for node in ast.parse((ROOT / file).read_text(encoding="utf8")).body:
            if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name):
                if name.id.isupper():
                    with contextlib.suppress(NameError):  # of one that no size reads
                        known[name.id] = eval(
                            compile(ast.Expression(node.value), file, "eval"), known
                        )
    return {name: size for name, size in known["EXACT"].items() if name not in known["LEFT_OUT"]}


def _oracle(names: list[str]) -> str:
    """What the outputs, losses and gradients are compared with, with date and commit of the run."""
    from ptm_jax.systems.survey.rows import WORDS, status

    lines = []
    for word in ("matches", "reproduces", "sized", "trains"):
        earned = [name for name in names if word in status().get(name, {})]
        if earned:
            dates = sorted({status()[name][word][0] for name in earned})
            commits = dict.fromkeys(status()[name][word][1].rstrip("+") for name in earned)
            lines.append(
                f"- **{word}** ({WORDS[word]}): {', '.join(f'`{name}`' for name in earned)}; "
                f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, commit "
                f"{', '.join(f'`{commit}`' for commit in commits)}."
            )
    note = {
        True: "Hugging Face Transformers is the independent implementation of `matches`; "
        "`tests/encoders` has the tests."
    }
    return (
        "\n".join([*lines, "", note.get(any("**matches**" in line for line in lines), "")]).strip()
        or "No test has earned more than `built`."
    )
