"""Pages that are made from values of the package: families, objectives, tasks, adaptations, rows,
errors, modules."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import families
import front
import tables

from benchmarks import registry

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "core": "types system slots networks recipe precision spec paths towers streams errors fields",
    "statistics": "",
    "knowledge": "",
    "data": "rows text tokenizers",
    "corruptions": "",
    "objectives": "",
    "mesh": "",
    "kernels": "reference choice",
    "nn": "blocks layers attention embeddings heads",
    "encoders": "",
    "adapt": "",
    "compress": "",
    "systems": "survey/compose survey/matrix survey/pods",
    "convert": "checkpoint family table adapterfile",
    "training": "loop steps/step updates/optimizers updates/schedules checkpoints",
    "runs": "",
    "inference": "",
    "tasks": "catalogue evaluating kinds",
    "tuning": "",
    "plan": "planning estimate roofline search",
    "launch": "job hardware",
}
"""{package: its modules and folders whose docstrings are shown; none: all of them}."""
PURPOSES = {
    "core": "The values that everything else is made of: systems, recipes, types, parameter paths, "
    "random streams, precision, and specs, which are read, changed, compared and recorded.",
    "statistics": "Facts of a corpus as arrays: counts, bigrams, co-occurrences, Huffman codes, "
    "hashed n-grams and trees of sentences.",
    "knowledge": "Facts of the world: graphs and their store, lexicons, triples, mentions, word "
    "vectors in files, and English words.",
    "data": "From text to batches: sources of text, tokenizers, corpora on disk, and how rows are "
    "cut.",
    "corruptions": "Changes of a batch inside the compiled step: what is hidden, replaced or moved "
    "before the model reads it.",
    "mesh": "Devices: the mesh, and the tables that lay parameters and activations over it.",
    "kernels": "Attention, cross-entropy and softmax: the definitions, and which implementation a "
    "device takes.",
    "objectives": "Losses: they run the networks on a batch and return a sum and a weight.",
    "nn": "Layers with slots: embeddings, attention, blocks and heads.",
    "encoders": "Networks from a batch to the states of its tokens.",
    "adapt": "Adaptations of a pre-trained model, such as adapters and LoRA: values around an "
    "unchanged model.",
    "compress": "Smaller models from a trained one: pruning, whole numbers, distillation and "
    "students.",
    "systems": "The catalogue of systems, and how two of them are combined.",
    "convert": "Checkpoints of Hugging Face and of other libraries, in both directions.",
    "training": "The training step, the loop, optimizers, schedules and checkpoints.",
    "runs": "The folder of a run as a value: record, tokenizer, checkpoints, import, export, "
    "average.",
    "inference": "Using a model: encode, fill masks, classify, tag, answer, generate, search.",
    "tasks": "Downstream tasks: their files, their kinds and their metrics.",
    "tuning": "Fine-tuning, several tasks at once, model selection, and studies of many runs.",
    "plan": "A training step compiled or modelled for hardware that is not there.",
    "launch": "Jobs on several hosts: scripts of clusters, and hardware by name.",
}
"""{package: what it has}, the first sentence of its page."""


def write(out: Path) -> None:
    """Writes every page below `out`, which is emptied first."""
    shutil.rmtree(out, ignore_errors=True)
    pages = {
        **families.pages(),
        **{f"{name}.md": page() for name, page in PAGES.items()},
        **_modules(),
    }
    for name, text in pages.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf8")
    shutil.copytree(
        ROOT / "notebooks",
        out / "notebooks",
        ignore=lambda _, names: [n for n in names if not n.endswith(".ipynb")],
    )
    for path in (ROOT / "benchmarks").glob("*.md"):
        (out / "benchmarks").mkdir(exist_ok=True)
        (out / "benchmarks" / path.name).write_text(
            tables.page(unlinked(path.read_text(encoding="utf8")), path.name), encoding="utf8"
        )
    entries = json.loads(registry.FILE.read_text(encoding="utf8"))
    (out / "benchmarks" / "registry.md").write_text(registry.page(entries), encoding="utf8")
    for path in (ROOT / "benchmarks").glob("*.png"):
        shutil.copy(path, out / "benchmarks" / path.name)
    (out / "drawing.html").write_text(front.drawing(), encoding="utf8")
    (out / "figures.html").write_text(front.figures(), encoding="utf8")
    for name in ("CONTRIBUTING", "CHANGELOG"):
        (out / f"{name.lower()}.md").write_text(
            unlinked((ROOT / f"{name}.md").read_text(encoding="utf8")), encoding="utf8"
        )


def table(head: str, rows) -> str:
    """A Markdown table; `head` has the columns, separated by "|"."""
    names = head.split("|")
    lines = [
        names,
        ["---"] * len(names),
        *([str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def unlinked(text: str) -> str:
    """A page of the repository on the site: links to files that are not pages become names."""
    return re.sub(r"\[([^\]]+)\]\((?!http|#)[^)]*(?<!png)\)", r"`\1`", text)


def objectives() -> str:
    """Pre-training tasks: the value of each slot, the fields of a row before and after the
    corruption, the measures."""
    from ptm_jax import systems
    from ptm_jax.cli.list_pages import label
    from ptm_jax.core import slots
    from ptm_jax.objectives.base import corruptions_of
    from ptm_jax.systems.survey.matrix import TASKS

    parts, purposes = [], {}
    for task, name in TASKS.items():
        system = systems.get(name)
        vocab = slots.encoder_in(system.towers["main"]).embeddings.vocab
        fields = ", ".join(
            f"`{field}`" for field in system.examples.spec(system.recipe.phases[0].length, vocab)
        )
        made = " then ".join(f"`{label(part)}`" for part in corruptions_of(system)) or "none"
        parts.append(
            f"## {task}\n\nA system with it is `{name}`.\n\n"
            f"- rows are cut by `{label(system.examples)}`\n- their fields: {fields}\n"
            f"- corruption: {made}\n- objective: `{label(system.objective)}`\n"
        )
        inner = [part for _, part in getattr(system.objective, "parts", ())] or [system.objective]
        purposes |= {
            label(part): " ".join((type(part).__doc__ or "").split("\n\n")[0].split())
            for part in inner
        }
    lines = "".join(f"`{name}`\n: {what}\n\n" for name, what in purposes.items())
    body = "\n".join(parts)
    return f"# Table of pre-training tasks\n\n{body}\n## Objectives\n\n{lines}"


def matrix() -> str:
    """Which encoder works with which task, and the reasons where it does not."""
    from ptm_jax.systems.survey import matrix

    cells = matrix.cells()
    reasons = list(dict.fromkeys(why for why in cells.values() if why))

    def mark(why):
        return str(reasons.index(why) + 1) if why else "yes"

    rows = [[task, *(mark(cells[name, task]) for name in matrix.ENCODERS)] for task in matrix.TASKS]
    cells = table("task|" + "|".join(matrix.ENCODERS), rows)
    return (
        f"# Encoders and tasks\n\nA number is a reason below the table.\n\n{cells}\n"
        + "\n".join(f"{number}. {why}" for number, why in enumerate(reasons, 1))
        + "\n"
    )


def tasks() -> str:
    """The downstream tasks, values of `--task`."""
    from ptm_jax.cli.list_pages import label
    from ptm_jax.tasks.catalogue import catalogue

    groups: dict[str, list] = {}
    for task in map(catalogue.get, catalogue.names()):
        groups.setdefault(task.group or "Other tasks", []).append(task)
    parts = []
    for group, members in groups.items():
        papers = {task.paper for task in members}
        head = "name|examples|metrics|length|batch|epochs" + ("|paper" if len(papers) > 1 else "")
        rows = [
            [
                f"`{task.name}`",
                f"`{label(task.examples)}`",
                ", ".join(task.metrics),
                task.length,
                task.batch,
                f"{task.epochs:g}",
                *([task.paper] if len(papers) > 1 else []),
            ]
            for task in members
        ]
        paper = f"Paper: {papers.pop()}.\n\n" if len(papers) == 1 else ""
        parts.append(f"## {group}\n\n{paper}{table(head, rows)}")
    return (
        "# Downstream tasks\n\nValues of `--task` of `ptm train`, `evaluate`, `predict`. "
        "Length (in tokens), batch and epochs are defaults of fine-tuning.\n\n" + "\n".join(parts)
    )


def adaptations() -> str:
    """The adaptations, values of `--adapt`."""
    from ptm_jax.adapt.catalogue import entries

    parts = []
    for one in entries():
        fields = ", ".join(f"{name}={value!r}" for name, value in one["fields"].items())
        parts.append(f"## {one['name']}\n\n`--adapt '{one['name']}({fields})'`\n\n{one['what']}\n")
    return (
        "# Table of adaptations\n\nValues of `--adapt` with their fields and defaults.\n\n"
        + "\n".join(parts)
    )


def rows() -> str:
    """The rows of the survey with the values that implement them and the words that tests
    earned."""
    from ptm_jax.cli.list_pages import fold
    from ptm_jax.cli.listing import rows
    from ptm_jax.systems.survey.rows import WORDS

    found, blocks = rows(), {}
    for one in found:
        words = []
        for word in one["status"]:
            date, commit = max(
                (each["date"], each["commit"]) for each in one["earned"] if each["word"] == word
            )
            words.append(f"{word} ({date}, {commit})")
        cells = [one["row"], one["name"], one["kind"], fold(one["values"]), ", ".join(words)]
        blocks.setdefault(f"## {one['table']}: {one['group']}", []).append(cells)
    meanings = "".join(f"`{word}`\n: {what}\n\n" for word, what in WORDS.items())
    lines = [
        f"{title}\n\n{table('row|name|kind|values|status', cells)}"
        for title, cells in blocks.items()
    ]
    return f"# The survey's rows\n\n{meanings}\n" + "\n".join(lines)


LANGUAGES = {
    **dict.fromkeys(range(128, 133), "Chinese"),
    133: "Russian",
    134: "French",
    135: "French",
    136: "Finnish",
    137: "Dutch",
    138: "Dutch",
    139: "Arabic",
    140: "Japanese",
    141: "Bulgarian, Czech, Polish, Russian",
}
"""{row of the survey: the languages of its systems}."""


def languages() -> str:
    """The systems of one language, or of a few, and how each reads text."""
    from ptm_jax import systems

    found = {}
    for name in systems.names():
        system = systems.get(name)
        for number in {*system.rows} & LANGUAGES.keys():
            spec = system.tokenizer
            cased = "" if not spec.lowercase else "lower case, "
            cased += "" if spec.strip_accents or not spec.lowercase else "with accents, "
            cut = f" of {spec.segmenter}'s words" if spec.segmenter else ""
            cells = f"`{name}`", f"{cased}{spec.kind}{cut}, {spec.vocab:,}", system.paper
            found.setdefault(LANGUAGES[number], []).append(cells)
    lines = [
        f"## {language}\n\n{table('system|tokenizer|paper', found[language])}"
        for language in sorted(found)
    ]
    return "# Systems by language\n\n" + "\n".join(lines)


RAISED = ("UserError", "CellError")


def errors() -> str:
    """Every message of a UserError in the package, by the folder that raises it."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "ptm_jax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", getattr(node.func, "attr", "")) in RAISED
                and node.args
            ):
                if len(text := _message(node.args[0])) > 12:
                    found.setdefault(
                        path.relative_to(ROOT).parts[1].removesuffix(".py"), set()
                    ).add(text)
    blocks = "\n".join(
        f"## {package}\n\n```text\n" + "\n".join(sorted(lines)) + "\n```\n"
        for package, lines in sorted(found.items())
    )
    head = (
        "A message is one line on stderr after `ptm:`, or the text of a `UserError` in "
        "Python; `...` is what was given."
    )
    return f"# Index of error messages\n\n{head}\n\n{blocks}"


