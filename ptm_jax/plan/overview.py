"""Writes the table of all pod configs, compiled for all TPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.mesh.chips import GIB, topology
from ptm_jax.systems.survey import pods

SLICES: Mapping[str, str] = {
    "v4": "v4:8x8x8",
    "v5e": "v5e:16x16",
    "v5p": "v5p:8x8x8",
    "v6e": "v6e:16x16",
}
SMALL: Mapping[str, str] = {
    "v4": "v4:4x4x4",
    "v5e": "v5e:8x8",
    "v5p": "v5p:4x4x4",
    "v6e": "v6e:8x8",
}
"""Slices for models below 1.5 billion parameters, whose large batches need micro-batches."""

SMALL_CONFIGS = ("megatron_bert_336m", "megatron_bert_1300m", "megatron_1b")

HEADER = (
    "| config | topology | mesh | rules | bytes a device | fits | step | utilisation | "
    "compiler, CPU time |"
)


def write(
    path: Path,
    plan: Callable[..., Mapping[str, Any]],
    say: Callable[[str], None],
    *,
    quick: bool = False,
) -> int:
    """Compiles the missing lines of the table.
    Writes the table after each line, so a run can be interrupted and resumed.

    If a config does not fit with its own rules, tries again with parameters and optimizer state
    sliced (`zero`). `plan(request, topology)` returns {"plans": [document]}, like the child process
    of `ptm plan`."""
    lines = _there(path)
    for name in pods.PODS:
        for kind in SLICES:
            where = topology((SMALL if name in SMALL_CONFIGS else SLICES)[kind])
            if (name, str(where)) in lines:
                continue
            began = time.perf_counter()
            try:
                request = {"target": name, "topology": str(where), "set": (), "quick": quick}
                document = plan(request, where)["plans"][0]
                if not document["fits"] and not document["rules"].endswith(
                    ("fsdp", "zero")
                ):  # a smaller chip than the paper's
                    sliced = f"{document['rules']}_zero".removeprefix("replicated_")
                    document = plan({**request, "rules": sliced}, where)["plans"][0]
                row = _row(name, document)
            except UserError as error:
                if "libtpu" in str(error):
                    raise
                row = f"| {name} | {where} | | | | | {error} | | |"
            lines[name, str(where)] = row
            _save(path, lines, quick)
            say(f"{row} ({time.perf_counter() - began:.0f} s)")
    return 0


def _row(name: str, document: Mapping[str, Any]) -> str:
    mesh = ",".join(f"{axis}={size}" for axis, size in document["mesh"].items())
    took = document.get("compile_cpu_seconds", 0.0)
    used, limit = document["bytes_needed"] / GIB, document["hbm_bytes"] / GIB
    over = "yes" if document["fits"] else f"no, by {used - limit:.1f} GiB: {document['advice'][1]}"
    cells = (
        name, document["topology"], mesh, document["rules"], f"{used:.2f} of {limit:.0f} GiB", over,
        f"{document['step_seconds'] * 1e3:.0f} ms", f"{document['utilisation']:.0%}",
            f"{took:.0f} s" if took else "",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _there(path: Path) -> dict[tuple[str, str], str]:
    """Returns the lines of an earlier table by (config, topology)."""
    lines_by_key = {}
    for line in path.read_text(encoding="utf8").splitlines() if path.is_file() else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 2 and cells[0] in pods.PODS:
            lines_by_key[cells[0], cells[1]] = line
    return lines_by_key


def _save(path: Path, lines: Mapping[tuple[str, str], str], quick: bool) -> None:
    options = " --quick" if quick else ""
    head = [
        "# Pod configs, compiled for TPUs",
        "",
        HEADER,
        "|" + " --- |" * (HEADER.count("|") - 1),
    ]
    note = [
        "",
        f"Written by `ptm plan --table FILE{options}`. A line is `ptm plan CONFIG --topology "
        f"TOPOLOGY{options}`.",
        "Step and utilisation are bounds by the roofline of `ptm_jax/plan/roofline.py`, not "
        "measured. Memory is the",
        "compiler's.",
        "",
    ]
    order = {name: number for number, name in enumerate(pods.PODS)}
    body = [lines[key] for key in sorted(lines, key=lambda key: (order[key[0]], key[1]))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*head, *body, *note]), encoding="utf8")
