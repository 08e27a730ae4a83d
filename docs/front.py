"""The drawing and the figures of the first page, from the record of a system and the tables of
`benchmarks/`."""

from __future__ import annotations

import html
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = "bert_mini"
"""The system that the drawing takes apart."""


def stations() -> list[tuple[str, str, str, str]]:
    """Returns (station, value that leaves it, class of the record, page) in the order of a step."""
    from ptm_jax import systems

    system = systems.get(SHOWN)
    model = system.towers["main"]
    return [
        ("text", "The cat sat.", "--data FILE", "pretraining.html"),
        ("rows", "the cat sat . [SEP]", _class(system.examples), "objectives.html"),
        ("corruption", "the [MASK] sat .", _class(system.corruption), "objectives.html"),
        ("encoder", "states [B, L, D]", _class(model.encoder), "systems.html"),
        ("head", "logits [B, P, V]", _class(model.heads["mlm"]), "systems.html"),
        ("objective", "loss: sum, weight", _class(system.objective), "objectives.html"),
    ]


def _class(value) -> str:
    return type(value).__name__


def drawing() -> str:
    """Returns two inline SVGs of one drawing: in a row for wide windows, in a column for narrow
    ones."""
    label = f"How {SHOWN} is put together: " + ", ".join(
        f"{name} ({part})" for name, _, part, _ in stations()
    )
    return f'<figure class="drawing">{_wide(label)}{_tall(label)}</figure>'


def _box(x: int, y: int, size: tuple[int, int], station) -> str:
    """A linked box with the name of a station, its class, and the value that leaves it."""
    name, value, part, page = (html.escape(text) for text in station)
    width, height = size
    if width > height * 3:  # a line of the column
        at = ((x + 12, y + 20), (x + 12, y + 37), (x + width - 12, y + 28))
        value_class = "value end"
    else:
        middle = x + width // 2
        at = ((middle, y + 22), (middle, y + 41), (middle, y + height + 20))
        value_class = "value"
    texts = zip(at, (name, part, value), ("name", "part", value_class), strict=True)
    lines = "".join(f'<text x="{a}" y="{b}" class="{c}">{t}</text>' for (a, b), t, c in texts)
    return (
        f'<a href="{page}"><rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        f"{lines}</a>"
    )


def _wide(label: str) -> str:
    parts, step, width = [], 148, 124
    for number, station in enumerate(stations()):
        x = number * step + 1
        parts.append(_box(x, 6, (width, 54), station))
        if number:
            parts.append(f'<path d="M{x - 22} 33 h14 m-5 -4 l5 4 l-5 4"/>')
    parts.append('<path class="brace" d="M2 94 v6 H272 v-6"/>')
    parts.append('<text x="137" y="116" class="note">on the host, packed and stored once</text>')
    parts.append(f'<path class="brace" d="M298 94 v6 H{5 * step + width} v-6"/>')
    parts.append('<text x="581" y="116" class="note">inside one compiled, sharded step</text>')
    return f'<svg class="wide" viewBox="0 0 866 124" role="img" aria-label="{label}">' + (
        f"{''.join(parts)}</svg>"
    )


def _tall(label: str) -> str:
    parts, step, height = [], 66, 46
    for number, station in enumerate(stations()):
        y = number * step + 1
        parts.append(_box(1, y, (338, height), station))
        if number:
            parts.append(f'<path d="M170 {y - 18} v14 m-4 -5 l4 5 l4 -5"/>')
    total = 5 * step + height + 4
    return f'<svg class="tall" viewBox="0 0 340 {total}" role="img" aria-label="{label}">' + (
        f"{''.join(parts)}</svg>"
    )


def cells(file: str, *start: str) -> list[str]:
    """Returns the cells of the only line of the tables of a page of `benchmarks/` that begins with
    these cells. Raises ValueError unless there is one."""
    lines = (ROOT / "benchmarks" / file).read_text(encoding="utf8").splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if "|" in line]
    fitting = [row for row in rows if row[: len(start)] == list(start)]
    if len(fitting) != 1:
        raise ValueError(f"{file} has {len(fitting)} lines that begin with {start}, not one")
    return fitting[0]


def figures() -> str:
    """Returns three measured or planned figures as HTML, each with the page that it is from."""
    device = "amd-epyc-avx512-bf16-2-cores.md"
    _, ours, peer, ratio, *_ = cells(device, "step")
    _, _, own, torch, *_ = cells("tasks.md", "mrpc", "f1")
    plan = cells("plans.md", "megatron_8b", "v5p:8x8x8")
    memory, step = plan[4], plan[6]
    chips = 8 * 8 * 8
    words = [
        (
            f"{ratio.split(' ')[0]} times torch",
            f"a training step of BERT-base on two CPU cores: {_rate(ours)} against {_rate(peer)}",
            device,
        ),
        (
            f"{own} F1",
            f"MiniLM fine-tuned on MRPC, three seeds; torch: {torch}",
            "tasks.md",
        ),
        (
            f"{memory.split(' ')[0]} GiB a chip",
            f"of {memory.split(' of ')[1]}: a step of Megatron-LM 8.3B compiled for {chips} TPU "
            f"v5p that are not there takes at least {step}",
            "plans.md",
        ),
    ]
    cards = "".join(
        f'<a class="figure" href="generated/benchmarks/{page.removesuffix(".md")}.html">'
        f"<strong>{html.escape(number)}</strong><span>{html.escape(text)}</span>"
        f"<small>benchmarks/{page}</small></a>"
        for number, text, page in words
    )
    return f'<div class="figures">{cards}</div>'


def _rate(cell: str) -> str:
    """The rate of a cell such as "956 tokens/s, bfloat16"."""
    return re.split(", ", cell)[0]