def _message(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_message(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _message(node.left) + _message(node.right)
    return "..."


def _modules() -> dict[str, str]:
    """Pages of the API reference, one for each package, with its modules."""
    pages = {}
    for package, chosen in PACKAGES.items():
        folder = ROOT / "ptm_jax" / package
        inside = chosen.split() or sorted(
            path.name.removesuffix(".py") for path in folder.iterdir() if path.name[0] not in "_."
        )
        found = [
            path
            for part in inside
            for path in (*sorted((folder / part).rglob("*.py")), folder / f"{part}.py")
            if path.is_file()
        ]
        blocks = []
        for path in found:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            members = "   :no-members:\n" if path.name == "__init__.py" else ""
            blocks.append(f"## {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n{members}```\n")
        text = f"{PURPOSES[package]}\n\n{_classes(found)}" + "\n".join(blocks)
        pages[f"api/{package}.md"] = f"# ptm_jax.{package}\n\n{text}"
    return pages


def _classes(paths: list[Path]) -> str:
    """A table of the public classes of modules, in their order, with their purpose."""
    rows = []
    for path in paths:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if path.name == "__init__.py":
            continue
        for node in ast.parse(path.read_text(encoding="utf8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                link = f"{{py:class}}`{node.name} <{module}.{node.name}>`"
                inside = ".".join(module.split(".")[2:])
                rows.append([link, _sentence(ast.get_docstring(node) or ""), f"`{inside}`"])
    return table("class|purpose|module", rows) + "\n" if rows else ""


def _sentence(text: str) -> str:
    """The first sentence of a docstring, with signs of Markdown and HTML outside code escaped."""
    first = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<!et al)(?<!Eq)(?<=\.) (?=[A-Z])", first)[0]
    pieces = re.split(r"(`[^`]*`)", sentence)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\[\]*_<>$\\{}])", r"\\\1", piece)
        for piece in pieces
    )


PAGES = {
    "objectives": objectives,
    "matrix": matrix,
    "tasks": tasks,
    "adaptations": adaptations,
    "rows": rows,
    "languages": languages,
    "errors": errors,
}
