"""The predicted time of a step beside the measured one, on the CPU: `ptm plan --measure`, and the
whole batch.

    python -m benchmarks.step_times [SYSTEM ...]        # writes step_times.md; lines of other
                                                        systems stay

Predictions are by `plan.measured`, from steps with a quarter and half of the rows; `model` is the
roofline of `ptm plan`, which is a bound by a peak of 1 TFLOP/s and no prediction here. A prediction
more than 25% away is marked.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import sys
from pathlib import Path

from ptm_jax.core.system import Experiment
from ptm_jax.mesh.chips import topology
from ptm_jax.plan import costs, lowering, measured
from ptm_jax.systems import get
from ptm_jax.tuning.studies import study_runs

NAMES = ("bert_mini", "t5_mini", "lstm_mini", "transformer_xl_mini", "elmo_mini")
LIMIT = 0.25
PAGE = Path(__file__).with_name("step_times.md")


def main() -> None:
    known = PAGE.read_text(encoding="utf8") if PAGE.exists() else ""
    lines, where = dict(re.findall(r"^\| (\w+_mini) (\|.*)$", known, re.M)), topology("cpu:1")
    for name in sys.argv[1:] or NAMES:
        config = study_runs.expected(Experiment(system=get(name)))  # its tokenizer's vocabulary
        phase = config.system.recipe.phases[0]
        config = dataclasses.replace(config, mesh=())
        found = measured.step(config, 0)
        real = measured.seconds(lowering.published(config), 0, phase.batch)
        off = found.seconds / real - 1
        few = ", ".join(f"{rows}: {1e3 * seconds:.1f}" for rows, seconds in found.steps.items())
        cells = [
            name,
            f"{phase.batch} x {phase.length}",
            few,
            f"{1e3 * found.seconds:.1f}",
            f"{1e3 * real:.1f}",
            f"{off:+.0%}",
        ]
        cells += [
            "yes" if abs(off) <= LIMIT else "NO",
            f"{1e3 * costs.of(config, where).seconds:.2f}",
        ]
        print(*cells, flush=True)
        lines[name] = f"| {' | '.join(cells[1:])} |"
        write([f"| {system} {line}" for system, line in lines.items()])


def write(lines: list[str]) -> None:
    """The page, after each system: a run that is cut leaves what it has."""
    head = [
        "system",
        "rows x length",
        "rows: ms",
        "predicted ms",
        "measured ms",
        "difference",
        "within 25%",
        "model ms",
    ]
    page = [
        "# Predicted and measured steps",
        "",
        f"| {' | '.join(head)} |",
        "|" + " --- |" * len(head),
        *lines,
        "",
        f"`python -m benchmarks.step_times`, {datetime.date.today()}.",
        " ".join(__doc__.split("\n\n")[2].split()),
        "",
    ]
    PAGE.write_text("\n".join(page), encoding="utf8")


if __name__ == "__main__":
    main()
