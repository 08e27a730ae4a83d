"""The rendered examples of launch/, each by the command in its head. `python
tests/launch/examples.py` writes them anew."""

import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from rendering import ROOT, job

from ptm_jax.launch import submit

FOLDER = ROOT / "launch"


def rendered(path: Path) -> str:
    """What the command in the head of an example gives today."""
    lines = path.read_text(encoding="utf8").splitlines()
    arguments = shlex.split(
        next(line for line in lines if line.startswith("# ptm launch ")).removeprefix(
            "# ptm launch "
        )
    )
    return submit.render(arguments[0], job(arguments))


def main() -> None:
    os.chdir(ROOT)
    for path in sorted(FOLDER.iterdir()):
        path.write_text(rendered(path), encoding="utf8")


if __name__ == "__main__":
    main()
