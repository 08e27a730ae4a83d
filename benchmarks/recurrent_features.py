"""What is pre-trained for a recurrent model and what it brings, in one table: ELMo, Flair, TagLM,
ULMFiT and CoVe.

    python -m benchmarks.recurrent_features --workdir runs/features      # hours of two cores; goes
                                                                         on where it was stopped
    python -m benchmarks.recurrent_features --join                       # the page alone, from the
                                                                         pages of the three

Runs `benchmarks.tagger_features`, `benchmarks.ulmfit` and `benchmarks.cove`, each a process of its
own, on one set of frozen models, and joins their tables in recurrent_features.md. Their pages have
the settings, and what was tried.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PARTS = {
    "tagger_features": "Features in a tagger (rows 34 to 36, 223)",
    "ulmfit": "ULMFiT (row 38)",
    "cove": "CoVe (row 33)",
}
"""{command and page: title of its table}."""


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """Returns {name: the arguments of its command}."""
    frozen, common = args.workdir / "frozen", ["--data", str(args.data), "--seeds", str(args.seeds)]
    return {
        "tagger_features": [
            *common,
            "--workdir",
            str(args.workdir / "taggers"),
            "--frozen",
            str(frozen),
        ],
        "ulmfit": [
            *common,
            "--workdir",
            str(args.workdir / "ulmfit"),
            "--out",
            str(HERE / "ulmfit.md"),
        ],
        "cove": [
            *common,
            "--workdir",
            str(args.workdir / "cove"),
            "--vectors",
            str(frozen / "vectors"),
            "--out",
            str(HERE),
        ],
    }


def page() -> str:
    """Returns the tables of the pages that are there, a section each."""
    sections = []
    for name, title in PARTS.items():
        file = HERE / f"{name}.md"
        rows = (
            re.findall(r"^\|.*\|$", file.read_text(encoding="utf8"), re.M)
            if file.exists()
            else ["not measured"]
        )
        sections.append(
            f"## {title}\n\n" + "\n".join(rows) + f"\n\nSettings: [{name}]({name}.md).\n"
        )
    head = "# What pre-training brings to recurrent models\n"
    end = "Points on held-out examples. `python -m benchmarks.recurrent_features`.\n"
    return "\n".join([head, *sections, end])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workdir", type=Path, default=Path("runs/features"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--join", action="store_true", help="only write the page, from the pages of the three"
    )
    args = parser.parse_args()
    for name, given in ({} if args.join else commands(args)).items():
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *given], check=True)
    (HERE / "recurrent_features.md").write_text(page(), encoding="utf8")
    print(page())


if __name__ == "__main__":
    main()
